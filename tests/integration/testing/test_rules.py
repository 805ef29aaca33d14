"""Each conformance rule is proved by a backend that breaks it, and is not reported for one that breaks others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pydra.backends.discovery import BackendSource
from pydra.backends.timeouts import CallDeadlines, ProcessTimeouts
from pydra.testing import Report, run_checks
from pydra.testing.rules import Rule
from tests.integration.backends.harness import ENVIRON

GOOD = """
import asyncio, os, threading, time
from typing import Any
import msgspec
from pydra import *

DRIVER = "proof.example.com"
DISK = os.environ["PROOF_DISK"]

async def discover():
    return Inventory(devices=(Device(name="a"), Device(name="b")))

async def prepare(claim):
    if claim.devices[0].device not in "ab":
        raise UnknownDevice("no such device")
    return [one.prepared() for one in claim.devices]

async def unprepare(claim, prepared):
    pass

good = prepare
def known(path): return os.path.exists(f"{DISK}/{path}")
def remember(path): open(f"{DISK}/{path}", "w").close()
"""


class Proof(msgspec.Struct, frozen=True):
    """What is different from the good backend."""

    code: str = ""
    environ: dict[str, str] = {}
    records: bool = False
    says: str = ""


def config(fields: str) -> str:
    head = f"class Mode(msgspec.Struct, frozen=True{', array_like=True' if fields == 'array' else ''}):\n"
    body = "    n: int = 0" if fields == "array" else fields
    return f"{head}{body}\nCONFIG_TYPES = {{'proof.example.com/v1/Mode': Mode}}"


SETTINGS = """
import contextlib, sys
class Settings(msgspec.Struct, frozen=True):
    level: int = 0
SETTINGS_TYPE = Settings
@contextlib.asynccontextmanager
async def connect(settings):
    yield sys.modules[__name__]
