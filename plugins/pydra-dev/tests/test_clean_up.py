"""However `pydra dev` ends, what the backend has configured is undone, or named."""

from __future__ import annotations

import os
import re
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dev_process import DevProcess, run_dev
from pod_manifests import TWO_PODS

BACKEND = """
import os
from pydra import ClaimError, ContainerEdits, Device, Inventory, PreparedDevice
DRIVER = "mine.example.com"
PLACE = "{place}"
async def discover(): return Inventory(devices=(Device(name="one"), Device(name="two")))
async def prepare(claim):
    for device in claim.devices:
        open(f"{{PLACE}}/{{device.device}}", "x").close()
    return [device.prepared(ContainerEdits().with_env("X", "1")) for device in claim.devices]
async def unprepare(claim, prepared):
    for device in claim.devices:
        if os.path.exists(f"{{PLACE}}/{{device.device}}"):
            os.unlink(f"{{PLACE}}/{{device.device}}")
"""
IN_THE_BACKGROUND = (signal.SIGINT,)
"""What a shell that is not interactive lets programs ignore that it starts with &."""
REFUSED = "if claim.devices[0].device == 'two': raise ClaimError('no power')"


class Hardware:
    """What a backend has configured: a file for each device that is prepared."""

    def __init__(self, directory: Path) -> None:
        self.place = directory / "hardware"
        self.place.mkdir()
        self.backend = directory / "mine.py"
        self.write(BACKEND)

    def write(self, source: str) -> None:
        self.backend.write_text(source.format(place=self.place))

    @property
    def configured(self) -> list[str]:
        return sorted(os.listdir(self.place))

    def start(self, *arguments: str) -> AbstractContextManager[DevProcess]:
        command = ("--backend", str(self.backend), *arguments)
        return run_dev(self.backend.parent, *command, ignored=IN_THE_BACKGROUND)


@pytest.fixture
def hardware(tmp_path: Path) -> Hardware:
    return Hardware(tmp_path)


def test_a_signal_during_prepare_waits_for_it_and_undoes_it(hardware: Hardware) -> None:
    started, proceed = hardware.place / "started", hardware.place / "proceed"
    os.mkfifo(started)
    os.mkfifo(proceed)
    hardware.write(
        BACKEND.replace("    return [device", f"    open('{started}', 'w'); open('{proceed}')\n    return [device")
    )
    with hardware.start() as process:
        started.read_text()
        process.send_signal(signal.SIGINT)
        process.read_until("deleted: pod default/sample")
        proceed.write_text("")
        text = process.read_rest()
        assert process.wait() == 0, text
    assert hardware.configured == ["proceed", "started"], text


def test_a_closed_pipe_undoes_what_the_backend_has_configured(hardware: Hardware) -> None:
    with hardware.start() as process:
        process.read_until("running: pod default/sample")
        process.stdout.close()
        assert process.wait() == 128 + signal.SIGPIPE
    assert not hardware.configured


def test_a_pod_that_keeps_failing_ends_the_run_told_twice_and_keeps_no_devices_of_another_one_configured(
    hardware: Hardware, tmp_path: Path
) -> None:
    hardware.write(BACKEND.replace("async def prepare(claim):", f"async def prepare(claim):\n    {REFUSED}"))
    (tmp_path / "pods.yaml").write_text(TWO_PODS)
    with hardware.start("--quiet", "-f", str(tmp_path / "pods.yaml")) as process:
        text = process.read_rest()
        assert process.wait() == 1
    assert "FAILED: pod default/b has failed 3 times" in text
    assert not hardware.configured, text
    told, _, summary = text.partition("problems: ")
    assert (told.count("no power"), summary.count("no power")) == (1, 1)


def test_a_change_of_the_backend_starts_everything_again_with_nothing_configured(hardware: Hardware) -> None:
    hardware.write(BACKEND + "\nraise RuntimeError('there is no such bus')\n")
    with hardware.start("--watch") as process:
        text = process.read_until("waiting for a change")
        assert "FAILED: the backend" in text
        hardware.write(BACKEND)
        text += (again := process.read_until("running: pod default/sample"))
        assert f"changed: {hardware.backend}" in again
        hardware.write(BACKEND + "\n# changed\n")
        text += (again := process.read_until("running: pod default/sample"))
        assert again.index("unprepared: claim") < again.index("everything starts again")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0, process.read_rest()
    first, *others = re.findall("ready: API server (.*), kubelet", text)
    assert others == [first, first], "the API server keeps its address"
    assert not hardware.configured


STEPS = """
import msgspec
from pydra import Plan, UndoLater
class Attach(msgspec.Struct, frozen=True, kw_only=True, tag="attach"):
    device: str
STEP_TYPES = (Attach,)
async def plan(claim, held): return Plan(steps=[Attach(device=one.device) for one in claim.devices])
async def apply(step, result, claim): return None
async def undo(step, result, claim): raise UndoLater("the bus hangs")
"""
STUCK = "if claim.devices[0].device == 'one': raise ClaimError('it is stuck')"


