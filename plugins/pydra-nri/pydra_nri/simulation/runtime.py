"""A container runtime without containers: it calls plugins as containerd does, and remembers what they change.

What a plugin must not do has the same consequence as there: its connection is closed, the operation goes on without it,
or fails because two plugins set one field. Source: the adaptation of containerd/nri, and trials with containerd 2.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import msgspec

from pydra_nri.messages import (
    ConfigureRequest,
    ConfigureResponse,
    ObjectRequest,
    RegisterPluginRequest,
    Request,
    StateChangeEvent,
    SynchronizeRequest,
    UpdateContainersRequest,
    UpdateContainersResponse,
    UpdatesResponse,
)
from pydra_nri.messages import Status as Error
from pydra_nri.protobuf import Value, decode
from pydra_nri.simulation.connection import PluginClosed, PluginConnection, PluginRefused
from pydra_nri.values import (
    Container,
    ContainerUpdate,
    CreateContainerResponse,
    LinuxCPU,
    LinuxResources,
    PodSandbox,
)

_UNKNOWN, _UNIMPLEMENTED = 2, 12
_EVENTS = {
    "RunPodSandbox": 1,
    "StopPodSandbox": 2,
    "RemovePodSandbox": 3,
    "CreateContainer": 4,
    "StartContainer": 6,
    "PostStartContainer": 7,
    "UpdateContainer": 8,
    "StopContainer": 10,
    "RemoveContainer": 11,
}
_OWN_METHODS = ("CreateContainer", "UpdateContainer", "StopContainer")


class OperationFailed(Exception):
    """The error that the kubelet gets: a plugin refused, or two plugins wanted different things."""


class Registered(msgspec.Struct, kw_only=True):
    """A plugin that has been registered."""

    name: str
    index: str
    connection: PluginConnection
    events: int = 0
    state_changes: bool = False


Owners: TypeAlias = dict[tuple[str, str], Registered]
"""Which plugin has set a field of a container in an operation: an instance, not a name."""


class FakeRuntime:
    """Pods and containers, and the plugins that are called for them.

    `version` and `nri` are what Configure says; with `nri`, 0.12 or later, events have methods of their own. `part` is
    how many pods and containers one Synchronize has, 0 for all; `cut` how many bytes are written at once.
    """

    def __init__(
        self, *, version: str = "2.1.9", nri: str = "", request_timeout: float = 2.0, part: int = 0, cut: int = 0
    ) -> None:
        self.version = version
        self.nri = nri
        self.request_timeout = request_timeout
        self.part = part
        self.cut = cut
        self.pods: dict[str, PodSandbox] = {}
        self.containers: dict[str, Container] = {}
        self.plugins: list[Registered] = []
        self.log: list[str] = []
        """What happened to plugins: `registered cpu`, `closed cpu`, `skipped cpu at CreateContainer`."""
        self._changed = asyncio.Condition()
        self._lock = asyncio.Lock()
        self._starting: set[str] = set()
        self._refused: list[str] = []
        """The pods' uids, one for each sandbox."""
        self._connections: dict[asyncio.Task[None], PluginConnection] = {}

    @asynccontextmanager
    async def serve(self, socket: str) -> AsyncIterator[None]:
        """Accept plugins at a socket, until the runtime ends; pods and containers are there when it is served again.

        Raises OperationFailed if plugins have refused two sandboxes of one pod.
        """
        if len(set(self._refused)) < len(self._refused):
            raise OperationFailed("failed to recover state: failed to reserve sandbox name")
        ended = False

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if ended:  # it connected at the last moment
                writer.transport.abort()
            else:
                await self._accept(reader, writer)

        server = await asyncio.start_unix_server(accept, socket)
        try:
            yield
        finally:
            ended = True
            for _ in range(5):
                await asyncio.sleep(0)  # what asyncio is accepting when its server closes would stay open
            server.close()
            serving = dict(self._connections)
            for connection in serving.values():
                connection.close()
            await asyncio.gather(*serving, return_exceptions=True)
            self.plugins.clear()

    async def wait_logged(self, line: str, *, times: int = 1) -> None:
        """Wait until something has happened to a plugin so often."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.log.count(line) >= times)

    async def _note(self, line: str) -> None:
        async with self._changed:
            self.log.append(line)
            self._changed.notify_all()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = asyncio.get_running_loop().create_future()

        async def serve(request: Request) -> Value:
            if request.method == "UpdateContainers":
                return self._apply_unasked(decode(request.payload, UpdateContainersRequest).update)
            wanted = decode(request.payload, RegisterPluginRequest)
            if len(wanted.plugin_index) != 2 or not wanted.plugin_index.isdecimal():
                raise PluginRefused(Error(code=_UNKNOWN, message=f'invalid plugin index: "{wanted.plugin_index}"'))
            plugin = Registered(name=wanted.plugin_name, index=wanted.plugin_index, connection=connection)
            # The real one, too, may configure a plugin before it answers.
            await self._configure(plugin)
            name.set_result(plugin)
            return Value()

        connection = PluginConnection(reader, writer, serve, cut=self.cut)
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = connection
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(connection.run())
                await asyncio.wait((reading, name), return_when=asyncio.FIRST_COMPLETED)
                if name.done():
                    await self._synchronize(name.result())
                await connection.closed.wait()
        finally:
            del self._connections[task]
        if name.done():
            self.plugins = [one for one in self.plugins if one is not name.result()]
            await self._note(f"closed {name.result().name}")

    async def _configure(self, plugin: Registered) -> None:
        milliseconds = int(self.request_timeout * 1000)
        request = ConfigureRequest(
            runtime_name="containerd",
            runtime_version=self.version,
            request_timeout=milliseconds,
            nri_version=self.nri,
        )
        known = 0x3FFF if self.nri else 0x7FF
        try:
            answer = await plugin.connection.call("Configure", request, timeout=self.request_timeout)
        except (PluginRefused, PluginClosed) as error:
            await self._note(f"refused {plugin.name}: {error}")
            raise PluginRefused(Error(code=_UNKNOWN, message=str(error))) from error
        events = decode(answer, ConfigureResponse).events
        plugin.events = events or known
        if events & ~known:
            plugin.connection.close()

    async def _synchronize(self, plugin: Registered) -> None:
        """The whole series of parts shares one deadline, and only the last may be answered with updates."""
        everything: list[PodSandbox | Container] = [*self.pods.values(), *self.containers.values()]
        size = self.part or max(len(everything), 1)
        parts = [everything[start : start + size] for start in range(0, len(everything), size)] or [[]]
        async with self._lock:
            try:
                for number, part in enumerate(parts, 1):
                    request = SynchronizeRequest(
                        pods=tuple(one for one in part if isinstance(one, PodSandbox)),
                        containers=tuple(one for one in part if isinstance(one, Container)),
                        more=number < len(parts),
                    )
                    answer = decode(
                        await plugin.connection.call("Synchronize", request, timeout=self.request_timeout),
                        UpdatesResponse,
                    )
                    if answer.more != request.more or (request.more and answer.update):
                        raise PluginClosed("plugin does not handle split sync requests")
            except (PluginClosed, PluginRefused) as error:
                await self._note(f"not synchronized {plugin.name}: {error}")
                return
            self._apply(answer.update, {})
            self.plugins = sorted([*self.plugins, plugin], key=lambda one: one.index)
        await self._note(f"registered {plugin.name}")

    async def run_pod(self, pod: PodSandbox) -> None:
        """A sandbox begins. One that is refused is not removed, as in containerd 2 before 2.2.6."""
        self.pods[pod.id] = pod
        try:
            await self._send("RunPodSandbox", ObjectRequest(pod=pod))
        except OperationFailed:
            self._refused.append(pod.uid)
            raise

    async def stop_pod(self, pod: PodSandbox) -> None:
        """A sandbox ends and is removed."""
        await self._send("StopPodSandbox", ObjectRequest(pod=pod))
        await self._send("RemovePodSandbox", ObjectRequest(pod=pod))
        del self.pods[pod.id]

    async def create_container(self, container: Container, *, start: bool = True) -> Container:
        """A container of a known pod, which also starts; as the plugins have changed it."""
        pod = self.pods[container.pod_sandbox_id]
        owners: Owners = {}
        async with self._lock:
            for plugin in self._list("CreateContainer"):
                payload = await self._call(plugin, "CreateContainer", ObjectRequest(pod=pod, container=container))
                if payload is not None:
                    answer = decode(payload, CreateContainerResponse)
                    if any(one.container_id == container.id for one in answer.update):
                        raise OperationFailed(f"{plugin.name} updates the container that is being created")
                    env = (*container.env, *(f"{one.key}={one.value}" for one in answer.adjust.env))
                    cpu = answer.adjust.linux.resources.cpu
                    container = msgspec.structs.replace(_set(container, cpu, owners, plugin), env=env)
                    self._apply(answer.update, owners, plugin)
            self.containers[container.id] = container
            self._starting.add(container.id)
        if start:
            await self.start_container(container)
        return container

    async def start_container(self, container: Container) -> None:
        """A container that has been created starts."""
        request = ObjectRequest(pod=self.pods[container.pod_sandbox_id], container=container)
        await self._send("StartContainer", request)
        self._starting.discard(container.id)
        await self._send("PostStartContainer", request)

    async def update_container(self, container: Container, resources: LinuxResources) -> Container:
        """The kubelet asks for other resources; what the container has then."""
        pod = self.pods[container.pod_sandbox_id]
        request = ObjectRequest(pod=pod, container=container, linux_resources=resources)
        updates = await self._send("UpdateContainer", request)
        own = ContainerUpdate.of(container.id, resources)
        self._apply((own, *updates), {})
        return self.containers[container.id]

    async def stop_container(self, container: Container) -> None:
        """A container has ended and is removed."""
        request = ObjectRequest(pod=self.pods[container.pod_sandbox_id], container=container)
        del self.containers[container.id]
        self._starting.discard(container.id)
        self._apply(await self._send("StopContainer", request), {})
        await self._send("RemoveContainer", request)

    async def _send(self, method: str, request: ObjectRequest) -> Sequence[ContainerUpdate]:
        updates: list[ContainerUpdate] = []
        async with self._lock:
            for plugin in self._list(method):
                payload = await self._call(plugin, method, request)
                updates += decode(payload, UpdatesResponse).update if payload else ()
        return updates

    def _list(self, method: str) -> list[Registered]:
        return [plugin for plugin in self.plugins if plugin.events & 1 << (_EVENTS[method] - 1)]

    async def _call(self, plugin: Registered, method: str, request: ObjectRequest) -> bytes | None:
        """The answer; None if there was none in time: the plugin is closed, and the operation goes on."""
        own = method in _OWN_METHODS or (self.nri and not plugin.state_changes)
        change = StateChangeEvent(event=_EVENTS[method], pod=request.pod, container=request.container)
        name, payload = (method, request) if own else ("StateChange", change)
        try:
            return await plugin.connection.call(name, payload, timeout=self.request_timeout)
        except PluginClosed:
            await self._note(f"skipped {plugin.name} at {name}")
            return None
        except PluginRefused as error:
            if error.code == _UNIMPLEMENTED and own and method not in _OWN_METHODS:
                plugin.state_changes = True
                return await self._call(plugin, method, request)
            raise OperationFailed(str(error)) from error

    def _apply(
        self, updates: Sequence[ContainerUpdate], owners: Owners, plugin: Registered | None = None
    ) -> list[ContainerUpdate]:
        """Change containers; returns updates of unknown ones.

        One that is being created or started stays as it is, as in containerd: until it is stored it is not found, and
        once its process exists only what is stored changes.
        """
        failed = []
        for update in updates:
            container = self.containers.get(update.container_id)
            if container is None:
                failed.append(update)
                continue
            if container.id in self._starting:
                continue
            try:
                self.containers[container.id] = _set(container, update.linux.resources.cpu, owners, plugin)
            except OperationFailed:
                if not update.ignore_failure:
                    raise
        return failed

    def _apply_unasked(self, updates: Sequence[ContainerUpdate]) -> UpdateContainersResponse:
        self.log.append("updated")
        return UpdateContainersResponse(failed=tuple(self._apply(updates, {})))


def _set(container: Container, wanted: LinuxCPU, owners: Owners, plugin: Registered | None) -> Container:
    """What has a value replaces what is there, unless another plugin has set it in the same operation."""
    changes = {
        field: value for field in wanted.__struct_fields__ if (value := getattr(wanted, field)) not in ("", None)
    }
    for field in changes:
        if plugin and (owner := owners.setdefault((container.id, field), plugin)) is not plugin:
            raise OperationFailed(f"plugins {owner.name} and {plugin.name} both tried to set {field}")
    cpu = msgspec.structs.replace(container.linux.resources.cpu, **changes)
    resources = msgspec.structs.replace(container.linux.resources, cpu=cpu)
    return msgspec.structs.replace(container, linux=msgspec.structs.replace(container.linux, resources=resources))