"""

PROOFS = {
    Rule.CONNECT: Proof("del discover", says="discover is missing"),
    Rule.CALLED: Proof("async def restore(held): pass", records=True),
    Rule.DRIVER: Proof("DRIVER = ''", says="DRIVER is absent"),
    Rule.NAMES: Proof(
        "async def wait_change(): pass\nCONFIG_TYPE = {}\nasync def watch(): pass\nLIMIT = 3",
        says="      - wait_change means nothing to the agent; did you mean wait_changed?\n"
        "      - CONFIG_TYPE means nothing to the agent; did you mean CONFIG_TYPES?\n"
        "ok ",
    ),
    Rule.SETTINGS: Proof(SETTINGS, environ={"PYDRA_PROOF_LEVEL": "high"}, says="high"),
    Rule.REASONS: Proof(
        "class Busy(ClaimError): reason = 'BoardBusy'\nclass Odd(ClaimError): reason = 'the board is busy'",
        says="note  its errors have reasons that Events and metrics can take (BoardBusy)\n"
        "      - Odd.reason is 'the board is busy'; Events and metrics use pydra's reason instead",
    ),
    Rule.DISCOVER: Proof(
        "async def discover():\n"
        "    wrong = [Device(name=f'B{n}') for n in range(64)]\n"
        "    return Inventory(devices=(Device(name='a'), *wrong, Device(name='b')))",
        says="63 more like this",
    ),
    Rule.STABLE: Proof(
        "from itertools import count\n"
        "seen = count()\n"
        "async def discover():\n"
        "    n = next(seen)\n"
        "    return Inventory(devices=tuple(Device(name=f'a-{i}', attributes={'seen': n + i}) for i in range(64)))\n"
        "async def prepare(claim):\n"
        "    if claim.devices[0].device.startswith('pydra'): raise UnknownDevice('no such device')\n"
        "    return [one.prepared() for one in claim.devices]",
        says="device a-0: attributes: seen changed from 0 to 1 (and 63 more like this: a-1, a-10 ... a-9)",
    ),
    Rule.COUNTERS: Proof(
        "async def discover():\n"
        "    took = (CounterConsumption(counter_set='all', counters={'slots': 3}),)\n"
        "    return Inventory(devices=(Device(name='a'), Device(name='b', consumes_counters=took)),\n"
        "        counter_sets=(CounterSet(name='all', counters={'slots': 2}),))",
        says="device b needs 3 of counter slots of set all, which has 2",
    ),
    Rule.IDLE: Proof("async def wait_changed(): pass", says="3 times in a row"),
    Rule.MEASURE: Proof(
        "async def measure(): return [Sample(name='heat', value=n, device='a') for n in (1, 2)]",
        says="sample heat is there twice with the labels device=a; the agent leaves it out",
    ),
    Rule.CONFIG: Proof(config("array"), says="does not name the field"),
    Rule.CONFIG_TYPES: Proof(config("    n: Any = None"), says="Mode: n takes a value of any type"),
    Rule.CONFIG_RULES: Proof(
        config("    n: int = 1\n    def __post_init__(self): self.n or {}[0]"),
        says="Mode with n 0: $: cannot be checked, the backend's own rules fail with KeyError: 0 (proof.py:",
    ),
    Rule.UNKNOWN: Proof("async def prepare(claim): return [one.prepared() for one in claim.devices]"),
    Rule.UNPREPARE_NOTHING: Proof(
        "async def prepare(claim):\n"
        "    done = await good(claim)\n"
        "    remember('used')\n"
        "    return done\n"
        "async def unprepare(claim, prepared):\n"
        "    if not known('used'): raise RuntimeError('nothing was prepared')"
    ),
    Rule.PREPARE: Proof(
        "async def prepare(claim):\n    return [one.prepared() for one in await good(claim)]", says="AttributeError"
    ),
    Rule.EDITS: Proof(
        "async def prepare(claim):\n"
        "    await good(claim)\n"
        "    return [one.prepared(ContainerEdits(env={'': 'x'})) for one in claim.devices]"
    ),
    Rule.PREPARE_AGAIN: Proof(
        "calls = {}\n"
        "async def prepare(claim):\n"
        "    await good(claim)\n"
        "    calls[claim.uid] = calls.get(claim.uid, 0) + 1\n"
        "    return [one.prepared(state=calls[claim.uid]) for one in claim.devices]",
        says="prepare: $[0].state was 1, then 2\n",
    ),
    Rule.PREPARE_AFTER_CRASH: Proof(
        "async def prepare(claim):\n"
        "    await good(claim)\n"
        "    return [one.prepared(state=os.getpid()) for one in claim.devices]"
    ),
    Rule.UNPREPARE: Proof("async def unprepare(claim, prepared):\n    if prepared: raise RuntimeError('no')"),
    Rule.UNDONE: Proof(
        "class Switch(msgspec.Struct, frozen=True, tag='switch'):\n"
        "    before: bool\n"
        "    key = 'on'\n"
        "class Load(msgspec.Struct, frozen=True, tag='load'): pass\n"
        "STEP_TYPES = (Switch, Load)\n"
        "async def plan(claim, held):\n"
        "    await good(claim)\n"
        "    return Plan(steps=[Switch(before=known('switch')), Load()])\n"
        "async def apply(step, result, claim): await asyncio.to_thread(remember, step.__struct_config__.tag)\n"
        "async def undo(step, result, claim): pass",
        says="undo has not restored what step switch found: $.before was False, then True, when the claim was planned "
        "again\n      - undo of step load changes nothing that Python shows; apply did: open /",
    ),
    Rule.UNPREPARE_AGAIN: Proof(
        "ended = set()\n"
        "async def unprepare(claim, prepared):\n"
        "    if claim.uid in ended: raise RuntimeError('it has ended')\n"
        "    ended.add(claim.uid)"
    ),
    Rule.UNPREPARE_AFTER_CRASH: Proof(
        "async def prepare(claim):\n"
        "    remember(claim.uid)\n"
        "    await asyncio.to_thread(time.sleep, 0)\n"
        "    done = await good(claim)\n"
        "    os.unlink(f'{DISK}/{claim.uid}')\n"
        "    return done\n"
        "mine = prepare\n"
        "async def prepare(claim):\n"
        "    try: return await mine(claim)\n"
        "    except BaseException:\n"
        "        os.unlink(f'{DISK}/{claim.uid}')\n"
        "        raise\n"
        "async def unprepare(claim, prepared):\n"
        "    if known(claim.uid): raise RuntimeError('half done')",
        says="after a crash at wait 1 of 1 in prepare: backend proof: unprepare failed: RuntimeError: half done",
    ),
    Rule.UNPREPARE_CRASH: Proof(
        "async def unprepare(claim, prepared):\n"
        "    if known(claim.uid): raise RuntimeError('half undone')\n"
        "    remember(claim.uid)\n"
        "    try: await asyncio.sleep(0)\n"
        "    finally: os.unlink(f'{DISK}/{claim.uid}')",
        says="half undone",
    ),
    Rule.TOGETHER: Proof(
        "async def prepare(claim):\n"
        "    await good(claim)\n"
        "    return [one.prepared(ContainerEdits(env={'CARD': one.device})) for one in claim.devices]",
        says='CARD: device a (request device) sets "a", device b (request device) sets "b"; give both the same value',
    ),
    Rule.SHARED: Proof(
        "slot = [CounterConsumption(counter_set='board', counters={'slots': 1})]\n"
        "async def discover():\n"
        "    devices = [Device(name=name, consumes_counters=slot) for name in 'ab']\n"
        "    return Inventory(devices=devices, counter_sets=[CounterSet(name='board', counters={'slots': 2})])\n"
        "class Switch(msgspec.Struct, frozen=True, tag='switch'): pass\n"
        "STEP_TYPES = (Switch,)\n"
        "async def plan(claim, held):\n"
        "    await good(claim)\n"
        "    return Plan(steps=[Switch()])\n"
        "async def apply(step, result, claim):\n"
        "    if known('on'): raise ClaimError('it is on')\n"
        "    remember('on')\n"
        "async def undo(step, result, claim):\n"
        "    if known('on'): os.unlink(f'{DISK}/on')",
        says="apply of step switch fails for a claim while another one has the step: it is on",
    ),
    Rule.CONCURRENT: Proof(
        "busy = False\n"
        "async def prepare(claim):\n"
        "    global busy\n"
        "    if busy: raise ClaimError('the card is busy')\n"
        "    busy = True\n"
        "    try: await asyncio.sleep(0.05)\n"
        "    finally: busy = False\n"
        "    return await good(claim)",
        says="the card is busy",
    ),
    Rule.CANCEL: Proof(
        "busy = set()\n"
        "async def prepare(claim):\n"
        "    name = claim.devices[0].device\n"
        "    if name in busy: raise ClaimError('the card is busy')\n"
        "    busy.add(name)\n"
        "    await asyncio.sleep(0)\n"
        "    busy.discard(name)\n"
        "    return await good(claim)",
        says="the card is busy",
    ),
    Rule.DEADLINE: Proof(
        "async def prepare(claim):\n"
        "    try: await asyncio.sleep(0)\n"
        "    except asyncio.CancelledError: await asyncio.sleep(1.2)\n"
        "    return await good(claim)",
        says="s after it was cancelled; at most 1 s are allowed",
    ),
    Rule.PLAN: Proof(
        "async def plan(claim, held):\n    await asyncio.to_thread(remember, claim.uid)",
        says="plan must change nothing, and did: open /",
    ),
    Rule.PLAN_CRASH: Proof(
        "async def plan(claim, held): return 1\n"
        "async def prepare(claim):\n"
        "    remember(claim.uid)\n"
        "    return await good(claim)\n"
        "async def unprepare(claim, prepared):\n"
        "    if claim.plan and not known(claim.uid): raise RuntimeError('nothing was begun')",
        says="nothing was begun",
    ),
    Rule.RESTORE: Proof(
        "async def restore(held):\n    if held: raise RuntimeError('an unknown claim')", says="an unknown claim"
    ),
    Rule.HINTS: Proof("async def wait_changed(): raise RuntimeError('no udev')", says="no udev"),
    Rule.BLOCKING: Proof("async def measure():\n    time.sleep(3)\n    return []", says=", in measure"),
    Rule.AWAITED: Proof(
        "async def power_up(): pass\nasync def measure():\n    power_up()\n    return []",
        says="coroutine 'power_up' was never awaited: ",
    ),
    Rule.FORKED: Proof(
        "async def measure():\n    os.fork()\n    return []",
        says="measure came back in a process that it had forked: call os._exit there, or start a program instead\n",
    ),
    Rule.LEAKED_TASKS: Proof(
        "left = []\n"
        "async def prepare(claim):\n"
        "    left.append(asyncio.create_task(asyncio.Event().wait(), name='poller'))\n"
        "    return await good(claim)",
        says="poller (Event.wait)",
    ),
    Rule.LEAKED_THREADS: Proof(
        "async def discover():\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "    return Inventory(devices=(Device(name='a'), Device(name='b')))",
        says="discover, done several times, left ",
    ),
    Rule.LEAKED_DESCRIPTORS: Proof(
        "async def unprepare(claim, prepared):\n    os.open('/dev/null', os.O_RDONLY)", says="/dev/null"
    ),
}


async def check(proof: Proof, directory: Path, **options: Any) -> Report:
    (directory / "proof.py").write_text(GOOD + proof.code + "\n")
    (directory / "disk").mkdir(exist_ok=True)
    records = directory / "run"
    if proof.records:
        (records / "proof.example.com" / "claims").mkdir(parents=True)
        (records / "proof.example.com" / "claims" / "uid.json").touch()
    places = {"PYTHONPATH": str(directory), "PROOF_DISK": str(directory / "disk"), "PYDRA_RECORDS_DIR": str(records)}
    source, defaults = BackendSource(name="proof", target="proof:"), {"timeouts": ProcessTimeouts(cancel_timeout=1.0)}
    return await run_checks(source, environ={**ENVIRON, **places, **proof.environ}, **defaults | options)


STEPS = """
from itertools import count
seen = count()
class Load(msgspec.Struct, frozen=True, tag="load"):
    size: int
