"""A backend that plans and restores gets what the node holds: before anything else, and before each decision."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from pydra.backends.contract_validation import MAX_STATE
from pydra.backends.discovery import BackendSource
from pydra.backends.supervisor_events import BackendEnded, BackendEvent, Trouble
from pydra.backends.timeouts import ProcessTimeouts
from pydra.claim import HeldClaim, OpaqueConfig
from pydra.errors import BackendUnavailable, ClaimQuarantined, ContractError, InvalidConfig, PydraError
from tests.integration.backends.harness import ENVIRON, claim, find_troubles, supervised, until

SOURCE = BackendSource(name="planning", target="planning:")
HELD = HeldClaim(claim=replace(claim("gpu-0", "old"), plan={"slot": 4}), completed=False)


def holding(
    *held: HeldClaim, marks: list[str] | None = None
) -> Callable[[], AbstractAsyncContextManager[Sequence[HeldClaim]]]:
    @asynccontextmanager
    async def hold() -> AsyncIterator[Sequence[HeldClaim]]:
        if marks is not None:
            marks.append("entered")
        yield held
        if marks is not None:
            marks.append("left")

    return hold


def journal(directory: Path) -> list[str]:
    path = directory / "journal"
    return path.read_text().splitlines() if path.exists() else []


def environ(directory: Path) -> dict[str, str]:
    return {**ENVIRON, "PLANNING_DIR": str(directory)}


async def test_the_plan_is_made_from_what_is_held_and_reaches_prepare_and_unprepare(tmp_path: Path) -> None:
    async with supervised(source=SOURCE, environ=environ(tmp_path)) as backend:
        backend.restore_from(holding(HELD))
        facts = await backend.wait_ready()
        assert (facts.survives_reboot, facts.one_pod) == (True, True)
        planned = await backend.plan(claim("gpu-1"))
        assert planned.plan == {"slot": 5}
        (prepared,) = await backend.prepare(planned)
        await backend.unprepare(planned, (prepared,))
        backend.note_held("old", None)
        await backend.unprepare(planned, ())
    assert journal(tmp_path) == [
        'restore [["old", false, 0, {"slot": 4}]]',
        'prepare {"slot": 5} true',
        'unprepare {"slot": 5} 1 [{"slot": 4}]',
        'unprepare {"slot": 5} 0 []',
    ]


async def test_a_plan_that_is_not_json_breaks_the_contract(tmp_path: Path) -> None:
    async with supervised(source=SOURCE, environ=environ(tmp_path)) as backend:
        backend.restore_from(holding())
        with pytest.raises(ContractError, match=r"what plan returned\.a is nan, which JSON does not have"):
            await backend.plan(claim("unplannable"))


async def test_each_new_process_gets_what_is_held_before_any_other_call(tmp_path: Path) -> None:
    marks: list[str] = []
    async with supervised(source=SOURCE, environ=environ(tmp_path), seconds=0.2) as backend:
        await backend.wait_ready()
        await backend.inherit("/plugins/x")
        with pytest.raises(BackendUnavailable, match="does not know yet what this node holds") as caught:
            await backend.prepare(claim("gpu-1"))
        assert not caught.value.reached_backend
        backend.restore_from(holding(HELD, marks=marks))
        await backend.discover()
        os.kill(backend.statistics().pid, signal.SIGKILL)
        await backend.wait_changed()
        await backend.discover()
    restored = 'restore [["old", false, 0, {"slot": 4}]]'
    assert journal(tmp_path) == ["inherit", restored, "discover", restored, "discover"]
    assert marks == ["entered", "left"] * 2


async def test_a_held_config_whose_rule_fails_in_any_way_stops_neither_restore_nor_plan_nor_unprepare(
    tmp_path: Path,
) -> None:
    parameters = {"apiVersion": "planning.example.com/v1", "kind": "Careless", "mode": "slow"}
    config = OpaqueConfig(source="FromClaim", position="config[0]", parameters=parameters)
    held = HeldClaim(claim=replace(claim("gpu-0", "old", config), plan={"slot": 4}), completed=True)
    async with supervised(source=SOURCE, environ=environ(tmp_path), seconds=5.0) as backend:
        backend.restore_from(holding(held))
        assert (await backend.plan(claim("gpu-1"))).plan == {"slot": 5}
        await backend.unprepare(held.claim, ())
        with pytest.raises(InvalidConfig, match="the backend's own rules fail with KeyError: 'slow'"):
            await backend.prepare(held.claim)
    assert journal(tmp_path) == ['restore [["old", true, 0, {"slot": 4}]]', 'unprepare {"slot": 4} 0 [{"slot": 4}]']


async def test_a_backend_hears_of_all_claims_however_large_their_plans_are(tmp_path: Path) -> None:
    notes = "x" * (MAX_STATE - 100)
    largest = [
        replace(HELD, claim=replace(claim("gpu-0", f"u{n}"), plan={"slot": n, "notes": notes})) for n in range(100)
    ]
    async with supervised(source=SOURCE, environ=environ(tmp_path), timeouts=ProcessTimeouts()) as backend:
        backend.restore_from(holding(*largest))
        assert (await backend.plan(claim("gpu-1"))).plan == {"slot": 100}


async def test_a_restore_that_fails_is_reported_and_retried_and_calls_say_why_they_wait(tmp_path: Path) -> None:
    events: list[BackendEvent] = []
    (tmp_path / "broken").touch()
    async with supervised(source=SOURCE, environ=environ(tmp_path), events=events, seconds=0.2) as backend:
        backend.restore_from(holding())
        await until(lambda: bool(find_troubles(events, Trouble.RESTORE)))
        with pytest.raises(BackendUnavailable, match="restore failed: RuntimeError: a register is stuck"):
            await backend.prepare(claim("gpu-1"))
        (tmp_path / "broken").unlink()
        await backend.discover()
    assert "prepare" not in " ".join(journal(tmp_path))


async def test_a_restore_that_ends_the_process_is_waited_for_like_one_that_raises(tmp_path: Path) -> None:
    events: list[BackendEvent] = []
    (tmp_path / "fatal").touch()
    async with supervised(source=SOURCE, environ=environ(tmp_path), events=events) as backend:
        backend.restore_from(holding())
        await until(lambda: sum(isinstance(event, BackendEnded) for event in events) >= 2)
        (tmp_path / "fatal").unlink()
        await backend.wait_restored(patience=0.0)
        assert backend.missing_restore() == ""


async def test_errors_say_whether_the_backends_code_was_reached(tmp_path: Path) -> None:
    wrong = OpaqueConfig(source="FromClaim", position="config[0]", parameters={"kind": "Nothing"})
    async with supervised(tmp_path) as backend:
        reached: dict[str, tuple[type[PydraError], bool]] = {}
        for name, asked in {
            "refused config": claim("ok", "u1", wrong),
            "raised": claim("raise", "u2"),
            "first crash": claim("segfault", "u3"),
            "second crash": claim("segfault", "u3"),
            "quarantined": claim("segfault", "u3"),
        }.items():
            with pytest.raises(PydraError) as caught:
                await backend.prepare(asked)
            reached[name] = (type(caught.value), caught.value.reached_backend)
    assert reached["refused config"] == (InvalidConfig, False)
    assert reached["raised"][1]
    assert reached["first crash"][1]
    assert reached["second crash"] == (ClaimQuarantined, True)
    assert reached["quarantined"] == (ClaimQuarantined, False)
