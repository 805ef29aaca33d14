"""The process of a backend ends with its agent, leaves nothing on disk, and keeps its connection to itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from pydra.errors import BackendDied
from tests.integration.backends.harness import ENVIRON, claim, supervised, until

AGENT = """
import anyio, os, sys
from pydra.errors import BackendDied
from tests.integration.backends.harness import supervised
async def main():
    async with supervised() as backend:
        await backend.wait_ready()
        print(backend.statistics().pid, flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


def _exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_the_process_ends_when_the_agent_is_killed() -> None:
    environ = {**ENVIRON, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), ENVIRON["PYTHONPATH"]])}
    async with await anyio.open_process([sys.executable, "-c", AGENT], env=environ, stderr=subprocess.DEVNULL) as agent:
        assert agent.stdout is not None
        pid = int((await agent.stdout.receive()).split()[0])
        assert _exists(pid)
        agent.send_signal(signal.SIGKILL)
        await until(lambda: not _exists(pid))
        async for _ in agent.stdout:  # read to its end, the pipe is closed with the process
            pass


async def test_a_process_whose_agent_is_gone_before_it_looks_does_not_start() -> None:
    command = [sys.executable, "-m", "pydra.backends.child.main", "0", "1", "x:"]
    ended = await anyio.run_process(command)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


async def test_the_process_has_no_terminal_no_core_files_and_no_descriptors_of_the_agent(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    with secret.open("w") as opened:
        os.set_inheritable(opened.fileno(), False)
        async with supervised() as backend:
            await backend.wait_ready()
            pid = backend.statistics().pid
            links = {fd: os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
            assert links["0"] == "/dev/null"
            assert all(links[fd].startswith("pipe:") for fd in ("1", "2"))
            assert str(secret) not in links.values()
            limits = Path(f"/proc/{pid}/limits").read_text()
            assert os.getsid(pid) == pid
            scores = [int(Path(f"/proc/{one}/oom_score_adj").read_text()) for one in ("self", pid)]
            assert scores[1] == min(scores[0] + 500, 1000)
    (core,) = (line for line in limits.splitlines() if line.startswith("Max core file size"))
    assert core.split()[4:6] == ["0", "0"]


async def test_a_program_that_the_backend_leaves_running_does_not_hide_its_end(tmp_path: Path) -> None:
    async with supervised(tmp_path) as backend:
        with pytest.raises(BackendDied, match="exited with status 7"):
            await backend.prepare(claim("leave-program-and-exit"))
        program = int((tmp_path / "program").read_text())
        try:
            assert _exists(program)
            assert await backend.prepare(claim("ok", "u2"))
        finally:
            os.kill(program, signal.SIGKILL)