STEP_TYPES = (Load,)
del unprepare
async def plan(claim, held): return Plan(steps=[Load(size=7), Load(size={size})])
async def apply(step, result, claim): pass
async def undo(step, result, claim): pass
async def prepare(claim):
    {leak}
    return await good(claim)
"""


async def test_a_plan_that_changes_is_reported_by_its_steps(tmp_path: Path) -> None:
    report = await check(Proof(STEPS.format(size="next(seen)", leak="")), tmp_path)
    (said,) = (check.problems[0] for check in report.checks if check.rule == Rule.PLAN.value)
    assert said.startswith("plan: steps[1] was {'type': 'load', 'size': "), said
    assert "Claim(" not in said


BOARDS = """
def take(n, *slots):
    return [CounterConsumption(counter_set=f'board-{n}', counters={f'slot-{one}': 1 for one in slots})]
async def discover():
    sets = [CounterSet(name=f'board-{n}', counters={'slot-0': 1, 'slot-1': 1}) for n in 'ab']
    boards = [Device(name=n, consumes_counters=take(n, 0, 1)) for n in 'ab']
    slots = [Device(name=f'{n}-{one}', consumes_counters=take(n, one)) for n in 'ab' for one in (0, 1)]
    return Inventory(counter_sets=sets, devices=[*boards, *slots])
