"""A backend's process as another user, and within its memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from pydra.backends.child import become_user
from pydra.backends.process import ProcessTimeouts
from pydra.errors import BackendDied
from pydra.settings import ProcessRights
from tests.integration.backends.harness import TROUBLE, claim, supervised

ROOT = Path(__file__).parents[3]
AGENT = """
import anyio, json, pathlib
from pydra.errors import BackendTimeout, ClaimError
from pydra.settings import ProcessRights
from tests.integration.backends.harness import claim, supervised
RIGHTS = ProcessRights(run_as_user=65532, run_as_group=65533, supplemental_groups=(44, 109))
async def main():
    async with supervised(rights=RIGHTS) as backend:
        await backend.wait_ready()
        pid = backend.statistics().pid
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        said = ""
        try:
            await backend.prepare(claim("read-secret"))
        except ClaimError as error:
            said = str(error)
        try:
            await backend.prepare(claim("hang-gil", "u2"), until=anyio.current_time() + 0.2)
        except BackendTimeout:
            said += ", and the hung process was killed"
        await backend.wait_ready()
        await backend.discover()
        print(json.dumps({"status": status, "said": said}))
anyio.run(main)
"""


@pytest.fixture
def elsewhere() -> Iterator[dict[str, str]]:
    """Directories for Python and this repository that every user may enter, to mount what may be in somebody's home."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    places = Path(tempfile.mkdtemp())
    sources = {"python": sys.base_prefix, "repository": str(ROOT), "packages": sysconfig.get_path("purelib")}
    try:
        places.chmod(0o755)
        for name in sources:
            (places / name).mkdir()
        yield {str(places / name): source for name, source in sources.items()}
    finally:
        shutil.rmtree(places)


async def test_the_process_of_a_user_has_no_capabilities_and_cannot_read_what_is_roots(
    elsewhere: dict[str, str],
) -> None:
    python, repository, packages = elsewhere
    mounts = "".join(f"mount --bind {source} {place} && " for place, source in elsewhere.items())
    secret = Path(repository).parent / "token"
    secret.write_text("secret")
    secret.chmod(0o400)
    program = f"{python}/bin/{Path(os.path.realpath(sys.executable)).name}"
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([repository, packages, f"{repository}/{TROUBLE.relative_to(ROOT)}"]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "FAULTY_SECRET": str(secret),
    }
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{mounts} exec {program} -c "$0"', AGENT]
    with anyio.fail_after(60):
        ended = await anyio.run_process(command, env=environ, cwd="/", check=False, stderr=subprocess.STDOUT)
    if b"unshare failed" in ended.stdout:
        pytest.skip("this container may not mount")
    assert ended.returncode == 0, ended.stdout.decode()
    told = json.loads(ended.stdout.splitlines()[-1])
    status = dict(line.split(":\t", 1) for line in told["status"].splitlines())
    assert status["Uid"].split() == ["65532"] * 4
    assert status["Gid"].split() == ["65533"] * 4
    assert status["Groups"].split() == ["44", "109"]
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"
    assert told["said"] == "the secret cannot be read, and the hung process was killed"


async def test_an_agent_that_may_not_start_another_users_process_says_what_it_lacks() -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root, and setpriv to take capabilities away")
    less = ["setpriv", "--bounding-set", "-kill,-setuid"]
    command = [*less, sys.executable, "-I", "-S", become_user.__file__, "65532", "65532", "", "/bin/true"]
    ended = await anyio.run_process(command, check=False)
    assert ended.returncode == 1
    assert ended.stderr.decode() == "runAsUser: 65532 is not possible: the agent lacks the capabilities KILL, SETUID\n"


async def test_a_process_that_leaks_ends_by_itself_and_not_with_the_agent() -> None:
    patient = ProcessTimeouts(ping_interval=0.05)
    async with supervised(rights=ProcessRights(memory_limit="200Mi"), timeouts=patient) as backend:
        with pytest.raises(BackendDied, match=r"used too much memory \(2\d\d MiB, and its memoryLimit is 200Mi\)"):
            await backend.prepare(claim("leak"))
        assert await backend.prepare(claim("ok", "u2"))
        assert backend.statistics().endings["over_memory"] == 1
