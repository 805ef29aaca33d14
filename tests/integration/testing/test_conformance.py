"""The conformance suite finds all problems of a sloppy backend at once, and steps over what cannot be checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pydra_sim
from pydra.backends.discovery import BackendSource, find_backend
from pydra.backends.timeouts import CallDeadlines
from pydra.checkpoint.record import Record, Stage, build_record
from pydra.claim import AllocatedDevice, Claim
from pydra.errors import SettingsError
from pydra.testing import Check, Report, check_backend, run_checks
from tests.integration.backends.harness import ENVIRON, TROUBLE


def outcomes(report: Report) -> dict[str, str]:
    return {check.title: check.mark for check in report.checks}


async def check_module(directory: Path, name: str, text: str) -> Report:
    """The report on a backend that is this module."""
    (directory / f"{name}.py").write_text(text)
    environ = {**ENVIRON, "PYTHONPATH": str(directory)}
    return await run_checks(BackendSource(name=name, target=f"{name}:"), environ=environ)


async def test_all_faults_of_a_sloppy_backend_are_found_at_once() -> None:
    report = await run_checks(BackendSource(name="sloppy", target="sloppy"), environ=ENVIRON)
    assert not report.ok
    found = outcomes(report)
    assert {title: mark for title, mark in found.items() if mark != "ok"} == {
        "it names its driver": "note",
        "discover answers, and its devices obey the API's rules": "FAIL",
        "discover answers the same again": "FAIL",
        "measure answers": "note",
        "two devices of one claim are prepared, and their container edits agree": "skip",
        "two claims are prepared at once, each with its own devices": "skip",
        "a device that it does not have is refused": "note",
        "unprepare succeeds when nothing was prepared": "FAIL",
        "its container edits obey CDI's rules": "FAIL",
        "prepare again answers the same": "FAIL",
        "prepare answers the same after a crash": "FAIL",
        "unprepare again succeeds": "FAIL",
        "unprepare succeeds after a crash anywhere in prepare or in a step, with nothing remembered": "FAIL",
        "its hints do not fail": "FAIL",
    }
    assert "KeyError" in report.text, "the traceback is there"
    assert "there are samples of device z, which discover does not list" in report.text


async def test_nothing_is_said_about_devices_that_discover_failed_to_tell(tmp_path: Path) -> None:
    report = await check_module(
        tmp_path,
        "blind",
        "from pydra import *\n"
        "DRIVER = 'blind.example.com'\n"
        "async def discover(): raise RuntimeError('no hardware')\n"
        "async def prepare(claim): return []\n"
        "async def unprepare(claim, prepared): pass\n"
        "async def measure(): return [Sample(name='a', value=1, device='z')]\n",
    )
    (problem,) = report.problems
    assert "no hardware" in problem
    assert not any(check.notes for check in report.checks)
    assert {check.skipped for check in report.checks if check.skipped} == {"discover failed"}


NEEDY = """
import msgspec
from pydra import *
DRIVER = "needy.example.com"
class Needed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    clock: int
CONFIG_TYPES = {"needy.example.com/v1/Needed": Needed}
async def discover(): return Inventory(devices=(Device(name="card-0"),))
async def prepare(claim):
    if claim.devices[0].device != "card-0":
        raise UnknownDevice("no such card")
    if claim.devices[0].config(Needed) is None:
        raise InvalidConfig(["card-0 needs a Needed"])
    return [one.prepared() for one in claim.devices]
