"""A backend's process as another user, with fewer system calls, and within its memory."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from pydra.backends.child import give_up_rights
from pydra.backends.supervisor_events import BackendEvent, Trouble
from pydra.backends.timeouts import ProcessTimeouts
from pydra.errors import BackendDied, ClaimError
from pydra.settings import ProcessRights, parse_settings
from tests.integration.backends.harness import TROUBLE, claim, find_troubles, need_libseccomp, supervised, until

ROOT = Path(__file__).parents[3]
AGENT = """
import anyio, json, pathlib
from pydra.errors import BackendTimeout, ClaimError
from pydra.settings import ProcessRights
from tests.integration.backends.harness import SHORT_TIMEOUTS, claim, supervised
RIGHTS = ProcessRights(run_as_user=65532, run_as_group=65533, supplemental_groups=(44, 109))
async def main():
    async with supervised(rights=RIGHTS, timeouts=SHORT_TIMEOUTS) as backend:
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
    # `make test` has pydra's wheels in one environment, and pytest in another.
    sources["tools"] = str(Path(pytest.__file__).parents[1])
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
    python, repository, packages, tools = elsewhere
    mounts = "".join(f"mount --bind {source} {place} && " for place, source in elsewhere.items())
    secret = Path(repository).parent / "token"
    secret.write_text("secret")
    secret.chmod(0o400)
    program = f"{python}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([repository, packages, f"{repository}/{TROUBLE.relative_to(ROOT)}", tools]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "FAULTY_SECRET": str(secret),
        "LD_LIBRARY_PATH": f"{python}/lib",  # Python may be linked to a library in somebody's home
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
    rights: dict[str, Any] = {"cgroup": None, "user": 65532, "group": 65532, "groups": [], "filter": None}
    command = [*less, sys.executable, "-I", "-S", give_up_rights.__file__, json.dumps(rights), "/bin/true"]
    ended = await anyio.run_process(command, check=False)
    assert ended.returncode == 1
    assert ended.stderr.decode() == "runAsUser: 65532 is not possible: the agent lacks the capabilities KILL, SETUID\n"


async def test_a_process_that_leaks_ends_by_itself_and_not_with_the_agent() -> None:
    patient = ProcessTimeouts(ping_interval=0.05)
    async with supervised(rights=ProcessRights(memory_limit="200Mi"), timeouts=patient) as backend:
        with pytest.raises(BackendDied, match=r"used too much memory \(2\d\d MiB, and its memoryLimit is 200Mi\)"):
            await backend.prepare(claim("leak"))
        assert await backend.prepare(claim("ok", "u2"))
        assert backend.statistics().starts == 2


@pytest.mark.parametrize(
    ("profile", "error"),
    [
        pytest.param({"type": "RuntimeDefault"}, "Operation not permitted", id="the agent's own"),
        pytest.param(
            {"type": "Localhost", "localhostProfile": "profiles/backend.json"},
            "Function not implemented",
            id="one of the node",
        ),
    ],
)
async def test_a_process_cannot_make_the_calls_that_its_seccomp_profile_refuses(
    profile: dict[str, str], error: str, tmp_path: Path
) -> None:
    need_libseccomp()
    refused = {"names": ["unshare"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS}
    place = tmp_path / "var/lib/kubelet/seccomp/profiles/backend.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [refused]}))
    processes = {"faulty": {"seccompProfile": profile}}
    values = {"backends": ["faulty"], "nodeName": "node", "hostRoot": str(tmp_path), "backendProcesses": processes}
    rights = parse_settings(values).process_rights("faulty")
    async with supervised(rights=rights) as backend:
        with pytest.raises(ClaimError, match=f"a new namespace is refused: {error}"):
            await backend.prepare(claim("new-namespace"))
        assert await backend.prepare(claim("ok", "u2"))


@pytest.mark.parametrize(
    ("rights", "message"),
    [
        pytest.param(
            {"seccompProfile": {"type": "Localhost", "localhostProfile": "nowhere.json"}},
            "cannot be started: seccompProfile: nowhere.json cannot be read: No such file or directory",
            id="a profile that is not there",
        ),
        pytest.param(
            {"cpuLimit": "500m"},
            "cannot be started: cpuLimit and pidsLimit need a cgroup, and none can be made: ",
            id="a limit that only the kernel enforces",
        ),
    ],
)
async def test_a_backend_is_not_started_without_the_limits_that_the_admin_gave_it(
    rights: dict[str, Any], message: str
) -> None:
    events: list[BackendEvent] = []
    async with supervised(rights=msgspec.convert(rights, ProcessRights), events=events):
        await until(lambda: bool(events))
    assert find_troubles(events, Trouble.START)[0].message.startswith(message)


LEAKING_AGENT = """
import anyio, json, os, pathlib, sys
from pydra.errors import BackendDied
from pydra.settings import ProcessRights
from tests.integration.backends.harness import claim, supervised
RIGHTS = ProcessRights(memory_limit="100Mi", cpu_limit="500m", pids_limit=64)
async def main():
    pathlib.Path(sys.argv[1], "cgroup.procs").write_text("0")
    async with supervised(rights=RIGHTS) as backend:
        try:
            await backend.prepare(claim("leak"))
        except BackendDied as error:
            said = str(error)
        prepared = await backend.prepare(claim("ok", "u2"))
        pid = backend.statistics().pid
        places = [pathlib.Path(f"/proc/{one}/cgroup").read_text().rpartition("0::")[2].strip() for one in (pid, "self")]
        limits = {name: pathlib.Path("/sys/fs/cgroup" + places[0], name).read_text().split()
                  for name in ("memory.max", "cpu.max", "pids.max")}
        starts = backend.statistics().starts
        print(json.dumps({"said": said, "places": places, "limits": limits, "starts": starts}))
anyio.run(main)
"""


async def test_the_kernel_limits_a_process_in_a_cgroup_of_its_own() -> None:
    root = Path("/sys/fs/cgroup")
    if not os.access(root / "cgroup.subtree_control", os.W_OK):
        pytest.skip("needs cgroup v2, and the right to write to it")
    (root / "cgroup.subtree_control").write_text("+cpu +memory +pids")
    own = Path(tempfile.mkdtemp(prefix="pydra-test-", dir=root))
    try:
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        with anyio.fail_after(60):
            ended = await anyio.run_process(
                [sys.executable, "-c", LEAKING_AGENT, str(own)], env=environ, check=False, stderr=subprocess.STDOUT
            )
    finally:
        for one in sorted(own.rglob("*/"), reverse=True):
            if one.is_dir():
                one.rmdir()
        own.rmdir()
    assert ended.returncode == 0, ended.stdout.decode()
    told = json.loads(ended.stdout.splitlines()[-1])
    assert "used too much memory (its memoryLimit is 100Mi)" in told["said"]
    assert told["starts"] == 2
    assert told["places"][0].startswith(f"/{own.name}/faulty@")
    assert told["places"][1] == f"/{own.name}/pydra-agent"
    assert told["limits"] == {"memory.max": [str(100 << 20)], "cpu.max": ["50000", "100000"], "pids.max": ["64"]}
