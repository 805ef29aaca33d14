"""What the runtime calls, which handler each call is for, and which events to ask for. No I/O.

Until NRI 0.11 most events come as one method, StateChange; later each has its own. Source: the API of containerd/nri.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from pydra_nri.messages import ObjectRequest, StateChangeEvent, UpdatePodSandboxRequest
from pydra_nri.protobuf import Value, decode
from pydra_nri.values import Container, ContainerUpdate, CreateContainerResponse, LinuxResources, PodSandbox
from pydra_nri.versions import NriVersion

PodHandler: TypeAlias = Callable[[PodSandbox], Awaitable[None]]
ContainerHandler: TypeAlias = Callable[[PodSandbox, Container], Awaitable[None]]
Updates: TypeAlias = Sequence[ContainerUpdate]


class Handlers(msgspec.Struct, frozen=True, kw_only=True):
    """Coroutines, one for each event that a backend wants; None leaves an event out.

    An exception makes the runtime's operation fail if the event comes before it (RunPodSandbox, CreateContainer,
    StartContainer, UpdateContainer, UpdatePodSandbox), and is only logged by the runtime otherwise.
    """

    synchronize: Callable[[Sequence[PodSandbox], Sequence[Container]], Awaitable[Updates]]
    """Called with all that exists, after each connection and before any event; returns what to correct."""
    keep: Callable[[Container], Container] | None = None
    """Returns what `synchronize` needs of a container: authors of pods may give each an environment of a MiB."""
    run_pod_sandbox: PodHandler | None = None
    stop_pod_sandbox: PodHandler | None = None
    remove_pod_sandbox: PodHandler | None = None
    create_container: Callable[[PodSandbox, Container], Awaitable[CreateContainerResponse]] | None = None
    post_create_container: ContainerHandler | None = None
    start_container: ContainerHandler | None = None
    post_start_container: ContainerHandler | None = None
    update_container: Callable[[PodSandbox, Container, LinuxResources], Awaitable[Updates]] | None = None
    """With the resources that the kubelet asks for; an update of the same container replaces what it sets."""
    post_update_container: ContainerHandler | None = None
    stop_container: Callable[[PodSandbox, Container], Awaitable[Updates]] | None = None
    """The container has ended."""
    remove_container: ContainerHandler | None = None
    update_pod_sandbox: Callable[[PodSandbox, LinuxResources], Awaitable[None]] | None = None
    """With the pod's new resources; NRI 0.10."""
    post_update_pod_sandbox: PodHandler | None = None
    """NRI 0.10."""


_METHODS = (
    *(
        "RunPodSandbox",
        "StopPodSandbox",
        "RemovePodSandbox",
        "CreateContainer",
        "PostCreateContainer",
        "StartContainer",
    ),
    *("PostStartContainer", "UpdateContainer", "PostUpdateContainer", "StopContainer", "RemoveContainer"),
    *("UpdatePodSandbox", "PostUpdatePodSandbox"),
)
"""By the number of their event, from 1."""

_POD_EVENTS_OF_0_10 = 12
"""A runtime refuses a plugin that asks for an event it does not know; these and later ones are of NRI 0.10."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event: its method's name and what it is about; a pod's has no container."""

    method: str
    pod: PodSandbox
    container: Container = Container()
    resources: LinuxResources = LinuxResources()

    def start(self, handlers: Handlers) -> Awaitable[Any] | None:
        """Call the handler; None if there is none for this event."""
        handler = getattr(handlers, _name(self.method))
        if handler is None:
            return None
        match self.method:
            case "UpdatePodSandbox":
                arguments: tuple[Value, ...] = (self.pod, self.resources)
            case "UpdateContainer":
                arguments = (self.pod, self.container, self.resources)
            case method:
                arguments = (self.pod,) if method.endswith("PodSandbox") else (self.pod, self.container)
        started: Awaitable[Any] = handler(*arguments)
        return started

    def __str__(self) -> str:
        """The event and its object, for people."""
        container = f"container {self.container.name} of " if self.container.name else ""
        return f"{self.method} of {container}pod {self.pod.namespace}/{self.pod.name}"


def read_event(method: str, payload: bytes) -> Event | None:
    """The event of a call; None if there is no such method, or no such event."""
    if method == "StateChange":
        change = decode(payload, StateChangeEvent)
        if 1 <= change.event <= len(_METHODS):
            return Event(method=_METHODS[change.event - 1], pod=change.pod, container=change.container)
    elif method == "UpdatePodSandbox":
        update = decode(payload, UpdatePodSandboxRequest)
        return Event(method=method, pod=update.pod, resources=update.linux_resources)
    elif method in _METHODS:
        request = decode(payload, ObjectRequest)
        return Event(method=method, pod=request.pod, container=request.container, resources=request.linux_resources)
    return None


def _name(method: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()


def choose_events(handlers: Handlers, nri: NriVersion) -> tuple[int, list[str]]:
    """The mask of events to ask for, and the names of handlers that this version has no event for."""
    wanted = [number for number, method in enumerate(_METHODS, 1) if getattr(handlers, _name(method)) is not None]
    last = len(_METHODS) if nri >= (0, 10) else _POD_EVENTS_OF_0_10 - 1
    mask = sum(1 << (number - 1) for number in wanted if number <= last)
    return mask, [_name(_METHODS[number - 1]) for number in wanted if number > last]
