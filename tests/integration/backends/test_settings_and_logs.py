"""A backend gets its settings checked, and its log records arrive with the claim, as many as are good for the node."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec.structs import replace

from pydra.backends.calls_in_flight import MAX_UNSOLICITED
from pydra.backends.discovery import BackendSource
from pydra.backends.process_output import LINES_AT_ONCE
from pydra.backends.supervisor_events import BackendEnded, BackendEvent, BackendRefused, BackendState
from pydra.claim import OpaqueConfig
from pydra.errors import ContractError, InvalidConfig, SettingsError
from pydra.testing import run_checks
from tests.integration.backends.harness import ENVIRON, claim, supervised, until
from tests.integration.backends.test_plan_and_restore import holding

SOURCE = BackendSource(name="tuned", target="tuned:")


def fields(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = record.__dict__["fields"]
    return found


async def test_settings_come_from_the_environment_and_the_file() -> None:
    environ = {**ENVIRON, "PYDRA_TUNED_MAX_SHARES": "9"}
    async with supervised(source=SOURCE, environ=environ, settings={"maxShares": 2, "flood": ""}) as backend:
        backend.restore_from(holding())
        (device,) = (await backend.discover()).devices
        assert device.attributes == {"shares": 9}
        facts = await backend.wait_ready()
    assert [(one.name, one.value, one.source) for one in facts.settings] == [
        ("maxShares", "9", "PYDRA_TUNED_MAX_SHARES"),
        ("flood", '""', "backendSettings.tuned:.flood"),
    ]


async def test_invalid_settings_are_refused_for_good_with_all_faults() -> None:
    events: list[BackendEvent] = []
    environ = {**ENVIRON, "PYDRA_TUNED_MAX_SHARES": "0"}
    async with supervised(source=SOURCE, environ=environ, settings={"floods": "x"}, events=events) as backend:
        with pytest.raises(SettingsError) as caught:
            await backend.wait_ready()
        assert backend.statistics().state is BackendState.REFUSED
    assert len(caught.value.problems) == 2
    assert "PYDRA_TUNED_MAX_SHARES: found 0, allowed: an integer >= 1, default: 4" in caught.value.problems[1]
    (event,) = events
    assert isinstance(event, BackendRefused)
    assert event.invalid_settings


async def test_a_config_that_the_settings_do_not_allow_is_refused_and_does_not_keep_a_claim_from_ending() -> None:
    parameters = {"apiVersion": "tuned.example.com/v1", "kind": "ShareConfig", "shares": 3}
    config = OpaqueConfig(source="FromClaim", position="FromClaim config 1", parameters=parameters)
    wanted = claim("a")
    wanted = replace(wanted, devices=tuple(replace(device, configs=(config,)) for device in wanted.devices))
    async with supervised(source=SOURCE, settings={"maxShares": 2}) as backend:
        backend.restore_from(holding())
        with pytest.raises(InvalidConfig, match=r"FromClaim config 1: \$\.shares: found 3, the admin allows 2"):
            await backend.prepare(wanted)
        await backend.unprepare(wanted, ())


async def test_settings_for_a_backend_that_takes_none_are_refused() -> None:
    source = BackendSource(name="connecting", target="unfit:connects")
    async with supervised(source=source, settings={"a": 1}) as backend:
        with pytest.raises(SettingsError, match="this backend takes no settings"):
            await backend.wait_ready()


async def test_the_conformance_kit_shows_the_settings_and_tries_plan_and_restore() -> None:
    environ = {**ENVIRON, "PYDRA_TUNED_MAX_SHARES": "9"}
    report = await run_checks(
        SOURCE, environ=environ, config={"backendSettings": {"tuned:": {"maxShares": 2, "flood": ""}}}
    )
    assert report.ok, report.text
    assert 'flood = "" (allowed: a string; default: ""; from: backendSettings.tuned:.flood' in report.text
    assert "maxShares = 9 (allowed: an integer >= 1; default: 4; from: PYDRA_TUNED_MAX_SHARES" in report.text
    assert {"plan", "plan-crash", "restore"} <= {check.rule for check in report.checks}


async def test_the_conformance_kit_tells_each_invalid_setting() -> None:
    environ = {**ENVIRON, "PYDRA_TUNED_MAX_SHARES": "0"}
    report = await run_checks(SOURCE, environ=environ, config={"backendSettings": {"tuned:": {"floods": "x"}}})
    assert {check.rule: len(check.problems) for check in report.checks} == {"connect": 0, "settings": 2}


async def test_violations_of_the_contract_and_invalid_settings_are_reported_together() -> None:
    source = BackendSource(name="unfit", target="unfit:takes_settings")
    async with supervised(source=source, settings={"sharez": 1}) as backend:
        with pytest.raises(ContractError) as caught:
            await backend.wait_ready()
    violation, problem = caught.value.violations
    assert violation.startswith('DRIVER is "Not A Name"')
    assert problem.startswith('backendSettings.unfit:takes_settings.sharez: no such setting (did you mean "shares"?)')


async def test_log_records_arrive_with_level_logger_exception_and_claim(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with supervised(source=SOURCE) as backend:
        backend.restore_from(holding())
        await backend.prepare(claim("a"))
        await until(lambda: "from a thread" in caplog.messages)
    records = {one.getMessage(): one for one in caplog.records if one.name == "pydra.backend.tuned.tuned.hardware"}
    first, threaded, failed = (records[text] for text in ("preparing 1 devices", "from a thread", "register 7"))
    assert [one.levelname for one in (first, threaded, failed)] == ["INFO", "WARNING", "ERROR"]
    for one in (first, threaded, failed):
        known = fields(one)
        assert (known["backend"], known["claim"], known["uid"]) == ("tuned", "ns/c-u1", "u1")
    assert "ValueError: a bad register" in fields(failed)["details"]


async def test_a_flood_of_records_costs_the_agent_a_bounded_number_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with supervised(source=SOURCE, settings={"flood": "records"}) as backend:
        backend.restore_from(holding())
        await backend.prepare(claim("a"))
        await until(lambda: any("lines were dropped" in message for message in caplog.messages))
    lines = [one for one in caplog.records if one.name.startswith("pydra.backend.tuned")]
    assert len(lines) < 2 * LINES_AT_ONCE


async def test_a_process_that_answers_calls_nobody_made_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    events: list[BackendEvent] = []
    async with supervised(source=SOURCE, settings={"flood": "answers"}, events=events) as backend:
        backend.restore_from(holding())
        with pytest.raises(ContractError, match=f"{MAX_UNSOLICITED} answers to calls that are not in flight"):
            await backend.prepare(claim("a"))
        await until(lambda: any(isinstance(one, BackendEnded) for one in events))
    assert len([one for one in caplog.records if "which is not in flight" in one.getMessage()]) == MAX_UNSOLICITED
