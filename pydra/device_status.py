"""Values for the status of a claim's device: what a backend says of it in the claim's `status.devices`.

Source of the limits: Kubernetes API reference, AllocatedDeviceStatus and NetworkDeviceData of resource.k8s.io/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_NO_DATA: Mapping[str, Any] = {}


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One condition of a device. The agent adds when `status` changed last."""

    type: str
    """What it is about, in CamelCase, such as `Ready`; at most 316 characters."""
    status: bool | None = True
    """Whether it is so; None for unknown."""
    reason: str
    """Why, as one word in CamelCase; at most 1024 characters."""
    message: str = ""
    """Why, as text for people; at most 32768 bytes."""


class NetworkData(msgspec.Struct, frozen=True, kw_only=True):
    """Where a network device is found in the pod, and its addresses."""

    interface_name: str = ""
    """The interface's name in the pod; at most 256 bytes."""
    ips: tuple[str, ...] = ()
    """At most 16 addresses, each with the length of its network's prefix: `192.0.2.5/24`."""
    hardware_address: str = ""
    """The MAC address, or the address of another kind of link; at most 128 bytes."""


class DeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a claim's device in the claim's `status.devices`."""

    conditions: tuple[Condition, ...] = ()
    """At most 8, of different types."""
    data: Mapping[str, Any] = _NO_DATA
    """Anything else, as a JSON object of at most 10 KiB."""
    network_data: NetworkData | None = None
    """Of a network device."""


class ClaimDeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status that a device of a held claim has now, for `Inventory.claim_statuses`."""

    claim_uid: str
    """The claim's UID."""
    device: str
    """The device's name."""
    share_id: str | None = None
    """As in the allocated device."""
    status: DeviceStatus
    """Its status."""
    warning: str = ""
    """What the owner of the claim should change although its containers run. A new one is an Event on the claim."""
