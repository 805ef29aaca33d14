"""The health of a driver's devices, as the agent last found it: one value, and who wants to hear when it changes."""

from __future__ import annotations

from collections.abc import Callable

from pydra.devices import DeviceHealth, HealthStatus


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


def _states(devices: tuple[DeviceHealth, ...]) -> tuple[tuple[str, str, HealthStatus, str], ...]:
    return tuple((device.pool, device.device, device.status, device.message) for device in devices)
