"""`pydra dev` from end to end: the real agent as a process, on an embedded node."""

from __future__ import annotations

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from dev_process import run_dev
from pod_manifests import TWO_PODS
from pydra.cli.tool import main
from pydra.errors import SettingsError
from pydra_dev.command.dev_command import DevCommand, run, run_until_signal
from pydra_dev.command.options import Options
from pydra_dev.command.print_run import FATAL
from pydra_dev.node import scenario_environment
from pydra_dev.output.descriptions import Paragraph, describe_log
from pydra_dev.output.terminal import Printer, Progress
from tests.forked import ForkedProgram

TOLD = [
    "ready: API server",
    "started: pydra-agent --backend sim",
    "registered: driver sim.pydra.dev",
    "published: 8 devices",
    "applied: DeviceClass",
    "applied: ResourceClaimTemplate",
    "applied: Pod",
    "allocated: claim default/sample-accelerator-",
    "prepared: claim",
    "CDI spec: ",
    "container created: main",
    "running: pod default/sample",
    "# The sample, for `kubectl apply -f -`:",
    "deleted: pod default/sample",
    "unprepared: claim",
    "ended: pod default/sample",
    "clean: ",
    "stopped: pydra-agent",
]

BACKEND = """
from contextlib import asynccontextmanager
from pydra import ClaimError, ContainerEdits, Device, Inventory, PreparedDevice
DRIVER = "mine.example.com"
DEVICE_CLASSES = {"large.mine.example.com": {"selectors": [{"cel": {"expression": "'large' in device.attributes"}}]}}
async def discover(): return Inventory(devices=(Device(name="one"),))
async def prepare(claim): return [device.prepared(ContainerEdits().with_env("X", "1")) for device in claim.devices]
async def unprepare(claim, prepared): pass
"""
CONNECT = """
@asynccontextmanager
async def connect():
    raise RuntimeError("there is no such bus")
    yield
"""
SETTINGS = """
import sys, msgspec
class Settings(msgspec.Struct, frozen=True):
    scenario: str = ""
SETTINGS_TYPE = Settings
@asynccontextmanager
async def connect(settings):
    yield sys.modules[__name__]
"""
EVICTED_POD = """
kind: List
apiVersion: v1
items:
- {apiVersion: resource.k8s.io/v1beta2, kind: DeviceTaintRule, metadata: {name: broken}, spec: {
    deviceSelector: {driver: mine.example.com}, taint: {key: example.com/broken, effect: NoExecute}}}
- {apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: t}, spec: {spec: {devices: {requests: [
    {name: r, exactly: {deviceClassName: mine.example.com, tolerations: [
      {operator: Exists, effect: NoExecute, tolerationSeconds: 0}]}}]}}}}
- {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {
    resourceClaims: [{name: c, resourceClaimTemplateName: t}], containers: [{name: m, image: i}]}}
"""


async def tell(**options: Any) -> tuple[int, str]:
    said: list[str] = []
    code = await run_until_signal(DevCommand(Options(**options), write=said.append))
    return code, "\n".join(said)


async def test_the_life_of_one_pod_is_shown_until_nothing_of_it_is_left() -> None:
    code, text = await tell(once=True)
    assert code == 0, text
    headlines = [re.sub(r"^ *[\d.]+ s +", "", line) for line in text.splitlines()]
    position = 0
    for expected in TOLD:  # in this order; what happens at the same time may stand between
        position = next(
            (at + 1 for at in range(position, len(headlines)) if headlines[at].startswith(expected)), len(headlines) + 1
        )
        assert position <= len(headlines), f"{expected!r} is missing in {headlines}"
    assert re.search(r"steps in ms: prepared in \d+ ms \(fetch \d+, record \d+, backend \d+, cdi ", text)
    assert "env      SIM_ACCEL_4_CLOCK_MHZ=1200" in text
    assert "device   /dev/sim/accel-4 (c 1:3, rwm)" in text
    root = re.search(r"kubelet below (\S+)/kubelet", text)
    assert root is not None
    assert not glob.glob(root.group(1))


