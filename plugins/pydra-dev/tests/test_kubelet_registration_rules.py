"""Which plugins the kubelet accepts, and with which of their services."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pydra_dev.kubelet.registration import (
    DraService,
    HealthService,
    Plugin,
    RegistrationError,
    accept_plugin,
    refuse_duplicate,
)

V1, V1BETA1 = "v1.DRAPlugin", "v1beta1.DRAPlugin"
HEALTH_V1, HEALTH_V1ALPHA1 = "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"


def accept(versions: Sequence[str] = (V1,), minor: int = 36, **fields: str) -> Plugin:
    given = {"socket": "/r.sock", "type_": "DRAPlugin", "name": "gpu.example.com", "endpoint": "/d.sock", **fields}
    return accept_plugin(versions=versions, minor=minor, **given)


@pytest.mark.parametrize(
    ("versions", "service"),
    [
        ((V1, V1BETA1), DraService.V1),
        ((V1BETA1, V1), DraService.V1BETA1),
        ((V1BETA1,), DraService.V1BETA1),
        (("v9.DRAPlugin", V1), DraService.V1),
        ((HEALTH_V1, V1), DraService.V1),
    ],
)
def test_the_first_service_that_is_known_in_the_plugins_order_is_used(
    versions: tuple[str, ...], service: DraService
) -> None:
    assert accept(versions).service is service


@pytest.mark.parametrize(
    ("fields", "versions", "message"),
    [
        ({}, (), "empty list"),
        ({}, ("v1alpha4.DRAPlugin", HEALTH_V1), "none of the supported gRPC services"),
        ({}, ("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",), "none of the supported"),
        ({"type_": "DevicePlugin"}, (V1,), "no handler registered for plugin type: DevicePlugin"),
        ({"name": ""}, (V1,), "no name"),
    ],
    ids=["empty", "unknown", "long name", "other type", "no name"],
)
def test_a_plugin_without_a_usable_service_is_refused(
    fields: dict[str, str], versions: tuple[str, ...], message: str
) -> None:
    with pytest.raises(RegistrationError, match=message):
        accept(versions, 36, **fields)


def test_without_an_endpoint_the_registration_socket_serves() -> None:
    assert accept(endpoint="").endpoint == "/r.sock"


@pytest.mark.parametrize(
    ("minor", "versions", "health"),
    [
        (33, (V1BETA1,), None),
        (34, (V1,), HealthService.V1ALPHA1),
        (36, (V1, HEALTH_V1), HealthService.V1ALPHA1),
        (37, (V1,), None),
        (37, (V1, HEALTH_V1ALPHA1), HealthService.V1ALPHA1),
        (37, (V1, HEALTH_V1ALPHA1, HEALTH_V1), HealthService.V1),
    ],
)
def test_the_health_service_depends_on_the_release(
    minor: int, versions: tuple[str, ...], health: HealthService | None
) -> None:
    assert accept(versions, minor=minor).health is health


def test_an_endpoint_registers_once_for_a_driver() -> None:
    plugin = accept()
    refuse_duplicate(plugin, [accept(endpoint="/other.sock"), accept(name="nic.example.com")])
    with pytest.raises(RegistrationError, match=r"endpoint /d.sock already registered"):
        refuse_duplicate(plugin, [accept()])
