"""For backends that act when the container runtime creates pods and containers: a client of NRI.

This is the public API; every other name below `pydra_nri` is private, except `pydra_nri.simulation`, which images leave
out.
"""

from pydra_nri.channel import CallFailed
from pydra_nri.event_handlers import Handlers, Updates
from pydra_nri.plugin import SOCKET, Pauses, Plugin, RuntimeUnavailable, connect
from pydra_nri.session import Sent
from pydra_nri.values import (
    CREATED,
    PAUSED,
    RUNNING,
    STOPPED,
    CDIDevice,
    Container,
    ContainerAdjustment,
    ContainerUpdate,
    CreateContainerResponse,
    HugepageLimit,
    KeyValue,
    LinuxContainer,
    LinuxContainerAdjustment,
    LinuxContainerUpdate,
    LinuxCPU,
    LinuxDevice,
    LinuxDeviceCgroup,
    LinuxMemory,
    LinuxNamespace,
    LinuxPodSandbox,
    LinuxResources,
    Mount,
    PodSandbox,
    cpuset,
)

__all__ = [
    "CREATED",
    "PAUSED",
    "RUNNING",
    "SOCKET",
    "STOPPED",
    "CDIDevice",
    "CallFailed",
    "Container",
    "ContainerAdjustment",
    "ContainerUpdate",
    "CreateContainerResponse",
    "Handlers",
    "HugepageLimit",
    "KeyValue",
    "LinuxCPU",
    "LinuxContainer",
    "LinuxContainerAdjustment",
    "LinuxContainerUpdate",
    "LinuxDevice",
    "LinuxDeviceCgroup",
    "LinuxMemory",
    "LinuxNamespace",
    "LinuxPodSandbox",
    "LinuxResources",
    "Mount",
    "Pauses",
    "Plugin",
    "PodSandbox",
    "RuntimeUnavailable",
    "Sent",
    "Updates",
    "connect",
    "cpuset",
]
