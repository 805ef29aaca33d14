"""A backend's process hangs in the kernel and survives SIGKILL: others serve, few are left behind, all is reported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from pydra.backends.supervisor_events import BackendEvent, Trouble
from pydra.errors import BackendError, BackendUnavailable
from tests.integration.backends.harness import ENVIRON, RESTARTS, TIMEOUTS, claim, find_troubles, supervised, until
from tests.integration.backends.stuck_mount import stuck_mount

SHORT = replace(TIMEOUTS, ping_timeout=0.3, stack_dump_timeout=0.1, kill_timeout=0.1, exit_timeout=0.1)

AGENT = """
import anyio, sys
from pathlib import Path
from pydra.errors import BackendError
from tests.integration.backends.harness import claim, supervised
from tests.integration.backends.test_hanging_in_kernel import SHORT
async def main():
    async with supervised(Path(sys.argv[1]), timeouts=SHORT) as backend:
        await backend.wait_ready()
        print(backend.statistics().pid)
        try:
            await backend.prepare(claim("hang-in-kernel"), until=anyio.current_time() + 0.1)
        except BackendError:
            pass
anyio.run(main)
"""


def state_of(pid: int) -> str:
    """The state of a process in the words of proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_process_that_cannot_be_killed_is_reported_and_only_so_many_are_left_behind(tmp_path: Path) -> None:
    (tmp_path / "stuck").mkdir()
    events: list[BackendEvent] = []
    restarts = replace(RESTARTS, unkillable=2, unkillable_look=0.02)
    async with supervised(tmp_path, timeouts=SHORT, restarts=restarts, events=events) as backend:
        with stuck_mount(tmp_path / "stuck"):
            left = []
            for number in range(2):
                await backend.wait_ready()
                left.append(backend.statistics().pid)
                assert await backend.prepare(claim("ok")), "the process that was started beside one that hangs serves"
                with pytest.raises(BackendError):
                    await backend.prepare(claim("hang-in-kernel", f"u{number}"), until=anyio.current_time() + 0.5)
            await until(lambda: len(find_troubles(events, Trouble.UNKILLABLE)) == 2)
            messages = [one.message for one in find_troubles(events, Trouble.UNKILLABLE)]
            assert [int(message.split()[1]) for message in messages] == left
            assert [state_of(pid) for pid in left] == ["D", "D"]
            message = f"has processes that cannot be killed \\(pids: {left[0]}, {left[1]}\\)"
            with pytest.raises(BackendUnavailable, match=message):
                await backend.prepare(claim("ok"), until=anyio.current_time() + 0.5)
        assert await backend.prepare(claim("ok")), "they ended, and one is started again"
        assert backend.statistics().pid not in left


async def test_the_agent_stops_while_a_process_cannot_be_killed(tmp_path: Path) -> None:
    (tmp_path / "stuck").mkdir()
    environ = {**ENVIRON, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), ENVIRON["PYTHONPATH"]])}
    with stuck_mount(tmp_path / "stuck"):
        done = await anyio.run_process([sys.executable, "-c", AGENT, str(tmp_path)], env=environ)
        assert state_of(int(done.stdout)) == "D"
    assert b"Traceback" not in done.stderr
