"""A backend starts when it keeps the contract and can connect, and stops in good order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from pydra.backends.discovery import BackendSource
from pydra.backends.supervisor_events import BackendEnded, BackendEvent, BackendRefused, BackendState, Trouble
from pydra.backends.timeouts import CallDeadlines
from pydra.devices import Device, Inventory
from pydra.errors import BackendUnavailable, ContractError
from tests.integration.backends.harness import claim, find_troubles, supervised, until


@pytest.mark.parametrize(
    ("target", "violations"),
    [
        ("nope:", ["there is no module nope on the module path; is it installed"]),
        ("faulty:nothing", ["faulty:nothing cannot be loaded: faulty has no nothing; correct what names it"]),
        ("unfit:", ["discover is a plain function", "prepare is missing", "unprepare()", 'DRIVER is "Not A Name"']),
        ("unfit:connects_to_nothing", ["discover is missing", "prepare is missing", "unprepare is missing"]),
        (
            "unfit:connects_in_sync",
            ["connect returned a value of type _GeneratorContextManager, not an async context manager; write"],
        ),
        ("unfit_import:", ["unfit_import cannot be loaded: SystemExit"]),
    ],
)
async def test_a_backend_that_breaks_the_contract_is_refused_with_all_violations(
    target: str, violations: list[str]
) -> None:
    events: list[BackendEvent] = []
    async with supervised(source=BackendSource(name="unfit", target=target), events=events) as backend:
        with pytest.raises(ContractError) as caught:
            await backend.wait_ready()
        assert len(caught.value.violations) == len(violations)
        assert all(want in one for want, one in zip(violations, caught.value.violations, strict=True))
        with pytest.raises(ContractError):
            await backend.discover()
        assert backend.statistics().state is BackendState.REFUSED
    (event,) = events
    assert isinstance(event, BackendRefused)


async def test_handles_live_between_connect_and_the_end(tmp_path: Path) -> None:
    source = BackendSource(name="connecting", target="unfit:connects")
    async with supervised(tmp_path, source=source) as backend:
        assert await backend.discover() == Inventory(devices=(Device(name="from-connect"),))
    assert (tmp_path / "connected").read_text() == "opened closed"


async def test_a_connect_that_fails_is_tried_again_until_it_succeeds(tmp_path: Path) -> None:
    events: list[BackendEvent] = []
    (tmp_path / "absent").touch()
    source = BackendSource(name="connecting", target="unfit:connects")
    async with supervised(tmp_path, source=source, events=events) as backend:
        await until(lambda: len(events) >= 2)
        (tmp_path / "absent").unlink()
        assert await backend.discover()
    failed = find_troubles(events, Trouble.START)[0]
    assert "connect failed: FileNotFoundError: the driver is not loaded" in failed.message


async def test_a_connect_that_hangs_is_killed_and_shown() -> None:
    events: list[BackendEvent] = []
    source = BackendSource(name="unfit", target="unfit:connect_hangs")
    deadlines = CallDeadlines(connect=3.0, discover=2.0)
    async with supervised(source=source, deadlines=deadlines, events=events):
        await until(lambda: bool(events))
    (event, *_) = events
    assert isinstance(event, BackendEnded)
    assert "was not ready in time (within 3 s)" in event.diagnosis.line
    assert "connect_hangs" in event.diagnosis.report


async def test_a_stopped_supervisor_answers_that_it_is_stopped() -> None:
    async with supervised() as backend:
        await backend.wait_ready()
        pid = backend.statistics().pid
    with pytest.raises(BackendUnavailable, match="is stopped"):
        await backend.discover()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_callers_in_flight_when_the_agent_stops_get_an_error() -> None:
    errors: list[Exception] = []

    async def prepare(backend: Any) -> None:
        try:
            await backend.prepare(claim("hang"))
        except BackendUnavailable as error:
            errors.append(error)

    async with anyio.create_task_group() as callers, supervised() as backend:
        await backend.wait_ready()
        callers.start_soon(prepare, backend)
        await until(lambda: any(flight.claim for flight in backend.statistics().in_flight))
    assert [str(error) for error in errors] == ["backend faulty: is stopped"]


async def test_a_caller_that_gives_up_leaves_nothing_behind() -> None:
    async with supervised() as backend:
        await backend.wait_ready()
        with anyio.move_on_after(0.1):
            await backend.prepare(claim("hang"))
        assert not any(flight.claim for flight in backend.statistics().in_flight)
        assert await backend.prepare(claim("ok", "u2"))
