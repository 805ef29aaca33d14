"""The API's rules for the status of a claim's device: what one wrong value is answered with."""

from __future__ import annotations

import pytest

from pydra import Condition, DeviceStatus, NetworkData
from pydra.inventory.api_rules import check_device_status

READY = Condition(type="Ready", reason="Powered", message="It has power.")


def network(**fields: object) -> DeviceStatus:
    return DeviceStatus(network_data=NetworkData(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (DeviceStatus(conditions=(READY,) * 10_000), "10000 conditions; at most 8 are allowed"),
        (DeviceStatus(conditions=(READY, READY)), "two conditions of the type 'Ready'"),
        (DeviceStatus(conditions=(Condition(type="not ready", reason="A"),)), "'not ready' is not a valid type"),
        (DeviceStatus(conditions=(Condition(type="Ready", reason="no word"),)), "'no word' is not a valid reason"),
        (DeviceStatus(conditions=(Condition(type="A", reason="B", message="x" * 40_000),)), "more than 32768 bytes"),
        (DeviceStatus(data={"text": "x" * 11_000}), "status.data has 11011 bytes of JSON; at most 10240"),
        (DeviceStatus(data={"nan": float("nan")}), "status.data.nan is nan, which JSON does not have"),
        (network(ips=("192.0.2.5/24",) * 10_000), "10000 addresses; at most 16 are allowed"),
        (network(ips=("192.0.2.5/24",) * 2), "192.0.2.5/24 is there twice"),
        (network(ips=("eth0/24",)), "'eth0/24' is not an address with a prefix length"),
        (network(ips=("192.0.2.5",)), "'192.0.2.5' is not an address with a prefix length"),
        (network(ips=("2001:DB8::1/64",)), "is not an address with a prefix length"),
        (network(interface_name="n" * 300), "interface_name has more than 256 bytes"),
    ],
)
def test_a_wrong_value_is_named_and_a_list_that_is_too_long_is_not_looked_through(
    status: DeviceStatus, says: str
) -> None:
    problems = list(check_device_status(status))
    assert all(says in problem for problem in problems)
    assert 1 <= len(problems) <= 2


def test_what_the_api_server_takes_is_no_problem() -> None:
    good = NetworkData(interface_name="net1", hardware_address="02:00:00:00:00:01", ips=("2001:db8::1/64",))
    status = DeviceStatus(conditions=(READY,), data={"bus": "pci"}, network_data=good)
    assert not list(check_device_status(status))