def test_what_cannot_be_undone_is_named_with_its_device_and_the_reason(hardware: Hardware, tmp_path: Path) -> None:
    """Of a claim that stays prepared, and of one that has ended but for a step."""
    (tmp_path / "pods.yaml").write_text(TWO_PODS)
    hardware.write(BACKEND.replace("            os.unlink", f"            {STUCK}\n            os.unlink") + STEPS)
    with hardware.start("-f", str(tmp_path / "pods.yaml")) as process:
        process.read_until("The node stays up")
        process.send_signal(signal.SIGTERM)
        text = process.read_rest()
        assert process.wait() == 1, text
    left = text[text.index("left prepared") :]
    assert re.match(r"left prepared: claim default/\w+-c-\w+ on one\n", left), left
    assert "it is stuck" in left
    left = text[text.index("left over") :]
    assert re.match(r"left over: default/\w+-c-\w+ of driver mine.example.com has ended and still holds", left)
    assert "the bus hangs" in left


def test_a_second_interrupt_does_not_wait_and_names_what_is_left(hardware: Hardware) -> None:
    begun = hardware.place / "begun"
    os.mkfifo(begun)
    waits = f"open('{begun}', 'w').close(); await __import__('asyncio').Event().wait()"
    hardware.write(BACKEND.replace("            os.unlink", f"            {waits}\n            os.unlink"))
    with hardware.start() as process:
        process.read_until("The node stays up")
        process.send_signal(signal.SIGINT)
        begun.read_text()
        process.send_signal(signal.SIGINT)
        assert "left prepared: claim default/sample-device-" in process.read_rest()
        assert process.wait() == 1


def test_an_agent_that_has_been_killed_is_started_again_to_undo(hardware: Hardware) -> None:
    with hardware.start() as process:
        text = process.read_until("kill -9")
        found = re.search(r"kill -9 (\d+)", text)
        assert found is not None
        process.send_signal(signal.SIGSTOP)
        os.kill(int(found.group(1)), signal.SIGKILL)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        text = process.read_rest()
        assert process.wait() == 0, text
    assert not hardware.configured, text


def test_a_node_with_a_pod_that_cannot_be_scheduled_stays_up_until_a_signal_undoes_all_and_ends_its_agent(
    hardware: Hardware, tmp_path: Path
) -> None:
    """SIGHUP; other tests send the others."""
    hardware.write(BACKEND.replace(', Device(name="two")', ","))
    (tmp_path / "pods.yaml").write_text(TWO_PODS)
    with hardware.start("-f", str(tmp_path / "pods.yaml")) as process:
        text = process.read_until("kill -9")
        assert "pending: pod default/b" in text
        assert "not one: request r: in use" in text
        found = re.search(r"kill -9 (\d+)", text)
        assert found is not None
        assert hardware.configured == ["one"]
        process.send_signal(signal.SIGHUP)
        text = process.read_rest()
        assert process.wait() == 0, text
    assert "deleted: pod default/a" in text
    assert not hardware.configured, text
    with pytest.raises(ProcessLookupError):
        os.kill(int(found.group(1)), 0)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_undoes_what_was_prepared_in_this_process(
    hardware: Hardware, end: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "pods.yaml").write_text(TWO_PODS)
    waits = "if claim.devices[0].device == 'two': print('waits'); await __import__('asyncio').Event().wait()"
    hardware.write(BACKEND.replace("async def prepare(claim):", f"async def prepare(claim):\n    {waits}"))
    with hardware.start("-f", str(tmp_path / "pods.yaml"), "--in-process") as process:
        process.read_until("waits")
        assert hardware.configured == ["one"]
        process.send_signal(end)
        text = process.read_rest()
        assert process.wait() == 130, text
    assert "unprepared: claim default/a-c-" in text
    assert "unprepared: claim default/b-c-" in text, "its prepare may have done a part of its work"
    assert not hardware.configured


def test_after_an_error_in_this_process_what_cannot_be_undone_is_named(hardware: Hardware, tmp_path: Path) -> None:
    (tmp_path / "pods.yaml").write_text(TWO_PODS)
    source = BACKEND.replace("async def prepare(claim):", f"async def prepare(claim):\n    {REFUSED}")
    hardware.write(source.replace("            os.unlink", f"            {STUCK}\n            os.unlink"))
    with hardware.start("-f", str(tmp_path / "pods.yaml"), "--in-process") as process:
        text = process.read_rest()
        assert process.wait() == 1
    assert "FAILED: prepare failed: ClaimError: no power" in text
    assert re.search(r"left prepared: claim default/a-c-\w+ on one\n +.*it is stuck", text), text