@pytest.mark.parametrize(
    ("source", "manifests", "told", "failed"),
    [
        pytest.param(
            BACKEND + CONNECT,
            "",
            "connect failed: RuntimeError: there is no such bus",
            "the backend cannot be used (BackendStartFailed)",
            id="connect fails",
        ),
        pytest.param(
            BACKEND.replace('name="one"', 'name="ONE"') + SETTINGS,
            "",
            "device 'ONE' is not published: name 'ONE' must be a DNS label",
            "discover has found no device that can be published\n"
            "              with `--scenario NAME` the backend simulates a machine that has some\n",
            id="no device is published",
        ),
        pytest.param(
            BACKEND,
            TWO_PODS,
            "not one: request r: in use",
            "pod default/b cannot be scheduled",
            id="a pod cannot be scheduled",
        ),
        pytest.param(
            BACKEND.replace("return [device", "raise ClaimError('no power') #"),
            EVICTED_POD,
            "Event DeviceTaintManagerEviction on Pod a",
            "pod default/a was deleted before it ran",
            id="a pod is evicted",
        ),
    ],
)
async def test_what_cannot_succeed_ends_the_run_at_once_with_the_reason(
    source: str, manifests: str, told: str, failed: str, tmp_path: Path
) -> None:
    """Without waiting for the deadline, which is longer than this test may take."""
    backend, pods = tmp_path / "mine.py", tmp_path / "pods.yaml"
    backend.write_text(source)
    pods.write_text(manifests)
    options = {"manifests": (str(pods),)} if manifests else {}
    code, text = await tell(backend=str(backend), once=True, deadline=1000.0, **options)
    assert code == 1
    assert told in text
    assert failed in text[text.index("FAILED: ") :]


def test_the_events_that_end_a_run_are_those_of_the_agent() -> None:
    documented = (Path(__file__).parents[3] / "docs" / "events.md").read_text()
    assert all(f"`{reason}`" in documented for reason in FATAL)


async def test_manifests_replace_the_sample_also_on_an_older_kubernetes_of_which_quiet_prints_one_line_for_each_step(
    tmp_path: Path,
) -> None:
    backend, pods = tmp_path / "mine.py", tmp_path / "pods.yaml"
    backend.write_text(BACKEND + SETTINGS)
    pods.write_text(TWO_PODS[: TWO_PODS.index("- {<<")])
    older = {"quiet": True, "kubernetes": "1.34"}
    code, text = await tell(backend=str(backend), manifests=(str(pods),), scenario="big", once=True, **older)
    assert code == 0, text
    assert all(re.match(r" *[\d.]+ s  ", line) for line in text.splitlines()), text
    assert "running: pod default/a" in text
    assert "no setting `scenario`" not in text
    for applied in ("DeviceClass large.mine.example.com", "DeviceClass mine.example.com", "Pod a"):
        assert f"applied: {applied}\n" in text
    assert "applied: Pod sample" not in text


async def test_mistakes_that_do_not_keep_the_pod_from_running_are_told(tmp_path: Path) -> None:
    backend = tmp_path / "mine.py"
    slow = "async def f(): pass\nasync def prepare(claim): f(); __import__('time').sleep(1.1); "
    backend.write_text(BACKEND.replace("async def prepare(claim): ", slow))
    code, text = await tell(backend=str(backend), scenario="big", once=True)
    assert code == 0, text
    for told in (
        "--scenario big: the backend has no setting `scenario`",
        "blocked: prepare kept the event loop for 1.",
        "mine.py:8: RuntimeWarning: coroutine 'f' was never awaited\n",
        f"pydra check {backend} tries what one pod does not: two devices in one claim",
    ):
        assert told in text


def test_what_takes_long_is_told_while_it_lasts() -> None:
    said: list[Paragraph] = []
    now = [0.0]
    progress = Progress(said.append, "pod a runs", clock=lambda: now[0])
    for now[0] in (1.0, 5.0, 6.0, 11.0):
        progress.look()
    assert [one.headline for one in said] == ["waiting until pod a runs, for 5 s", "waiting until pod a runs, for 11 s"]