async def plan(claim, held): return Plan(steps=[Load(size=ord(one.device[0])) for one in claim.devices])
async def prepare(claim): return [one.prepared() for one in claim.devices]
"""


async def test_two_parts_of_a_board_are_asked_for_in_one_claim(tmp_path: Path) -> None:
    report = await check(Proof(STEPS.format(size=8, leak="") + BOARDS), tmp_path)
    assert [check.rule for check in report.checks if check.problems] == [Rule.TOGETHER.value], report.text
    assert "steps[1] (load) has the same key as a step before it; plan each change once" in report.text


async def test_a_step_that_json_cannot_hold_is_reported_by_its_field(tmp_path: Path) -> None:
    report = await check(Proof(STEPS.format(size="os", leak="")), tmp_path)
    assert "plan: $.steps[1].size is of type module, which is not JSON" in report.text, report.text


async def test_what_a_backend_without_unprepare_leaves_open_is_reported(tmp_path: Path) -> None:
    report = await check(Proof(STEPS.format(size=8, leak="os.open('/dev/null', os.O_RDONLY)")), tmp_path)
    assert [check.rule for check in report.checks if check.problems] == [Rule.LEAKED_DESCRIPTORS.value], report.text


async def test_an_answer_with_something_of_a_claim_beside_it_is_reported(tmp_path: Path) -> None:
    code = """
