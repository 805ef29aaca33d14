"""What the kubelet did, as frozen values for its observers: one class for each kind of step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from pydra_dev.container_runtime.cdi_injection import OciSpec
from pydra_dev.kubelet.plugin_acceptance import Plugin


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin answered and was accepted."""

    plugin: Plugin


class RegistrationFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A registration socket did not lead to a registered plugin; it is tried again."""

    socket: str
    message: str


class Deregistered(msgspec.Struct, frozen=True, kw_only=True):
    """A registration socket is gone, and with it the plugin."""

    plugin: Plugin


class SlicesWiped(msgspec.Struct, frozen=True, kw_only=True):
    """ResourceSlices were deleted: of one driver, or all of the node's when `driver` is empty."""

    driver: str
    names: tuple[str, ...]


class Called(msgspec.Struct, frozen=True, kw_only=True):
    """NodePrepareResources or NodeUnprepareResources was called; `error` when it failed as a whole or for a claim.

    `answered`: the driver answered, if only with an error.
    """

    method: str
    driver: str
    claims: tuple[str, ...]
    cdi_ids: tuple[str, ...] = ()
    seconds: float
    error: str = ""
    answered: bool = True


class PodFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A pod could not be started or ended; it is tried again."""

    pod: str
    reason: str
    message: str


class ContainerCreated(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime made a container: its OCI configuration before and after the CDI devices.

    `without` says of which claims it has no device, and why. `is_init`: those after it start when it has ended.
    `policy` is the restart policy that it has, its own or the pod's.
    """

    pod: str
    container: str
    cdi_ids: tuple[str, ...]
    without: tuple[str, ...] = ()
    is_init: bool = False
    policy: str = "Always"
    before: OciSpec
    after: OciSpec


class PodRunning(msgspec.Struct, frozen=True, kw_only=True):
    """All containers of the pod run."""

    pod: str


class PodEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The pod's containers have ended and its claims are unprepared."""

    pod: str


class HealthChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The health that the kubelet knows of a driver's devices changed."""

    driver: str
    devices: tuple[tuple[str, str, str], ...]
    """Pool, device, health in words of the pod's status."""


Step: TypeAlias = (
    Registered
    | RegistrationFailed
    | Deregistered
    | SlicesWiped
    | Called
    | PodFailed
    | ContainerCreated
    | PodRunning
    | PodEnded
    | HealthChanged
)
Report: TypeAlias = Callable[[Step], None]
