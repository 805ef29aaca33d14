"""The health of a driver's devices, as the agent last found it: one value, and who wants to hear when it changes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pydra.devices import Health


class DeviceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How one device is; `updated` is when that was found, in seconds since 1970."""

    pool: str
    device: str
    health: Health
    updated: int = 0


class HealthBoard:
    """The complete list of devices with their health. Publishing what stands there already disturbs nobody."""

    def __init__(self) -> None:
        self._devices: tuple[DeviceHealth, ...] = ()
        self._listeners: list[Callable[[], None]] = []

    def publish(self, devices: tuple[DeviceHealth, ...]) -> None:
        """Replace the list, and tell the listeners when another device, state or message is in it."""
        before, self._devices = self._devices, devices
        if _states(before) != _states(devices):
            for listener in tuple(self._listeners):
                listener()

    def current(self) -> tuple[DeviceHealth, ...]:
        """All devices."""
        return self._devices

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each change; the result ends that."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)


def _states(devices: tuple[DeviceHealth, ...]) -> tuple[tuple[str, str, Health], ...]:
    return tuple((device.pool, device.device, device.health) for device in devices)
