"""Whether a plugin may register, and which of its services are used. Pure.

Source: pkg/kubelet/cm/dra/plugin/registration.go, Kubernetes 1.36 and 1.37.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

PLUGIN_TYPE = "DRAPlugin"
SERVICE = "v1.DRAPlugin"
"""The DRA service that is used, as plugins advertise it; kubelets know v1beta1.DRAPlugin, too."""


class HealthService(Enum):
    """The health services; the advertised words are also the gRPC services' names."""

    V1 = "v1.DRAResourceHealth"
    V1ALPHA1 = "v1alpha1.DRAResourceHealth"


class Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """One registered instance of a driver; `socket` is where it registered, `endpoint` where it serves."""

    driver: str
    socket: str
    endpoint: str
    health: HealthService | None = None


class RegistrationError(Exception):
    """The kubelet does not accept the plugin; NotifyRegistrationStatus sends it the text."""


def accept_plugin(*, socket: str, type_: str, name: str, endpoint: str, versions: Sequence[str], minor: int) -> Plugin:
    """The plugin that this PluginInfo registers; raises RegistrationError."""
    if type_ != PLUGIN_TYPE:
        raise RegistrationError(f"no handler registered for plugin type: {type_} at socket {socket}")
    if not name:
        raise RegistrationError("the plugin has no name")
    if not versions:
        raise RegistrationError(f"DRA plugin {name}: empty list of supported gRPC services")
    if SERVICE not in versions:
        given = ", ".join(versions)
        raise RegistrationError(
            f"DRA plugin {name}: none of the supported gRPC services {given} is known, known is {SERVICE}"
        )
    return Plugin(
        driver=name,
        socket=socket,
        endpoint=endpoint or socket,
        health=_choose_health(versions, minor),
    )


def refuse_duplicate(plugin: Plugin, registered: Sequence[Plugin]) -> None:
    """Raise RegistrationError when the driver already has an instance at this endpoint."""
    if any(other.driver == plugin.driver and other.endpoint == plugin.endpoint for other in registered):
        raise RegistrationError(f"endpoint {plugin.endpoint} already registered for DRA driver plugin {plugin.driver}")


def _choose_health(versions: Sequence[str], minor: int) -> HealthService | None:
    """Up to 1.36 v1alpha1 is tried whatever the plugin says; from 1.37 on what it says counts, v1 first."""
    if minor < 37:
        return HealthService.V1ALPHA1
    return next((service for service in HealthService if service.value in versions), None)
