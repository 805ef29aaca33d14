"""Scenario files and the faults in them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pydra_sim
from pydra import AllocatedDevice, Claim, ClaimError, HealthStatus, TerminalError
from pydra_sim import Settings
from pydra_sim.scenario import Scenario, ScenarioError, parse_scenario

CLAIM = Claim(
    uid="uid-1",
    namespace="default",
    name="mine",
    devices=(AllocatedDevice(request="r", pool="node", device="accel-2"),),
    plan={"accel-2": ["accel-2.0"]},
)


async def prepare(root: Path, fault: str = "") -> Any:
    """Prepare a claim in a new process, as it were, with this fault in the scenario."""
    if fault:
        (root / "scenario.yaml").write_text(f"faults: [{{{fault}}}]")
    async with pydra_sim.connect(Settings(scenario=f"{root}/scenario.yaml", state=f"{root}/state")) as sim:
        return await sim.prepare(CLAIM)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("groups: [{nmae: a}]", "nmae"),
        ("groups: [{count: 0}]", "$.groups[0].count"),
        ("groups: [{name: UPPER}]", "$.groups[0].name"),
        ("groups: [{slices: 3}]", "must divide by slices 3"),
        ("groups: [{slices: 4, partitions: [4]}]", "must be smaller than slices 4"),
        ("groups: [{slices: 4, shared: true}]", "exclude each other"),
        ("groups: [{name: a}, {name: a}]", "must differ"),
        ("faults: [{do: explode}]", "$.faults[0].do"),
        ("driverVersion: 1", "$.driverVersion"),
        ("[1, 2]", "object"),
        ("groups: !!bool x", "x"),
        ("groups: [", "line 1"),
    ],
)
def test_a_wrong_scenario_is_refused_with_the_place_and_the_rule(text: str, says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text.encode(), "s.yaml")
    assert str(caught.value).startswith("scenario s.yaml: ")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "file", sorted((Path(pydra_sim.__file__).parent / "scenarios").iterdir()), ids=lambda file: file.stem
)
def test_bundled_scenarios_are_valid(file: Path) -> None:
    assert parse_scenario(file.read_bytes(), file.name) != Scenario()


@pytest.mark.parametrize("scenario", ["dgx", "x" * 300])
async def test_a_scenario_that_is_not_there_is_reported_with_the_bundled_ones(tmp_path: Path, scenario: str) -> None:
    async with pydra_sim.connect(Settings(scenario=scenario, state=str(tmp_path))) as sim:
        with pytest.raises(ScenarioError, match="bundled are: partitions, shared, trouble"):
            await sim.discover()


@pytest.mark.parametrize(
    ("fault", "struck"),
    [
        ("do: raise", [True, True, True, True]),
        ("do: raise, count: 2", [True, True, False, False]),
        ("do: raise, after: 1", [False, True, True, True]),
        ("do: raise, after: 1, count: 1", [False, True, False, False]),
        ("do: raise, call: unprepare", [False] * 4),
        ("do: raise, claim: other", [False] * 4),
        ("do: raise, claim: mine, device: accel-2", [True] * 4),
        ("do: raise, device: accel-3", [False] * 4),
    ],
)
async def test_a_fault_strikes_the_calls_that_it_names_over_the_life_of_processes(
    tmp_path: Path, fault: str, struck: list[bool]
) -> None:
    found = [await asyncio.gather(prepare(tmp_path, fault), return_exceptions=True) for _ in range(4)]
    assert [isinstance(one, RuntimeError) for (one,) in found] == struck


@pytest.mark.parametrize(
    ("do", "error"), [("raise", RuntimeError), ("refuse", ClaimError), ("refuse-forever", TerminalError)]
)
async def test_an_error_has_the_message_of_the_scenario(tmp_path: Path, do: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="so said the scenario"):
        await prepare(tmp_path, f"do: {do}, message: so said the scenario")


async def test_a_garbage_answer_does_not_keep_the_contract(tmp_path: Path) -> None:
    assert isinstance((await prepare(tmp_path, "do: garbage"))[0], str)


@pytest.mark.parametrize("do", ["unhealthy", "unplug"])
async def test_a_fault_takes_the_devices_of_a_claim(tmp_path: Path, do: str) -> None:
    await prepare(tmp_path, f"do: {do}, at: end, message: too hot")
    async with pydra_sim.connect(Settings(state=f"{tmp_path}/state")) as sim:
        devices = {one.name: one.health for one in (await sim.discover()).devices}
    if do == "unplug":
        assert "accel-2" not in devices
    else:
        assert (devices["accel-2"].status, devices["accel-2"].message) == (HealthStatus.UNHEALTHY, "too hot")


@pytest.mark.parametrize(
    ("do", "status", "stdout"),
    [
        ("segfault", -signal.SIGSEGV, b""),
        ("abort", -signal.SIGABRT, b""),
        ("exit", 3, b""),
        ("stdout-noise", 0, b"libsim: WARNING: hello from native code\n"),
    ],
)
def test_a_fault_does_to_a_process_what_native_code_would(do: str, status: int, stdout: bytes) -> None:
    code = (
        "import asyncio; from pydra_sim.faults import act; from pydra_sim.scenario import Fault;"
        f"asyncio.run(act(Fault(do={do!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (status, stdout)


@pytest.mark.parametrize(("do", "runs"), [("slow", True), ("hang", False), ("gil-hang", False)])
def test_the_event_loop_runs_on_only_while_a_call_is_slow(do: str, runs: bool) -> None:
    code = (
        "import asyncio\nfrom pydra_sim.faults import act\nfrom pydra_sim.scenario import Fault\n"
        "async def main():\n"
        " ran = []\n"
        " asyncio.get_running_loop().call_soon(ran.append, 1)\n"
        f" await act(Fault(do={do!r}, seconds=0.01))\n"
        " print(bool(ran))\n"
        "asyncio.run(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert done.stdout.decode().strip() == str(runs)