async def test_a_step_that_does_not_happen_ends_the_run_at_its_deadline(tmp_path: Path) -> None:
    backend = tmp_path / "mine.py"
    backend.write_text(BACKEND.replace("return Inventory(", "await __import__('asyncio').Event().wait() #"))
    code, text = await tell(backend=str(backend), once=True, deadline=0.05)
    assert code == 1
    assert "FAILED: timed out after 0.05 s waiting until the driver " in text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (Options(backend="nosuch"), "backend nosuch is not installed"),
        (Options(backend="/proc/nowhere/mine.py"), "there is no file /proc/nowhere/mine.py"),
        (Options(scenario="/proc/nowhere/s.yaml"), "there is no file /proc/nowhere/s.yaml"),
        (Options(manifests=("/proc/nowhere/m.yaml",)), "/proc/nowhere/m.yaml: cannot be read: No such file"),
    ],
)
def test_what_is_missing_is_said_before_anything_starts(options: Options, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        run(options)


COMMAND = [sys.executable, "-m", "pydra", "dev"]


async def wait_gone(pid: int) -> None:
    with anyio.fail_after(60), suppress(ProcessLookupError):
        while True:
            os.kill(pid, 0)
            await anyio.sleep(0.02)


def test_a_node_that_stays_up_is_found_by_commands_and_its_agent_is_started_again_until_the_command_ends(
    tmp_path: Path,
) -> None:
    leaked = tmp_path / "agent.log"
    with run_dev(tmp_path, environ={"PYDRA_LOG_FILE": str(leaked)}) as process:
        text = process.read_until("A second Ctrl-C")
        found = re.search(r"export PYDRA_CONFIG=(\S+)", text)
        assert found is not None
        environ = {**os.environ, "PYDRA_CONFIG": found.group(1)}
        for command, told in (
            (["doctor"], "node embedded-node"),
            (["slices"], "devices 8"),
            (["checkpoint", "list"], "default/sample-"),
        ):
            said = tmp_path / command[0]
            assert ForkedProgram("pydra.cli.tool", command, environ, str(said)).join(60) == 0, said.read_text()
            assert told in said.read_text()
        agent = re.search(r"kill -9 (\d+)", text)
        assert agent is not None
        os.kill(int(agent.group(1)), signal.SIGKILL)
        again = process.read_until("started again (pid")
        assert "ended: pydra-agent, by signal 9" in again
        found = re.search(r"started again \(pid (\d+)\)", again)
        assert found is not None
        process.read_until("registered: driver sim.pydra.dev")
        process.send_signal(signal.SIGKILL)
        anyio.run(wait_gone, int(found.group(1)))
    root = re.search(r"tail -f (\S+)/agent.log", text)
    assert root is not None
    shutil.rmtree(root.group(1))
    assert not leaked.exists(), "the agent's settings are not those of this shell"


def test_a_reader_who_has_read_enough_ends_the_command_without_a_traceback() -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""


def test_a_failure_that_repeats_is_counted_and_said_once_more_at_the_end() -> None:
    said: list[str] = []
    printer = Printer(said.append, lambda: 0.0)
    printer.summarize()
    assert not said
    for number in range(70):
        key = f"thread 0x{number:012x} failed after {number / 10} s"
        printer.say_failure((key,), Paragraph(headline="it failed", details=("because",)))
    first, *more = said
    assert "because" in first
    assert [line.split(", ")[-1] for line in more] == [f"for the {n}th time with the same error" for n in (4, 16, 64)]
    printer.say_failure(("another",), Paragraph(headline="another failed:", details=("Traceback", "RuntimeError: x")))
    printer.say_failure(("pending",), Paragraph(headline="it is pending", details=("no device is free", "not a: used")))
    printer.summarize()
    headline, *lines = said[-1].splitlines()
    assert headline.endswith("problems: 3")
    shown = [
        "it failed, 70 times",
        "because",
        "another failed",
        "RuntimeError: x",
        "it is pending",
        "no device is free",
    ]
    assert [line.strip() for line in lines] == shown


def test_what_the_backend_says_and_tracebacks_are_told_of_the_agents_log() -> None:
    log = """\
04:22:59.079 INFO    agent.assembly: pydra serves mine
04:22:59.251 INFO    backend.mine.bus: opened  backend=mine  claim=default/c
04:22:59.252 WARNING claims.work_queue: prepare failed: RuntimeError: boom  backend=mine
Traceback (most recent call last):
RuntimeError: boom
04:22:59.252 INFO    backends.restarted_process: backend mine: ready in process 7 after 0.31 s
04:22:59.252 INFO    backends.restarted_process: backend mine: ready again in process 9 after 0.31 s
04:22:59.252 WARNING backends.restarted_process: backend mine: step load has been running for 7 s  claim=default/c
04:22:59.253 INFO    claims.work_queue: prepared in 6 ms (fetch 2, backend 4)  backend=mine
04:22:59.254 WARNING agent.inventory_loop: wait_changed has returned 20 times within 0.1 s  backend=mine
04:22:59.255 INFO    agent.inventory_loop: discovered 3 devices  backend=mine
"""
    assert describe_log(log) == [
        Paragraph(headline="backend.mine.bus: opened"),
        Paragraph(
            headline="traceback: prepare failed: RuntimeError: boom",
            details=("Traceback (most recent call last):", "RuntimeError: boom"),
        ),
        Paragraph(headline="backend mine: ready again in process 9 after 0.31 s"),
        Paragraph(headline="backend mine: step load has been running for 7 s"),
        Paragraph(headline="steps in ms: prepared in 6 ms (fetch 2, backend 4)"),
        Paragraph(headline="wait_changed has returned 20 times within 0.1 s"),
    ]


def test_a_scenario_is_handed_to_its_backend() -> None:
    assert scenario_environment("my-sim", "hgx-h100", "/root") == {
        "PYDRA_MY_SIM_STATE": "/root/hardware",
        "PYDRA_MY_SIM_SCENARIO": "hgx-h100",
    }
    assert scenario_environment("sim", None, "/root") == {"PYDRA_SIM_STATE": "/root/hardware"}


def test_another_kubernetes_version_must_be_known_and_needs_the_agent(capsys: pytest.CaptureFixture[str]) -> None:
    for release in ("1.33", "1.39", "2.36"):
        assert main(["dev", "--kubernetes", release]) == 2
        wanted = f"--kubernetes: {release} is a release that pydra-dev does not know, allowed: 1.34, 1.35, 1.36, "
        assert wanted in capsys.readouterr().err
    assert main(["dev", "--kubernetes", "1.34", "--in-process"]) == 2
    assert "leave out --in-process" in capsys.readouterr().err


def test_several_nodes_are_counted_and_shown_without_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "--nodes", "0"]) == 2
    assert "--nodes: 0 is not a number from 1 to 16" in capsys.readouterr().err
    assert main(["dev", "--nodes", "2", "--web"]) == 2
    assert "leave out --web, --watch, --run and --in-process" in capsys.readouterr().err


MANIFESTS_WITH_A_CLAIM = """
kind: List
apiVersion: v1
items:
- {apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: sim.pydra.dev}}
- {apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: own},
   spec: {devices: {requests: [{name: one, exactly: {deviceClassName: sim.pydra.dev}}]}}}
- {apiVersion: v1, kind: Pod, metadata: {name: user}, spec: {
    resourceClaims: [{name: own, resourceClaimName: own}],
    containers: [{name: main, image: x, resources: {claims: [{name: own}]}}]}}
"""


async def test_several_nodes_take_ones_own_classes_and_claims(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(MANIFESTS_WITH_A_CLAIM)
    code, text = await tell(once=True, nodes=2, manifests=(str(tmp_path / "own.yaml"),))
    assert (code, "running: pod default/user" in text) == (0, True), text
