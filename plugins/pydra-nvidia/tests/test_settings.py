"""What the admin's variables mean, and that a wrong one says what is allowed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pydra_nvidia.allowed import describe_allowed
from pydra_nvidia.settings import Orphans, Reaction, SettingError, Settings, Shares, Signal, parse_settings


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("DYNAMIC_MIG", "true", "dynamic_mig", True),
        ("MPS", "0", "mps", False),
        ("ORPHANS", "remove", "orphans", Orphans.REMOVE),
        ("CONSUMABLE_SHARES", "memory", "consumable_shares", Shares.MEMORY),
        ("CONSUMABLE_SHARES", "4", "consumable_shares", 4),
        ("CONSUMABLE_SHARES", "1", "consumable_shares", 1),
        ("XIDS_FATAL", "13, 31,", "xids_fatal", (13, 31)),
        ("SIGNALS", "xid=NoExecute, ecc=Ignore", "signals", {"xid": "NoExecute", "ecc": "Ignore"}),
        ("QUIET_PERIOD", "1.5", "quiet_period", 1.5),
        ("CDI_HOOK", "", "cdi_hook", ""),
    ],
)
def test_a_variable_becomes_its_field(variable: str, text: str, field: str, value: object) -> None:
    found = getattr(parse_settings({f"PYDRA_NVIDIA_{variable}": text}), field)
    if field == "signals":
        found = {signal.value: reaction.value for signal, reaction in found.items()}
    assert found == value


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("STATE", "run", "an absolute path"),
        ("DRIVER_ROOT", "run", "an absolute path, or empty"),
        ("VFIO", "maybe", "true, false"),
        ("ORPHANS", "keep", "adopt, remove"),
        ("CONSUMABLE_SHARES", "0", "disabled, memory, unlimited, a number from 1 to 1024"),
        ("CONSUMABLE_SHARES", "some", "disabled, memory, unlimited, a number from 1 to 1024"),
        ("XIDS_IGNORED", "13;31", "numbers, with commas"),
        ("POLL_PERIOD", "0", "seconds above 0"),
        ("SIGNALS", "xid", f"values: {', '.join(one.value for one in Reaction)}"),
        ("SIGNALS", "xit=None", f"names: {', '.join(one.value for one in Signal)}"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_allowed(variable: str, text: str, allowed: str) -> None:
    with pytest.raises(SettingError, match=f"^PYDRA_NVIDIA_{variable}: found '{text}', allowed: ") as raised:
        parse_settings({f"PYDRA_NVIDIA_{variable}": text})
    assert allowed in str(raised.value)


def test_all_wrong_variables_are_told_at_once_with_those_that_there_are() -> None:
    with pytest.raises(SettingError) as raised:
        parse_settings({"PYDRA_NVIDIA_DYNAMIC_MGI": "true", "PYDRA_NVIDIA_VFIO": "maybe"})
    unknown, wrong = raised.value.problems
    assert unknown.startswith("PYDRA_NVIDIA_DYNAMIC_MGI: no such setting; there are CDI_HOOK, ")
    assert "DYNAMIC_MIG" in unknown
    assert wrong.startswith("PYDRA_NVIDIA_VFIO: ")


@pytest.mark.parametrize(
    "variable",
    ["SCENARIO", "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_METRICS", "PORT", "PORT_9464_TCP", "PORT_9464_TCP_ADDR"],
)
def test_variables_of_the_simulation_and_of_a_service_of_kubernetes_are_no_settings(variable: str) -> None:
    assert parse_settings({f"PYDRA_NVIDIA_{variable}": "tcp://10.0.0.1:9464"}) == Settings()


@pytest.mark.parametrize(
    ("environ", "defaults", "root"),
    [
        ({}, {}, "/"),
        ({"PYDRA_HOST_ROOT": "/host"}, {}, "/host"),
        ({"PYDRA_HOST_ROOT": "/host"}, {"host_root": "/tree"}, "/tree"),
        ({"PYDRA_HOST_ROOT": "/host", "PYDRA_NVIDIA_HOST_ROOT": "/own"}, {"host_root": "/tree"}, "/own"),
    ],
)
def test_the_host_s_root_is_the_agent_s_the_scenario_s_or_its_own(
    environ: dict[str, str], defaults: dict[str, Any], root: str
) -> None:
    assert parse_settings(environ, defaults).host_root == root


@pytest.mark.parametrize("field", msgspec.structs.fields(Settings), ids=lambda field: field.name)
def test_every_setting_says_what_it_may_be(field: msgspec.structs.FieldInfo) -> None:
    assert describe_allowed(field.type)