async def prepare(claim):
    global last
    last = claim
    await asyncio.sleep(0.2)
    await good(claim)
    return [one.prepared(ContainerEdits(env={"CARD_" + one.device: last.uid})) for one in claim.devices]
"""
    report = await check(Proof(code), tmp_path)
    assert [check.rule for check in report.checks if check.problems] == [Rule.CONCURRENT.value], report.text
    assert "prepare beside another claim: $[0].edits.env.CARD_a was " in report.text


async def test_a_thread_that_goes_on_after_its_call_was_cancelled_is_reported(tmp_path: Path) -> None:
    code = """
async def prepare(claim):
    await asyncio.to_thread(time.sleep, 1.5 if claim.name.startswith("conformance-cancel") else 0)
    return await good(claim)
"""
    report = await check(Proof(code), tmp_path)
    assert [check.rule for check in report.checks if check.problems] == [Rule.DEADLINE.value], report.text


async def test_a_device_is_asked_for_as_the_scheduler_gives_it_to_claims(tmp_path: Path) -> None:
    code = """
async def discover():
    taint = Taint(key="proof.example.com/old-firmware", effect=TaintEffect.NONE)
    memory = Capacity("8Gi", RequestPolicy(default="2Gi"))
    return Inventory(devices=(
        Device(name="a", taints=(taint,), allow_multiple_allocations=True, capacity={"memory": memory}),
    ))
async def prepare(claim):
    for one in claim.devices:
        if one.consumed_capacity["memory"] != "2Gi" or not one.share_id: raise ValueError(one)
    return await good(claim)
"""
    report = await check(Proof(code), tmp_path)
    assert report.ok, report.text
    assert "ok    prepare answers for each device of the claim" in report.text


async def test_the_device_that_is_named_is_prepared_and_those_of_other_kinds_are_told(tmp_path: Path) -> None:
    code = """
async def discover():
    kinds = {"a": "board", "b": "board", "a-0": "slot"}
    return Inventory(devices=tuple(Device(name=name, attributes={"type": kind}) for name, kind in kinds.items()))
async def prepare(claim):
    if claim.devices[0].device == "a-0": raise ValueError("slots are not implemented")
    return await good(claim)
"""
    report = await check(Proof(code), tmp_path)
    assert report.ok, report.text
    first = (
        "prepare answers for each device of the claim (a)\n      - devices of other kinds are not prepared: a-0; check"
    )
    assert first in report.text, report.text
    named = await check(Proof(code), tmp_path, device="a-0")
    assert "slots are not implemented" in named.problems[0], named.text
    absent = await check(Proof(code), tmp_path, device="a-1")
    assert "no healthy device is called a-1; there are: a, b, a-0" in absent.problems[0], absent.text


async def test_a_backend_of_which_nothing_could_be_prepared_is_not_said_to_keep_the_contract(tmp_path: Path) -> None:
    code = """
async def discover():
    health = [Health(status=HealthStatus.UNHEALTHY, message=text) for text in ("broken", "hot")]
    return Inventory(devices=tuple(Device(name=name, health=one) for name, one in zip("ab", health)))
"""
    report = await check(Proof(code), tmp_path)
    assert report.ok
    wanted = "keeps the contract as far as it was checked: nothing was prepared (no healthy device; a: broken)"
    assert report.verdict == f"backend proof {wanted}"
    named = await check(Proof(code), tmp_path, device="b")
    assert "(no healthy device is called b; b: hot)" in named.text


async def test_a_process_that_does_not_run_for_a_while_does_not_block_its_event_loop(tmp_path: Path) -> None:
    """As on a machine with too much to do, whose kernel runs others meanwhile."""
    stop = "kill -STOP $0; sleep 1.5; kill -CONT $0"
    code = f"""
async def measure():
    process = await asyncio.create_subprocess_exec("sh", "-c", "{stop}", str(os.getpid()))
    await process.wait()
    return []
