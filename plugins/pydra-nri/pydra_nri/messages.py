"""The messages that backends do not see: ttrpc's and those around NRI's objects.

Source: containerd/ttrpc, containerd/nri.
"""

from __future__ import annotations

from typing import Annotated

from pydra_nri.protobuf import Value
from pydra_nri.values import Container, ContainerUpdate, LinuxResources, PodSandbox

PLUGIN, RUNTIME = "nri.pkg.api.v1alpha1.Plugin", "nri.pkg.api.v1alpha1.Runtime"
"""The services that the two sides serve."""


class Request(Value, frozen=True, kw_only=True):
    """A call; `timeout_nano` is what its caller will still wait, 0 if it does not say."""

    service: Annotated[str, 1] = ""
    method: Annotated[str, 2] = ""
    payload: Annotated[bytes, 3] = b""
    timeout_nano: Annotated[int, 4] = 0


class Status(Value, frozen=True, kw_only=True):
    """An error; its code is 0 for none."""

    code: Annotated[int, 1] = 0
    message: Annotated[str, 2] = ""


class Response(Value, frozen=True, kw_only=True):
    """The answer to a call."""

    status: Annotated[Status, 1] = Status()
    payload: Annotated[bytes, 2] = b""


class RegisterPluginRequest(Value, frozen=True, kw_only=True):
    """What a plugin begins with; its index has two digits."""

    plugin_name: Annotated[str, 1] = ""
    plugin_index: Annotated[str, 2] = ""


class ConfigureRequest(Value, frozen=True, kw_only=True):
    """What the runtime says of itself: its timeout in milliseconds from NRI 0.7 on, its version of NRI from 0.12 on."""

    runtime_name: Annotated[str, 2] = ""
    runtime_version: Annotated[str, 3] = ""
    request_timeout: Annotated[int, 5] = 0
    nri_version: Annotated[str, 6] = ""


class ConfigureResponse(Value, frozen=True, kw_only=True):
    """The events that a plugin wants, a bit for each; 0 are all."""

    events: Annotated[int, 2] = 0


class SynchronizeRequest(Value, frozen=True, kw_only=True):
    """All that exists, or with `more` a part of it."""

    pods: Annotated[tuple[PodSandbox, ...], 1] = ()
    containers: Annotated[tuple[Container, ...], 2] = ()
    more: Annotated[bool, 3] = False


class UpdateContainersRequest(Value, frozen=True, kw_only=True):
    """Updates that no event asked for."""

    update: Annotated[tuple[ContainerUpdate, ...], 1] = ()


class UpdateContainersResponse(Value, frozen=True, kw_only=True):
    """The updates that could not be done."""

    failed: Annotated[tuple[ContainerUpdate, ...], 1] = ()


class ObjectRequest(Value, frozen=True, kw_only=True):
    """An event that has a method of its own."""

    pod: Annotated[PodSandbox, 1] = PodSandbox()
    container: Annotated[Container, 2] = Container()
    linux_resources: Annotated[LinuxResources, 3] = LinuxResources()


class UpdatePodSandboxRequest(Value, frozen=True, kw_only=True):
    """A pod's resources are changed."""

    pod: Annotated[PodSandbox, 1] = PodSandbox()
    linux_resources: Annotated[LinuxResources, 3] = LinuxResources()


class StateChangeEvent(Value, frozen=True, kw_only=True):
    """An event by its number."""

    event: Annotated[int, 1] = 0
    pod: Annotated[PodSandbox, 2] = PodSandbox()
    container: Annotated[Container, 3] = Container()


class UpdatesResponse(Value, frozen=True, kw_only=True):
    """The answer to UpdateContainer, StopContainer and, with `more`, Synchronize."""

    update: Annotated[tuple[ContainerUpdate, ...], 1] = ()
    more: Annotated[bool, 2] = False
