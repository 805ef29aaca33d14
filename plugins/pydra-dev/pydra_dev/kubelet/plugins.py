"""All registered plugins: which instance of a driver is called, and when a driver has been away for too long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from pydra_dev.kubelet.instance import PluginInstance
from pydra_dev.kubelet.registration import Plugin, refuse_duplicate
from pydra_dev.kubelet.settings import KubeletSettings
from pydra_dev.kubelet.steps import Deregistered, Registered, Report


class NotRegistered(Exception):
    """No instance of the driver is registered."""

    def __init__(self, driver: str) -> None:
        super().__init__(f"DRA driver {driver} is not registered")


class Connectable(Protocol):
    """Anything that is connected, or not."""

    @property
    def connected(self) -> bool:
        """Now."""
        ...


ConnectableT = TypeVar("ConnectableT", bound=Connectable)


def choose_instance(instances: Sequence[ConnectableT]) -> ConnectableT:
    """The latest registered that is connected, or else the latest; `instances` are in order of registration."""
    return next((one for one in reversed(instances) if one.connected), instances[-1])


class PluginRegistry:
    """Instances by driver, in order of registration; each has a connection of its own.

    `wipe` deletes a driver's slices; `followers_changed` hears of each change of a driver's instances.
    """

    def __init__(
        self,
        settings: KubeletSettings,
        tasks: TaskGroup,
        *,
        wipe: Callable[[str], Awaitable[None]],
        followers_changed: Callable[[str, Sequence[PluginInstance]], None],
        report: Report,
    ) -> None:
        self._settings = settings
        self._tasks = tasks
        self._wipe = wipe
        self._followers_changed = followers_changed
        self._report = report
        self._instances: dict[str, list[PluginInstance]] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._pending_wipes: dict[str, anyio.CancelScope] = {}

    def register(self, plugin: Plugin) -> None:
        """Take an instance in and connect to it; raises RegistrationError."""
        instances = self._instances.setdefault(plugin.driver, [])
        refuse_duplicate(plugin, [one.plugin for one in instances])
        instance = PluginInstance(plugin, self._settings.periods, changed=lambda: self._check_usable(plugin.driver))
        instances.append(instance)
        self._scopes[plugin.socket] = self._spawn(instance.run, name=f"connection to {plugin.driver}")
        self._report(Registered(plugin=plugin))
        self._followers_changed(plugin.driver, tuple(instances))
        self._check_usable(plugin.driver)

    def deregister(self, socket: str) -> None:
        """Let go of whatever registered at this socket."""
        for driver, instances in self._instances.items():
            for instance in [one for one in instances if one.plugin.socket == socket]:
                instances.remove(instance)
                self._scopes.pop(socket).cancel()
                self._report(Deregistered(plugin=instance.plugin))
                self._followers_changed(driver, tuple(instances))
                self._check_usable(driver)

    def choose(self, driver: str) -> PluginInstance:
        """The instance to call; raises NotRegistered."""
        instances = self._instances.get(driver)
        if not instances:
            raise NotRegistered(driver)
        return choose_instance(instances)

    def _check_usable(self, driver: str) -> None:
        """Have the driver's slices deleted some time after it went away, unless it comes back."""
        usable = any(one.connected for one in self._instances[driver])
        pending = self._pending_wipes.get(driver)
        if usable and pending:
            del self._pending_wipes[driver]
            pending.cancel()
        elif not usable and not pending:

            async def wipe_later() -> None:
                await anyio.sleep(self._settings.periods.wipe_after)
                await self._wipe(driver)

            self._pending_wipes[driver] = self._spawn(wipe_later, name=f"wipe slices of {driver}")

    def _spawn(self, work: Callable[[], Awaitable[None]], *, name: str) -> anyio.CancelScope:
        scope = anyio.CancelScope()

        async def run() -> None:
            with scope:
                await work()

        self._tasks.start_soon(run, name=name)
        return scope
