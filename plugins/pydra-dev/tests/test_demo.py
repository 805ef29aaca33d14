"""`pydra dev` from end to end: the real agent as a process, on an embedded node."""

from __future__ import annotations

import glob
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from pydra.errors import SettingsError
from pydra_dev.demo import Demo, run, run_until_signal
from pydra_dev.node import scenario_environment

TOLD = [
    "ready: API server",
    "started: pydra-agent --backend sim",
    "registered: driver sim.pydra.dev",
    "published: 8 devices",
    "applied: DeviceClass",
    "applied: ResourceClaimTemplate",
    "applied: Pod",
    "allocated: claim default/sample-accelerator-",
    "the other devices:",
    "prepared: claim",
    "CDI spec: ",
    "container created: main",
    "running: pod default/sample",
    "deleted: pod default/sample",
    "unprepared: claim",
    "ended: pod default/sample",
    "clean: ",
    "stopped: pydra-agent",
]


async def test_the_life_of_one_pod_is_shown_until_nothing_of_it_is_left() -> None:
    said: list[str] = []
    assert await run_until_signal(Demo("sim", once=True, write=said.append)) == 0, "\n".join(said)
    headlines = [re.sub(r"^ *[\d.]+ s +", "", passage.splitlines()[0]) for passage in said]
    position = 0
    for expected in TOLD:  # in this order; what happens at the same time may stand between
        position = next(
            (at + 1 for at in range(position, len(headlines)) if headlines[at].startswith(expected)), len(headlines) + 1
        )
        assert position <= len(headlines), f"{expected!r} is missing in {headlines}"
    text = "\n".join(said)
    assert "env      SIM_ACCEL_4_CLOCK_MHZ=1200" in text
    assert "device   /dev/sim/accel-4 (c 1:3, rwm)" in text
    root = re.search(r"kubelet below (\S+)/kubelet", text)
    assert root is not None
    assert not glob.glob(root.group(1))


async def test_a_pod_that_keeps_failing_ends_the_demo_with_the_reason(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("faults: [{call: prepare, do: refuse, message: not today}]")
    said: list[str] = []
    assert await run_until_signal(Demo("sim", str(scenario), once=True, write=said.append)) == 1
    text = "\n".join(said)
    assert "FAILED: the pod failed 4 times, most recently with FailedPrepareDynamicResources" in text
    assert "not today" in text


async def test_a_step_that_does_not_happen_ends_the_demo_at_its_deadline() -> None:
    said: list[str] = []
    assert await run_until_signal(Demo("sim", once=True, deadline=0.05, write=said.append)) == 1
    assert "FAILED: timed out after 0.05 s waiting until the driver registers with the kubelet" in "\n".join(said)


async def test_an_agent_that_cannot_start_ends_the_demo_at_once() -> None:
    said: list[str] = []
    assert await run_until_signal(Demo("nosuch", once=True, write=said.append)) == 1
    text = "\n".join(said)
    assert "FAILED: the agent ended with status 2" in text
    assert "backend nosuch is not installed" in text


async def test_an_interrupt_ends_the_demo_and_the_agent() -> None:
    process = await anyio.open_process([sys.executable, "-m", "pydra.cli.tool", "dev"], stderr=subprocess.DEVNULL)
    async with process:
        assert process.stdout is not None
        text = b""
        with anyio.fail_after(30):
            while b"Ctrl-C" not in text:
                text += await process.stdout.receive()
        process.send_signal(signal.SIGINT)
        with anyio.fail_after(30):
            assert await process.wait() == 0
    agent = re.search(rb"kill -9 (\d+)", text)
    assert agent is not None
    with pytest.raises(ProcessLookupError):
        os.kill(int(agent.group(1)), 0)


def test_a_scenario_file_that_is_missing_is_said_before_anything_starts() -> None:
    with pytest.raises(SettingsError, match=r"there is no file /nowhere/s.yaml"):
        run(scenario="/nowhere/s.yaml", once=True)


def test_a_scenario_is_handed_to_its_backend() -> None:
    assert scenario_environment("my-sim", "hgx-h100", "/root") == {
        "PYDRA_MY_SIM_STATE": "/root/hardware",
        "PYDRA_MY_SIM_SCENARIO": "hgx-h100",
    }
    assert scenario_environment("sim", None, "/root") == {"PYDRA_SIM_STATE": "/root/hardware"}
