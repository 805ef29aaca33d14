"""What the kubelet knows of devices' health, for how long, and the streams that it learns it from.

One stream for each plugin instance, opened again when it ends. Source: pkg/kubelet/cm/dra/healthinfo.go, Kubernetes
1.36 and 1.37.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import anyio
import msgspec
from anyio.abc import TaskGroup
from grpclib.client import UnaryStreamMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from pydra.kubelet.pb import NodeWatchResourcesRequest, NodeWatchResourcesResponse
from pydra_dev.kubelet.grpc_channel import settle_cancellation
from pydra_dev.kubelet.observations import HealthChanged, Report
from pydra_dev.kubelet.plugin_acceptance import Plugin
from pydra_dev.kubelet.plugins import PluginInstance, start_task
from pydra_dev.kubelet.settings import KubeletSettings

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


log = logging.getLogger(__name__)


class HealthStreams:
    """Keeps `cache` as the plugins say."""

    def __init__(
        self,
        settings: KubeletSettings,
        tasks: TaskGroup,
        cache: HealthCache,
        *,
        report: Report,
    ) -> None:
        self._settings = settings
        self._tasks = tasks
        self._cache = cache
        self._news = anyio.Event()
        self._report = report
        self._streams: dict[str, dict[str, anyio.CancelScope]] = {}

    def follow(self, driver: str, instances: Sequence[PluginInstance]) -> None:
        """Watch the instances of a driver that are to be watched, and no others."""
        wanted = {plugin.socket for plugin in choose_streams([one.plugin for one in instances], self._settings.minor)}
        running = self._streams.setdefault(driver, {})
        for socket in [socket for socket in running if socket not in wanted]:
            running.pop(socket).cancel()
        if not instances:
            self._forget(driver)
        for instance in instances:
            if instance.plugin.socket in wanted and instance.plugin.socket not in running:
                name = f"health of {instance.plugin.driver}"
                running[instance.plugin.socket] = start_task(self._tasks, self._watch, instance, name=name)

    async def tell(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a pod's status may differ: after a report, and when one expires. Until cancelled."""
        while True:
            now = time.monotonic()
            expiry = self._cache.next_expiry(now)
            with anyio.move_on_after(math.inf if expiry is None else expiry - now):
                await self._news.wait()
            self._news = anyio.Event()
            changed()

    async def _watch(self, instance: PluginInstance) -> None:
        driver = instance.plugin.driver
        while True:
            await instance.wait_connected()
            try:
                await self._read(instance)
            except GRPCError as error:
                log.debug("health stream of %s ended: %s", driver, error)
                if error.status is Status.UNIMPLEMENTED and self._settings.minor >= 37:
                    return
            except (StreamTerminatedError, OSError) as error:
                log.debug("health stream of %s broke: %s", driver, error)
            self._forget(driver)
            await anyio.sleep(self._settings.periods.health_retry)

    async def _read(self, instance: PluginInstance) -> None:
        assert instance.plugin.health is not None  # choose_streams leaves the others out
        path = f"/{instance.plugin.health.value}/NodeWatchResources"
        watch = UnaryStreamMethod(instance.channel, path, NodeWatchResourcesRequest, NodeWatchResourcesResponse)
        with settle_cancellation():
            async with watch.open() as stream:
                await stream.send_message(NodeWatchResourcesRequest(), end=True)
                async for answer in stream:
                    self._store(instance.plugin.driver, answer.devices)

    def _store(self, driver: str, devices: Sequence[Any]) -> None:
        now, lease = time.monotonic(), self._settings.periods.health_lease
        news = []
        for device in devices:
            if device.device is None:  # a device without a name is nobody's
                continue
            health = build_health(
                health=int(device.health),
                message=device.message,
                timeout=device.health_check_timeout_seconds,
                now=now,
                lease=lease,
            )
            if self._cache.store(driver, device.device.pool_name, device.device.device_name, health):
                news.append((device.device.pool_name, device.device.device_name, health.health))
        self._news.set()  # also when nothing is new: the time at which health expires has moved
        if news:
            self._report(HealthChanged(driver=driver, devices=tuple(news)))

    def _forget(self, driver: str) -> None:
        if self._cache.clear(driver):
            self._news.set()
            self._report(HealthChanged(driver=driver, devices=()))
