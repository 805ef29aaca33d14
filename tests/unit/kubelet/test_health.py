"""Health reports as messages."""

from __future__ import annotations

from types import ModuleType

import pytest

from pydra.devices import DeviceHealth, HealthStatus
from pydra.kubelet.health_service import build_report
from pydra.kubelet.pb import dra_health_v1, dra_health_v1alpha1


def device(name: str, status: HealthStatus, message: str = "") -> DeviceHealth:
    return DeviceHealth(pool="p", device=name, status=status, message=message, updated=1_700_000_000)


@pytest.mark.parametrize("version", [dra_health_v1, dra_health_v1alpha1], ids=["v1", "v1alpha1"])
def test_a_report_has_every_device_with_its_state(version: ModuleType) -> None:
    devices = (
        device("a", HealthStatus.HEALTHY),
        device("b", HealthStatus.UNHEALTHY, "XID 79:\nfell off the bus"),
        device("c", HealthStatus.UNKNOWN),
    )
    report = build_report(version, devices, 10.0)
    assert [(one.device.pool_name, one.device.device_name, one.health.name, one.message) for one in report.devices] == [
        ("p", "a", "HEALTHY", ""),
        ("p", "b", "UNHEALTHY", "XID 79: fell off the bus"),
        ("p", "c", "UNKNOWN", ""),
    ]
    assert {one.last_updated_time for one in report.devices} == {1_700_000_000}


@pytest.mark.parametrize(("period", "lease"), [(1.0, 30), (10.0, 30), (10.5, 32), (25.0, 75)])
def test_a_report_is_valid_for_three_periods_and_never_less_than_the_default(period: float, lease: int) -> None:
    report = build_report(dra_health_v1, (device("a", HealthStatus.HEALTHY),), period)
    assert report.devices[0].health_check_timeout_seconds == lease


def test_the_messages_of_very_many_devices_fit_into_one_report() -> None:
    devices = tuple(device(f"gpu-{n}", HealthStatus.UNHEALTHY, "x" * 2000) for n in range(5000))
    assert len(bytes(build_report(dra_health_v1, devices, 10.0))) < 4 * 1024 * 1024
    assert len(build_report(dra_health_v1, devices[:1], 10.0).devices[0].message) == 1024