async def unprepare(claim, prepared): pass
"""


def test_pytest_runs_each_rule_as_a_test(tmp_path: Path) -> None:
    (tmp_path / "forgetful.py").write_text(
        "from pydra import *\n"
        "DRIVER = 'forgetful.example.com'\n"
        "known = set()\n"
        "async def discover(): return Inventory(devices=(Device(name='a'), Device(name='b')))\n"
        "async def prepare(claim):\n"
        "    known.add(claim.uid)\n"
        "    return [one.prepared() for one in claim.devices]\n"
        "async def unprepare(claim, prepared):\n"
        "    known.remove(claim.uid)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pydra-backend", "forgetful:"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    failed = {line.split(" ")[1].rpartition(":")[2] for line in found.stdout.splitlines() if line.startswith("FAILED")}
    assert failed == {"unprepare-nothing", "unprepare-again", "unprepare-after-crash"}, found.stdout
    assert "why: the agent undoes what a crash may have begun" in found.stdout


async def test_a_device_that_needs_configuration_is_prepared_with_what_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "needy.py").write_text(NEEDY)
    source, environ = BackendSource(name="needy", target="needy:"), {**ENVIRON, "PYTHONPATH": str(tmp_path)}
    without = await run_checks(source, environ=environ)
    assert without.ok, without.text
    assert outcomes(without)["prepare answers for each device of the claim"] == "skip"
    assert "card-0 needs a Needed" in without.text
    given = {"apiVersion": "needy.example.com/v1", "kind": "Needed", "clock": 1}
    found = outcomes(await run_checks(source, environ=environ, parameters=[given]))
    assert {title for title, mark in found.items() if mark != "ok"} == {
        # There is one device.
        "two devices of one claim are prepared, and their container edits agree",
        "two claims are prepared at once, each with its own devices",
    }
    wrong = await run_checks(source, environ=environ, parameters=[{**given, "clock": "fast"}])
    assert not wrong.ok
    assert "clock" in wrong.text


async def test_a_claim_that_plan_refuses_also_alone_says_nothing_about_claims_at_once(tmp_path: Path) -> None:
    report = await check_module(
        tmp_path,
        "choosy",
        "from pydra import *\n"
        "DRIVER = 'choosy.example.com'\n"
        "async def discover(): return Inventory(devices=(Device(name='a'), Device(name='b')))\n"
        "async def plan(claim, held):\n"
        "    if any(one.device == 'b' for one in claim.devices): raise ClaimError('b needs a config of its own')\n"
        "async def prepare(claim): return [one.prepared() for one in claim.devices]\n"
        "async def unprepare(claim, prepared): pass\n",
    )
    assert report.ok, report.text
    skipped = {check.title: check.skipped for check in report.checks if check.mark == "skip"}
    assert skipped["two claims are prepared at once, each with its own devices"] == "b needs a config of its own"


async def test_the_hardware_is_left_alone_on_request(tmp_path: Path) -> None:
    environ = {**ENVIRON, "FAULTY_DIR": str(tmp_path)}
    report = await run_checks(BackendSource(name="faulty", target="faulty"), environ=environ, prepare=False)
    assert "skip" in outcomes(report).values()
    assert not (tmp_path / "journal").exists(), "no claim was shown to it"


async def test_a_backend_that_cannot_connect_says_so(tmp_path: Path) -> None:
    (tmp_path / "absent").touch()
    source = BackendSource(name="unfit", target="unfit:connects")
    environ = {**ENVIRON, "FAULTY_DIR": str(tmp_path)}
    report = await run_checks(source, environ=environ, deadlines=CallDeadlines(connect=30.0, discover=30.0))
    (check,) = report.checks
    (problem,) = check.problems
    assert problem.splitlines()[0] == "connect failed: FileNotFoundError: the driver is not loaded"
    assert problem.splitlines()[-2].strip().startswith("raise FileNotFoundError")


async def test_a_backend_that_hangs_while_it_connects_is_reported_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(
        "import asyncio, time\n"
        "from contextlib import asynccontextmanager\n"
        "@asynccontextmanager\n"
        "async def connect():\n"
        "    await asyncio.to_thread(open_card)\n"
        "    yield\n"
        "def open_card():\n"
        "    time.sleep(1000)\n"
    )
    source = BackendSource(name="stuck", target="stuck:")
    environ = {**ENVIRON, "PYTHONPATH": str(tmp_path)}
    line = f'File "{tmp_path}/stuck.py", line 8 in open_card'
    for seconds in (1, 4, 16, 64):  # on a busy machine the process has not come so far after a second
        report = await run_checks(source, environ=environ, deadlines=CallDeadlines(connect=seconds, discover=30.0))
        assert f"was not ready in time (within {seconds} s)" in report.text
        if line in report.text:
            return
    pytest.fail(report.text)


async def test_a_device_that_is_in_use_is_stepped_over(tmp_path: Path) -> None:
    report = await check_module(
        tmp_path,
        "possessive",
        "from pydra import *\n"
        "DRIVER = 'possessive.example.com'\n"
        "async def discover():\n    return Inventory(devices=(Device(name='a'), Device(name='b')))\n"
        "async def prepare(claim):\n"
        "    for device in claim.devices:\n"
        "        if device.device == 'a':\n            raise DeviceInUse('a', 'uid of-a-killed-check')\n"
        "        if device.device != 'b':\n            raise UnknownDevice(device.device)\n"
        "    return [device.prepared() for device in claim.devices]\n"
        "async def unprepare(claim, prepared):\n    pass\n",
    )
    assert report.ok, report.text
    assert outcomes(report)["prepare answers for each device of the claim"] == "note"
    assert "a is still prepared for claim uid of-a-killed-check" in report.text


async def test_what_the_agent_would_not_find_on_the_node_is_noted(tmp_path: Path) -> None:
    report = await check_module(
        tmp_path,
        "elsewhere",
        "from pydra import *\n"
        "DRIVER = 'elsewhere.example.com'\n"
        "async def discover(): return Inventory(devices=(Device(name='a'),), unreadable=('board 3: no answer',))\n"
        "async def prepare(claim):\n"
        "    if claim.devices[0].device != 'a':\n        raise UnknownDevice('no such device')\n"
        "    edits = ContainerEdits(device_nodes=(DeviceNode(path='/dev/no-such-node'),))\n"
        "    edits = edits.with_mount('/etc/hostname', '/good').with_mount('/etc/hostname', '/bad', options=['ro'])\n"
        "    return [device.prepared(edits) for device in claim.devices]\n"
        "async def unprepare(claim, prepared): pass\n",
    )
    assert report.ok, report.text
    notes = {one.title: one.notes for one in report.checks if one.mark == "note"}
    refused, absent = sorted(notes.pop("its container edits obey CDI's rules"))
    assert refused == "mount /bad: its options ro have neither bind nor rbind; container runtimes refuse such a mount"
    assert absent.startswith("the node has no device node /dev/no-such-node (no such file or directory)")
    assert list(notes.values()) == [("hardware cannot be read: board 3: no answer",)]


async def test_what_a_failing_backend_holds_is_given_back(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("faults: [{call: unprepare, do: raise, count: 2}]")
    environ = {**ENVIRON, "PYDRA_SIM_STATE": str(tmp_path), "PYDRA_SIM_SCENARIO": str(scenario)}
    report = await run_checks(find_backend("sim"), environ=environ)
    assert "a simulated fault" in report.text
    assert list((tmp_path / "active").iterdir()) == []


async def test_a_backend_that_kills_its_process_at_the_start_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "suicide.py").write_text("import os\nos.abort()\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    report = await run_checks(BackendSource(name="suicide", target="suicide:"), environ=environ)
    assert "died of SIGABRT" in report.text
    assert "suicide.py" in report.text, "the stack is there"


def test_a_module_beside_the_caller_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text((TROUBLE / "sloppy.py").read_text())
    monkeypatch.chdir(tmp_path)
    assert check_backend("beside:", prepare=False).checks[0].mark == "ok"


def test_a_module_that_is_not_there_is_said_without_a_traceback() -> None:
    text = check_backend("no_such_module:").text
    assert "there is no module no_such_module" in text
    assert "Traceback" not in text


def test_a_module_or_an_object_leads_to_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYDRA_SIM_STATE", str(tmp_path))
    assert check_backend(pydra_sim, prepare=False).backend == "pydra_sim"


def test_an_object_that_no_other_process_could_import_is_refused() -> None:
    with pytest.raises(SettingsError, match="give module:attribute"):
        check_backend(object())


def test_the_text_shows_each_check_and_its_problems() -> None:
    checks = (
        Check(rule="one-rule", title="one"),
        Check(rule="two-rule", title="two", problems=("first\nsecond", "third")),
        Check(rule="three-rule", title="three", skipped="no device"),
        Check(rule="four-rule", title="four", notes=("advice",)),
        *(Check(rule="more", title="more", skipped="two failed") for _ in range(3)),
    )
    assert Report(backend="x", checks=checks).text.splitlines() == [
        "ok    one",
        "FAIL  two (rule two-rule)",
        "      - first",
        "        second",
        "      - third",
        "note  four",
        "      - advice",
        "skip  three (no device)",
        "skip  3 checks (two failed)",
        "backend x has 2 problems: two-rule",
    ]


async def test_a_backend_that_restores_is_not_called_where_an_agent_has_prepared_claims(tmp_path: Path) -> None:
    record = tmp_path / "run" / "sim.pydra.dev" / "claims" / "uid.json"
    record.parent.mkdir(parents=True)
    record.touch()
    places = {"PYDRA_RECORDS_DIR": str(tmp_path / "run"), "PYDRA_SIM_STATE": str(tmp_path / "hw")}
    report = await run_checks(find_backend("sim"), environ={**ENVIRON, **places})
    *_, last = report.checks
    assert "an agent has prepared claims on this node" in last.skipped
    assert str(record) in last.skipped
    assert not any("discover" in check.title for check in report.checks)


@pytest.mark.parametrize(
    ("plans", "outcome"),
    [
        pytest.param(False, "prepare answers for each device of the claim (b)", id="another device is prepared"),
        pytest.param(True, "checks (an agent has prepared claims on this node (", id="nothing is by one that plans"),
    ],
)
async def test_what_the_claims_of_an_agent_use_is_left_alone(tmp_path: Path, plans: bool, outcome: str) -> None:
    device = AllocatedDevice(request="r", pool="node", device="a-0")
    record = Record(
        claim=Claim(uid="uid", namespace="ns", name="work", devices=(device,)),
        driver="busy.example.com",
        stage=Stage.COMPLETED,
        boot_id="",
    )
    directory = tmp_path / "run" / "busy.example.com" / "claims"
    directory.mkdir(parents=True)
    (directory / "uid.json").write_bytes(build_record(record))
    (tmp_path / "busy.py").write_text(
        "from pydra import *\n"
        "DRIVER = 'busy.example.com'\n"
        "half = (CounterConsumption(counter_set='board', counters={'slots': 1}),)\n"
        "names = {'a': half, 'a-0': half, 'b': ()}\n"
        "async def discover():\n"
        "    return Inventory(devices=tuple(Device(name=n, consumes_counters=c) for n, c in names.items()),\n"
        "        counter_sets=(CounterSet(name='board', counters={'slots': 2}),))\n"
        "async def prepare(claim):\n    return [one.prepared() for one in claim.devices]\n"
        "async def unprepare(claim, prepared):\n    pass\n"
        + ("async def plan(claim, held):\n    return {}\n" if plans else "")
    )
    environ = {**ENVIRON, "PYTHONPATH": str(tmp_path), "PYDRA_RECORDS_DIR": str(tmp_path / "run")}
    report = await run_checks(BackendSource(name="busy", target="busy:"), environ=environ)
    assert report.ok, report.text
    assert outcome in report.text
