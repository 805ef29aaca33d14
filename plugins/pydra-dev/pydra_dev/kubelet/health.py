"""What the kubelet knows of devices' health, and for how long. Pure: the time is an argument, in seconds.

Source: pkg/kubelet/cm/dra/healthinfo.go, Kubernetes 1.36 and 1.37.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from pydra_dev.kubelet.registration import Plugin

MESSAGE_LIMIT = 1024
WORDS = {0: "Unknown", 1: "Healthy", 2: "Unhealthy"}
DeviceKey: TypeAlias = tuple[str, str, str]
"""Driver, pool, device."""


class DeviceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Health as a plugin reported it, in words of the pod's status; it counts until `expires`."""

    health: str
    message: str = ""
    expires: float


UNKNOWN = DeviceHealth(health="Unknown", expires=0)


class HealthCache:
    """The latest health of every device. A device that a report leaves out keeps its own until it expires."""

    def __init__(self) -> None:
        self._devices: dict[DeviceKey, DeviceHealth] = {}

    def store(self, driver: str, pool: str, device: str, health: DeviceHealth) -> bool:
        """Take over a report; whether it says something new."""
        key = driver, pool, device
        old = self._devices.get(key)
        self._devices[key] = health
        return old is None or (old.health, old.message) != (health.health, health.message)

    def clear(self, driver: str) -> bool:
        """Forget a driver's devices; whether there were any."""
        keys = [key for key in self._devices if key[0] == driver]
        for key in keys:
            del self._devices[key]
        return bool(keys)

    def read(self, driver: str, pool: str, device: str, now: float) -> DeviceHealth:
        """A device's health; Unknown when nobody said, or not for long."""
        found = self._devices.get((driver, pool, device), UNKNOWN)
        return found if found.expires > now else UNKNOWN

    def next_expiry(self, now: float) -> float | None:
        """When the next device becomes Unknown unless it is reported again."""
        return min((health.expires for health in self._devices.values() if health.expires > now), default=None)


def build_health(*, health: int, message: str, timeout: int, now: float, lease: float) -> DeviceHealth:
    """A report of the wire, received now; a `timeout` of 0 or below stands for the default `lease`."""
    raw = message.encode()
    if len(raw) > MESSAGE_LIMIT:
        message = raw[: MESSAGE_LIMIT - 3].decode(errors="ignore") + "..."
    return DeviceHealth(
        health=WORDS.get(health, "Unknown"), message=message, expires=now + (timeout if timeout > 0 else lease)
    )


def choose_streams(plugins: Sequence[Plugin], minor: int) -> tuple[Plugin, ...]:
    """Which instances of a driver are watched: up to 1.36 all, later the latest only, if it has the service."""
    watched = plugins if minor < 37 else plugins[-1:]
    return tuple(plugin for plugin in watched if plugin.health is not None)
