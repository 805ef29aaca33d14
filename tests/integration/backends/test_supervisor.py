"""A backend may raise, hang, lie or die: it costs its own call, and is said in words."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from pydra.backends.discovery import BackendSource
from pydra.backends.supervisor_events import (
    AnswerRejected,
    BackendEnded,
    BackendEvent,
    BackendReady,
    BackendState,
    Trouble,
)
from pydra.backends.timeouts import CallDeadlines, RestartPolicy
from pydra.backends.wire import Method
from pydra.claim import OpaqueConfig
from pydra.devices import Capacity, Device, Inventory, Sample
from pydra.errors import (
    BackendDied,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ClaimError,
    ClaimQuarantined,
    ContractError,
    InvalidConfig,
    TerminalError,
)
from tests.integration.backends.harness import (
    ENVIRON,
    SHORT_TIMEOUTS,
    SOURCE,
    TIMEOUTS,
    claim,
    find_troubles,
    supervised,
    until,
)


async def test_a_backend_is_known_and_called_in_a_process_of_its_own() -> None:
    async with supervised() as backend:
        facts = await backend.wait_ready()
        assert (facts.name, facts.driver, facts.version) == ("faulty", "faulty.example.com", "1.0")
        assert facts.config_kinds == ("faulty.example.com/v1/Sharing",)
        assert await backend.discover() == Inventory(devices=(Device(name="a", capacity={"memory": Capacity("80Gi")}),))
        assert await backend.measure() == (Sample(name="temperature_celsius", value=41.5, device="a"),)
        (prepared,) = await backend.prepare(claim("ok"))
        assert prepared.state == {"n": 1}
        assert prepared.edits.env["PID"] == str(backend.statistics().pid) != str(os.getpid())
        await backend.unprepare(claim("ok"), (prepared,))


async def test_a_config_arrives_decoded_and_a_wrong_one_is_the_claims_fault_which_undoing_does_not_mind(
    tmp_path: Path,
) -> None:
    kind = {"apiVersion": "faulty.example.com/v1", "kind": "Sharing"}
    wrong, right = (
        OpaqueConfig(source="FromClaim", position="config[0]", parameters={**kind, **fields})
        for fields in ({"replica": "4"}, {"replicas": 4})
    )
    async with supervised(tmp_path) as backend:
        with pytest.raises(InvalidConfig) as caught:
            await backend.prepare(claim("ok", "u1", wrong))
        await backend.unprepare(claim("ok", "u1", wrong), ())
        assert (tmp_path / "journal").read_text() == "unprepare u1 0\n"
        (prepared,) = await backend.prepare(claim("ok", "u2", right))
    (problem,) = caught.value.problems
    assert problem == 'config[0]: $.replica: unknown field (did you mean "replicas"?), allowed: replicas'
    assert prepared.edits.env["REPLICAS"] == "4"


WRONG: list[tuple[str, type[Exception], str]] = [
    ("raise", BackendError, "backend faulty: prepare failed: RuntimeError: no such register"),
    ("raise-claim-error", ClaimError, "the device is held by a process"),
    ("raise-terminal", TerminalError, "this model cannot be partitioned"),
    ("sys-exit", BackendError, "backend faulty: prepare failed: SystemExit: a library gave up"),
    ("allocate", BackendError, "backend faulty: prepare failed: MemoryError"),
    ("answer-none", ContractError, "prepare is a value of type dict, not a list or tuple of pydra.PreparedDevice"),
    (
        "answer-wrong-devices",
        ContractError,
        "device another of pool node for request gpu, which the claim does not",
    ),
    (
        "answer-wrong-types",
        ContractError,
        "prepare: $[0].edits.env.A: found 1, allowed: a string; prepare: $[0].edits",
    ),
    ("answer-unserialisable", ContractError, "prepare: $[0] (answer-unserialisable).state is of type object, which"),
    ("answer-huge", ContractError, "prepare answered too much: a message of"),
]


async def test_what_a_call_does_wrong_fails_that_call_only() -> None:
    """An answer to no call fails none, and is reported."""
    events: list[BackendEvent] = []
    async with supervised(events=events) as backend:
        before = await backend.wait_ready(), backend.statistics().pid
        for device, error, text in WRONG:
            with pytest.raises(error, match=re.escape(text)) as caught:
                await backend.prepare(claim(device, device))
            assert type(caught.value) is error, device
            assert (await backend.wait_ready(), backend.statistics().pid) == before, device
        assert await backend.prepare(claim("answer-stranger"))
        assert await backend.prepare(claim("ok"))
    *_, rejected = (event for event in events if isinstance(event, AnswerRejected))
    assert rejected.violations == ("an answer to call 987654, which is not in flight",)


ENDS: list[tuple[str, type[Exception], str, str]] = [
    ("segfault", BackendDied, "died of SIGSEGV at string_at (ctypes/__init__.py:", "SIGSEGV"),
    ("abort", BackendDied, "died of SIGABRT at do_abort (trouble/faulty.py:", "SIGABRT"),
    ("exit", BackendDied, "exited with status 7 during prepare of claim ns/c-exit", "exit"),
    ("terminate", BackendDied, "died of SIGTERM during prepare of claim ns/c-terminate", "SIGTERM"),
    ("garble", ContractError, "was killed because it broke the protocol (a frame claims 4294967295", "exit"),
    ("hang-gil", BackendTimeout, "prepare timed out after", "hang"),
    ("hang-loop", BackendTimeout, "prepare timed out after", "hang"),
]


async def test_each_end_of_the_process_is_diagnosed_and_repaired() -> None:
    events: list[BackendEvent] = []
    async with supervised(timeouts=SHORT_TIMEOUTS, events=events) as backend:
        await backend.wait_ready()
        for device, error, text, how in ENDS:
            events.clear()
            with pytest.raises(error, match=re.escape(text)) as caught:
                await backend.prepare(claim(device, device))
            assert type(caught.value) is error, device
            assert await backend.prepare(claim("ok", f"after-{device}")), device
            end, again = events
            assert isinstance(again, BackendReady), device
            assert isinstance(end, BackendEnded), device
            assert end.diagnosis.how == how, device
            assert f"claim ns/c-{device}" in end.diagnosis.line, device
            assert [call.claim for call in end.calls if call.claim] == [f"ns/c-{device}"]
            if device.startswith("hang"):
                assert f"in do_{device.replace('-', '_')}" in end.diagnosis.report


async def test_a_call_past_its_deadline_is_cancelled_and_shows_where_it_waited() -> None:
    async with supervised(seconds=0.3) as backend:
        await backend.wait_ready()
        pid = backend.statistics().pid
        with pytest.raises(BackendTimeout) as caught:
            await backend.prepare(claim("hang"))
        assert re.fullmatch(
            r"backend faulty: prepare timed out after 0\.3 s; it was waiting in wait \(asyncio/locks\.py:\d+\) "
            r"called from do_hang \(trouble/faulty\.py:\d+\)",
            str(caught.value),
        )
        assert "in do_hang" in caught.value.details
        with pytest.raises(BackendTimeout, match=r"^backend faulty: prepare timed out before it began$") as caught:
            await backend.prepare(claim("hang"), until=time.monotonic() - 3)
        assert not caught.value.reached_backend
        assert backend.statistics().pid == pid


WHERE = {
    "hang-in-thread": "_sleep_in_thread (trouble/faulty.py",
    "hang-stubborn": "wait (asyncio/locks.py",
    "hang-loop": "do_hang_loop (trouble/faulty.py",
    "hang-gil": "do_hang_gil (trouble/faulty.py",
}


async def test_a_call_that_cannot_be_cancelled_costs_the_process() -> None:
    events: list[BackendEvent] = []
    async with supervised(timeouts=replace(TIMEOUTS, cancel_timeout=0.2), events=events) as backend:
        await backend.wait_ready()
        for device, where in WHERE.items():
            events.clear()
            with pytest.raises(BackendTimeout) as caught:
                await backend.prepare(claim(device, device), until=anyio.current_time() + 0.3)
            assert f"it was waiting in {where}" in str(caught.value)
            assert "faulty.py" in caught.value.details, device
            await until(lambda: backend.statistics().state is BackendState.READY)
            assert await backend.prepare(claim("ok", f"after-{device}")), device
            assert [type(event) for event in events] == [BackendEnded, BackendReady], device


async def test_a_call_that_could_not_be_cancelled_because_another_blocked_the_loop_is_not_at_fault() -> None:
    once = RestartPolicy(first=0.01, cap=0.05, crashes=1)
    errors: dict[str, Exception] = {}
    async with supervised(timeouts=replace(TIMEOUTS, cancel_timeout=0.2, ping_timeout=1.0), restarts=once) as backend:
        await backend.wait_ready()

        async def prepare(device: str, uid: str, seconds: float) -> None:
            try:
                await backend.prepare(claim(device, uid), until=anyio.current_time() + seconds)
            except (BackendError, ClaimQuarantined) as error:
                errors[uid] = error

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prepare, "hang", "patient", 0.5)
            await until(lambda: bool(backend.statistics().in_flight))
            tasks.start_soon(prepare, "hang-loop", "blocker", 20.0)
        assert [one.uid for one in backend.quarantined()] == ["blocker"]
    assert not isinstance(errors["patient"], ClaimQuarantined)


async def test_another_version_that_the_driver_was_not_set_up_for_is_refused_until_the_agent_restarts() -> None:
    upgraded = BackendSource(name="faulty", target="tuned:", distribution="pydra-faulty", version="2.0")
    async with supervised(refresh=lambda source: upgraded) as backend:
        await backend.wait_ready()
        with pytest.raises(BackendDied):
            await backend.prepare(claim("segfault"))
        await until(lambda: backend.statistics().state is BackendState.REFUSED)
        with pytest.raises(ContractError) as caught:
            await backend.prepare(claim("ok", "u2"))
    assert "DRIVER was faulty.example.com and is tuned.example.com in version 2.0, installed meanwhile" in str(
        caught.value
    )


async def test_a_backend_whose_files_are_just_being_replaced_is_started_once_they_are_there() -> None:
    events: list[BackendEvent] = []
    incomplete = iter([replace(SOURCE, target="not_there_yet:")])
    async with supervised(refresh=lambda _: next(incomplete, SOURCE), events=events) as backend:
        with pytest.raises(BackendDied):
            await backend.prepare(claim("segfault"))
        assert await backend.prepare(claim("ok", "u2"))
    (trouble,) = find_troubles(events, Trouble.START)
    assert trouble.message == "there is no module not_there_yet on the module path; is it installed, or in PYTHONPATH?"


async def _survive(backend: Any, uid: str) -> None:
    """Have a call of the claim time out in a process that goes on."""
    while True:
        try:
            await backend.prepare(claim("hang", uid), until=anyio.current_time() + 0.3)
        except BackendTimeout:
            return
        except BackendUnavailable:  # its process is still starting
            continue


async def test_claims_that_crashed_once_and_now_hang_do_not_keep_others_waiting(tmp_path: Path) -> None:
    async with supervised(tmp_path) as backend:
        for uid in ("a", "b"):
            with pytest.raises(BackendDied):
                await backend.prepare(claim("segfault-twice-then-hang", uid))
            await _survive(backend, uid)
        async with anyio.create_task_group() as tasks:
            for uid in ("a", "b"):
                tasks.start_soon(backend.prepare, claim("segfault-twice-then-hang", uid))
            await until(lambda: len([one for one in backend.statistics().in_flight if one.uid]) == 2)
            assert await backend.prepare(claim("ok", "good"))
            tasks.cancel_scope.cancel()


async def test_a_suspect_is_tried_without_wait_changed_beside_it(tmp_path: Path) -> None:
    async with supervised(tmp_path) as backend:
        await backend.discover()
        with pytest.raises(BackendDied):
            await backend.prepare(claim("exit-beside-hints"))
        await backend.discover()
        await until(lambda: any(one.method is Method.WAIT_CHANGED for one in backend.statistics().in_flight))
        assert await backend.prepare(claim("exit-beside-hints"))


async def test_wait_changed_that_blocks_the_event_loop_fails_and_the_call_beside_it_does_not(tmp_path: Path) -> None:
    (tmp_path / "hints").write_text("hang-loop")
    events: list[BackendEvent] = []
    async with supervised(tmp_path, timeouts=SHORT_TIMEOUTS, events=events) as backend:
        await backend.discover()
        await until(lambda: any(one.method is Method.WAIT_CHANGED for one in backend.statistics().in_flight))
        assert await backend.prepare(claim("ok"))
    (failed,) = find_troubles(events, Trouble.HINTS)
    assert re.search(
        r"its event loop was blocked \(for .* s\) at do_hang_loop .* during wait_changed \(.* s\)$", failed.message
    )


async def test_a_process_that_only_lost_its_connection_is_not_reported_as_killed() -> None:
    async with supervised() as backend:
        with pytest.raises(BackendDied, match="its process closed its connection"):
            await backend.prepare(claim("close-all"))


async def test_programs_that_a_process_has_started_end_with_it_and_daemons_go_on(tmp_path: Path) -> None:
    async with supervised(tmp_path) as backend:
        with pytest.raises(BackendDied):
            await backend.prepare(claim("run-programs-and-segfault"))
        daemon = int((tmp_path / "daemon").read_text())
        try:
            await until(lambda: not _runs(int((tmp_path / "tool").read_text())))
            assert _runs(daemon)
        finally:
            os.kill(daemon, signal.SIGKILL)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_slow_call_is_reported_while_it_runs_with_its_place_and_status(tmp_path: Path) -> None:
    (tmp_path / "discover").write_text("hang-in-thread")
    events: list[BackendEvent] = []
    timeouts = replace(TIMEOUTS, slow_call=0.1)
    async with supervised(tmp_path, timeouts=timeouts, events=events) as backend, anyio.create_task_group() as tasks:
        tasks.start_soon(backend.discover)
        await until(lambda: bool(find_troubles(events, Trouble.SLOW)))
        tasks.cancel_scope.cancel()
    (slow,) = find_troubles(events, Trouble.SLOW)
    assert re.fullmatch(
        r"discover has been running for 0 s; it is waiting in _sleep_in_thread \(trouble/faulty\.py:\d+\) "
        r"\[resetting board 3 \\udcff\]",
        slow.message,
    )


async def test_places_of_a_slow_call_that_nobody_requested_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    async with supervised() as backend:
        await backend.prepare(claim("flood-places"))
    assert "has been running for" not in caplog.text


async def test_a_slow_prepare_is_logged_and_is_no_event_of_the_node(caplog: pytest.LogCaptureFixture) -> None:
    events: list[BackendEvent] = []
    timeouts = replace(TIMEOUTS, slow_call=0.1)
    async with supervised(timeouts=timeouts, events=events) as backend, anyio.create_task_group() as tasks:
        tasks.start_soon(backend.prepare, claim("hang"))
        await until(lambda: "prepare has been running for" in caplog.text)
        tasks.cancel_scope.cancel()
    assert [type(event) for event in events] == [BackendReady]


async def _prepare_all(backend: Any, devices: dict[str, str]) -> dict[str, Any]:
    results: dict[str, Any] = {}

    async def prepare(uid: str, device: str) -> None:
        try:
            results[uid] = await backend.prepare(claim(device, uid))
        except (BackendError, ClaimError) as error:
            results[uid] = error

    async with anyio.create_task_group() as tasks:
        for uid, device in devices.items():
            tasks.start_soon(prepare, uid, device)
    return results


async def test_the_claim_at_fault_is_found_and_the_others_succeed_within_the_same_call(tmp_path: Path) -> None:
    events: list[BackendEvent] = []
    async with supervised(tmp_path, events=events) as backend:
        await backend.wait_ready()
        devices = {"u1": "slow", "u2": "later-segfault", "u3": "slow", "u4": "hang-briefly"}
        results = await _prepare_all(backend, devices)
    assert isinstance(results["u2"], BackendDied)
    assert all(results[uid][0].device == devices[uid] for uid in ("u1", "u3", "u4"))
    assert [one.diagnosis.how for one in events if isinstance(one, BackendEnded)] == ["SIGSEGV"] * 2
    begun = (tmp_path / "journal").read_text().splitlines()
    assert sorted(begun[:4]) == [f"prepare u{n}" for n in (1, 2, 3, 4)]
    assert "prepare u4" not in begun[4:], "what was answered before the crash is not called again"
    assert begun[4:] == ["prepare u1", "prepare u2", "prepare u3"]


async def test_a_crash_that_does_not_come_again_fails_nobody(tmp_path: Path) -> None:
    async with supervised(tmp_path) as backend:
        await backend.wait_ready()
        results = await _prepare_all(backend, {"u1": "slow", "u2": "segfault-once"})
    assert all(isinstance(result, tuple) for result in results.values())


async def test_a_bystander_of_a_call_that_wedged_is_called_again(tmp_path: Path) -> None:
    results: dict[str, Any] = {}
    (tmp_path / "discover").write_text("hang-stubborn")

    async def prepare(backend: Any) -> None:
        results["slow"] = await backend.prepare(claim("very-slow"))

    deadlines = CallDeadlines(connect=60.0, discover=0.3)
    async with supervised(tmp_path, deadlines=deadlines, timeouts=replace(TIMEOUTS, cancel_timeout=0.2)) as backend:
        await backend.wait_ready()
        async with anyio.create_task_group() as callers:
            callers.start_soon(prepare, backend)
            with pytest.raises(BackendTimeout):
                await backend.discover()
    assert results["slow"][0].device == "very-slow"
    assert (tmp_path / "journal").read_text().splitlines() == ["prepare u1"] * 2


async def test_calls_made_while_the_process_is_replaced_wait_for_it() -> None:
    async with supervised(restarts=RestartPolicy(first=0.1, cap=0.1)) as backend:
        await backend.wait_ready()
        with pytest.raises(BackendDied):
            await backend.prepare(claim("segfault"))
        assert backend.statistics().state is BackendState.DOWN
        assert await backend.discover()


async def test_a_call_that_waits_in_vain_says_why() -> None:
    policy = RestartPolicy(first=60.0, cap=60.0)
    async with supervised(seconds=0.3, restarts=policy) as backend:
        await backend.wait_ready()
        with pytest.raises(BackendDied):
            await backend.prepare(claim("segfault"))
        with pytest.raises(BackendUnavailable, match=r"died of SIGSEGV.*; it starts again 60\.0 s after that"):
            await backend.prepare(claim("ok", "u2"))


async def test_a_claim_that_kills_twice_is_quarantined_without_touching_the_hardware(tmp_path: Path) -> None:
    events: list[BackendEvent] = []
    async with supervised(tmp_path, events=events) as backend:
        for error in (BackendDied, TerminalError, TerminalError):
            with pytest.raises(error):
                await backend.prepare(claim("segfault"))
        assert (tmp_path / "journal").read_text().splitlines() == ["prepare u1"] * 2
        assert [(one.pool, one.device, one.claim) for one in backend.quarantined()] == [("node", "segfault", "ns/c-u1")]
        with pytest.raises(BackendDied):  # the same name, another claim
            await backend.prepare(claim("segfault", "u2"))
        await backend.unprepare(claim("segfault"), ())
        assert len(backend.quarantined()) == 1
        with pytest.raises(TerminalError, match="ended the process of backend faulty 2 times"):
            await backend.prepare(claim("segfault"))
        await backend.wait_changed()  # the last restart's
        backend.release("u1")
        await backend.wait_changed()
        assert backend.quarantined() == ()
        with pytest.raises(BackendDied):
            await backend.prepare(claim("segfault"))


async def test_a_backend_is_started_again_by_an_agent_that_cannot_start_a_thread() -> None:
    def refresh(_source: BackendSource) -> BackendSource:
        raise RuntimeError("can't start new thread")

    async with supervised(refresh=refresh) as backend:
        with pytest.raises(BackendDied):
            await backend.prepare(claim("segfault"))
        assert await backend.prepare(claim("ok", "u2"))


async def test_another_version_of_the_backend_is_not_judged_by_the_last() -> None:
    upgraded = BackendSource(name="faulty", target="faulty:", distribution="pydra-faulty", version="2.0")
    async with supervised(restarts=RestartPolicy(first=0.01, crashes=1), refresh=lambda source: upgraded) as backend:
        with pytest.raises(TerminalError):
            await backend.prepare(claim("segfault"))
        await until(lambda: backend.statistics().state is BackendState.READY)
        assert (await backend.wait_ready()).version == "2.0"
        assert backend.quarantined() == ()


async def test_telemetry_that_crashes_is_guarded_too(tmp_path: Path) -> None:
    (tmp_path / "discover").write_text("segfault")
    async with supervised(tmp_path) as backend:
        with pytest.raises(BackendDied, match="during discover"):
            await backend.discover()
        assert await backend.prepare(claim("ok"))


async def test_a_hint_of_the_backend_and_a_replaced_process_are_changes(tmp_path: Path) -> None:
    async with supervised(tmp_path) as backend:
        assert await backend.prepare(claim("ok"))
        assert backend.statistics().in_flight == (), "nothing has been discovered that could have changed"
        (tmp_path / "changed").write_text("yes")
        await backend.discover()
        await backend.wait_changed()
        os.kill(backend.statistics().pid, signal.SIGKILL)
        await backend.wait_changed()
        assert backend.statistics().starts == 2


async def test_a_process_that_a_call_forks_does_not_answer_it(caplog: pytest.LogCaptureFixture) -> None:
    async with supervised() as backend:
        (device,) = await backend.prepare(claim("fork"))
        await until(lambda: any("came back in a process that it had forked" in one for one in caplog.messages))
        assert device.edits.env["PID"] == str(backend.statistics().pid)
    assert not [one for one in caplog.messages if "which is not in flight" in one]


async def test_what_a_library_prints_disturbs_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="pydra.backend.faulty")
    async with supervised() as backend:
        assert await backend.prepare(claim("print-noise"))
        assert await backend.prepare(claim("fill-pipes", "u2"))
        await until(lambda: "warning from a library" in caplog.messages)
        await until(lambda: any(message.startswith("xxxx") for message in caplog.messages))
    assert "\\xff\x00garbage on stdout" in caplog.messages
    assert caplog.messages.count("\\xff\x00garbage on stdout") < 2000


async def test_violations_that_a_process_reports_at_any_length_are_cut() -> None:
    async with supervised() as backend:
        with pytest.raises(ContractError) as caught:
            await backend.prepare(claim("fail-at-length"))
    assert len(str(caught.value)) < 500_000


async def test_the_place_of_a_slow_call_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    async with supervised(timeouts=replace(TIMEOUTS, slow_call=0.1)) as backend:
        await backend.prepare(claim("wait-at-length"))
    (slow,) = (one.getMessage() for one in caplog.records if "has been running for" in one.getMessage())
    assert len(slow) < 500_000


async def test_a_refusal_of_any_length_is_cut() -> None:
    environ = {**ENVIRON, "IMPOSTOR": "a refusal without end"}
    async with supervised(source=BackendSource(name="impostor", target="impostor:"), environ=environ) as backend:
        with pytest.raises(ContractError) as caught:
            await backend.wait_ready()
    assert len(str(caught.value)) < 500_000


async def test_a_process_that_names_a_driver_which_is_a_path_is_not_served() -> None:
    events: list[BackendEvent] = []
    environ = {**ENVIRON, "IMPOSTOR": "a driver that is a path"}
    source = BackendSource(name="impostor", target="impostor:")
    async with supervised(source=source, environ=environ, events=events):
        await until(lambda: bool(events))
    assert isinstance(events[0], BackendEnded)
    assert "broke the protocol" in events[0].diagnosis.line
    assert "$.driver" in events[0].diagnosis.line


async def test_one_backend_does_not_hurt_another() -> None:
    unfit = BackendSource(name="unfit", target="unfit:")
    async with supervised() as crashing, supervised(source=unfit) as refused, supervised() as sound:
        await sound.wait_ready()
        pid = sound.statistics().pid
        with pytest.raises(BackendDied):
            await crashing.prepare(claim("segfault"))
        with pytest.raises(ContractError):
            await refused.discover()
        assert await sound.prepare(claim("ok"))
        assert sound.statistics().pid == pid
