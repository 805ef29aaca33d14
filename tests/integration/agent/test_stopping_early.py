"""What process 1 of a container has to do: heed signals from the start of the agent on, and reap orphans.

A signal without a handler does not reach process 1, so that a handler must be there.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from pydra_dev.node import run_node
from tests.integration.agent.process import DEADLINE, Agent, run_agent


def heeds(pid: int) -> bool:
    """Whether the process has a handler for SIGTERM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (caught,) = (line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def children(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


AS_PROCESS_1 = """\
import asyncio, os, resource, sys, uvloop
from pydra.agent.orphans_and_memory import reap_orphans
from pydra.agent.orphans_and_memory import return_memory

async def run():
    reaping = asyncio.create_task(reap_orphans(0.05))
    returning = asyncio.create_task(return_memory(start=0.0, period=0.05))
    await asyncio.sleep(0.1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    await asyncio.sleep(0.2)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not reaping.done() and not returning.done()
    spawn, pipe = asyncio.create_subprocess_exec, asyncio.subprocess.PIPE
    parent = await spawn("sh", "-c", "sleep 0.01 >/dev/null & echo $!; exit 3", stdout=pipe)
    orphan = int((await parent.communicate())[0])
    while os.path.exists(f"/proc/{orphan}"):
        await asyncio.sleep(0.01)
    reaping.cancel()
    return parent.returncode

sys.exit(uvloop.run(run()))
"""


async def test_process_1_reaps_orphans_also_after_it_had_no_descriptors_but_not_its_own_children() -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", AS_PROCESS_1]
    with anyio.fail_after(DEADLINE):
        ended = await anyio.run_process(command, check=False, stderr=subprocess.STDOUT)
    if b"unshare failed" in ended.stdout:
        pytest.skip("this container may not make a PID namespace")
    assert (ended.returncode, ended.stdout.decode()) == (3, "")


MOMENTS: dict[str, Callable[[Agent], bool]] = {
    "before its parts are imported": lambda agent: heeds(agent.process.pid),
    "when a backend is spawned": lambda agent: bool(children(agent.process.pid)),
    "when it says its first word": lambda agent: bool(agent.log.read_text()),
}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_an_agent_that_is_asked_to_stop_while_it_starts_ends_with_0_and_leaves_nothing(moment: str) -> None:
    async with run_node(lambda _: None) as node, run_agent(node, "--backend", "sim", forked=False) as agent:
        with anyio.fail_after(DEADLINE):
            while not MOMENTS[moment](agent):
                await anyio.sleep(0.001)
        spawned = children(agent.process.pid)
        assert await agent.stop() == 0
        assert "Traceback" not in agent.log.read_text()
        assert list(Path(node.root).rglob("*sim*.sock")) == []
        with anyio.fail_after(DEADLINE):
            while [pid for pid in spawned if Path(f"/proc/{pid}/exe").exists()]:
                await anyio.sleep(0.01)
