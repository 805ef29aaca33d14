"""What the admin's variables mean, and that a wrong one says what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from pydra import SettingsError
from pydra_nvidia.settings import Orphans, Settings, Shares, parse_settings


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
    ("variable", "text"),
    [
        ("STATE", "run"),
        ("DRIVER_ROOT", "run"),
        ("VFIO", "maybe"),
        ("ORPHANS", "keep"),
        ("CONSUMABLE_SHARES", "0"),
        ("CONSUMABLE_SHARES", "some"),
        ("XIDS_IGNORED", "13;31"),
        ("POLL_PERIOD", "0"),
        ("SIGNALS", "xid"),
        ("SIGNALS", "xit=None"),
    ],
)
def test_a_wrong_value_is_refused(variable: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"PYDRA_NVIDIA_{variable}.*: found .*allowed: "):
        parse_settings({f"PYDRA_NVIDIA_{variable}": text})


@pytest.mark.parametrize("variable", ["SERVICE_PORT", "PORT_9464_TCP"])
def test_variables_of_a_service_of_kubernetes_are_not_refused(variable: str) -> None:
    beside = {"PYDRA_NVIDIA_SERVICE_HOST": "10.0.0.1", f"PYDRA_NVIDIA_{variable}": "/9464"}
    assert parse_settings(beside) == Settings()


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