"""
    report = await check(Proof(code), tmp_path)
    assert {check.rule for check in report.checks if check.mark != "ok"} == set(), report.text


async def test_edits_that_no_runtime_takes_are_reported_one_by_one(tmp_path: Path) -> None:
    code = """
async def prepare(claim):
    await good(claim)
    return [one.prepared(ContainerEdits().with_mount("lib").with_env("A=", "b")) for one in claim.devices]
"""
    report = await check(Proof(code), tmp_path)
    (edits,) = (check for check in report.checks if check.rule == Rule.EDITS.value)
    assert [one.partition(": ")[0] for one in edits.problems] == ["device a (request device)"] * 3


async def test_a_call_that_hangs_is_reported_with_the_line_of_the_backend(tmp_path: Path) -> None:
    code = "async def discover():\n    await asyncio.Event().wait()  # for ever"
    report = await check(Proof(code), tmp_path, deadlines=CallDeadlines(connect=30.0, discover=0.5))
    assert "it was waiting in wait (asyncio/locks.py" in report.text
    assert f"called from discover ({tmp_path.name}/proof.py:" in report.text
    assert "conformance_main" not in report.text


async def test_wait_changed_that_blocks_the_event_loop_is_named_and_no_call_beside_it(tmp_path: Path) -> None:
    proof = Proof("async def wait_changed(): time.sleep(3600)")
    report = await check(proof, tmp_path, timeouts=ProcessTimeouts(ping_interval=0.2, ping_timeout=2.0))
    assert [one.rule for one in report.checks if one.problems] == [Rule.HINTS.value, Rule.BLOCKING.value], report.text
    assert report.text.count("skip") == 1
    assert " checks (wait_changed ended the process)" in report.text


TOGETHER = (
    (Rule.CONNECT,),
    (Rule.CALLED,),
    (Rule.SETTINGS,),
    (Rule.RESTORE, Rule.DRIVER, Rule.NAMES),
    (Rule.DISCOVER, Rule.CONFIG, Rule.PREPARE),
    (Rule.STABLE, Rule.UNPREPARE_CRASH),
    (Rule.COUNTERS, Rule.EDITS, Rule.LEAKED_DESCRIPTORS),
    (Rule.UNKNOWN, Rule.MEASURE, Rule.UNPREPARE_AGAIN),
    (Rule.LEAKED_THREADS, Rule.CONFIG_TYPES, Rule.PREPARE_AGAIN, Rule.UNPREPARE),
    (Rule.CONFIG_RULES, Rule.TOGETHER, Rule.HINTS),
    (Rule.PREPARE_AFTER_CRASH, Rule.BLOCKING),
    (Rule.IDLE, Rule.CONCURRENT, Rule.PLAN),
    (Rule.LEAKED_TASKS, Rule.AWAITED),
    (Rule.FORKED, Rule.UNDONE),
    (Rule.CANCEL,),
    (Rule.DEADLINE,),
    (Rule.UNPREPARE_NOTHING,),
    (Rule.UNPREPARE_AFTER_CRASH,),
    (Rule.PLAN_CRASH, Rule.REASONS),
    (Rule.SHARED,),
)
"""One backend can break several rules with different functions."""


@pytest.mark.parametrize("broken", TOGETHER, ids=lambda broken: " ".join(rule.value for rule in broken))
async def test_what_breaks_a_rule_is_reported_for_that_rule_and_no_other(
    broken: tuple[Rule, ...], tmp_path: Path
) -> None:
    proofs = [PROOFS[rule] for rule in broken]
    proof = Proof(
        "\n".join(one.code for one in proofs),
        environ={name: text for one in proofs for name, text in one.environ.items()},
        records=any(one.records for one in proofs),
    )
    report = await check(proof, tmp_path)
    if broken == (Rule.CALLED,):
        found = {check.rule for check in report.checks if check.skipped}
    else:
        found = {check.rule for check in report.checks if check.problems or check.notes}
    assert found == {rule.value for rule in broken}, report.text
    assert [one.says for one in proofs if one.says not in report.text] == [], report.text


def test_each_rule_is_broken_once() -> None:
    assert sorted(rule.value for broken in TOGETHER for rule in broken) == sorted(rule.value for rule in Rule)
