"""What NRI says of pods and containers, and what backends return for them, as values.

Source: the API of containerd/nri, v1alpha1. Fields that no backend needs are left out: hooks, limits of processes,
seccomp, scheduling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydra_nri.protobuf import Value


class LinuxNamespace(Value, frozen=True, kw_only=True):
    """A namespace by its type (`network`, `pid`, `mount`, ...); one that has no path is new."""

    type: Annotated[str, 1] = ""
    path: Annotated[str, 2] = ""


class LinuxMemory(Value, frozen=True, kw_only=True):
    """Limits in bytes; None leaves them as they are."""

    limit: Annotated[int | None, 1] = None
    reservation: Annotated[int | None, 2] = None
    swap: Annotated[int | None, 3] = None


class LinuxCPU(Value, frozen=True, kw_only=True):
    """Shares and quota (microseconds in each period), and the CPUs and NUMA nodes as lists: `0-3,8`.

    An empty list and None leave a setting as it is: to lift a restriction, name all CPUs.
    """

    shares: Annotated[int | None, 1] = None
    quota: Annotated[int | None, 2] = None
    period: Annotated[int | None, 3] = None
    cpus: Annotated[str, 6] = ""
    mems: Annotated[str, 7] = ""


class HugepageLimit(Value, frozen=True, kw_only=True):
    """A limit in bytes of pages of a size, such as `2MB`."""

    page_size: Annotated[str, 1] = ""
    limit: Annotated[int, 2] = 0


class LinuxDeviceCgroup(Value, frozen=True, kw_only=True):
    """Which devices may be used: `type` is `c` or `b`, `access` of the letters `rwm`; None is any number."""

    allow: Annotated[bool, 1] = False
    type: Annotated[str, 2] = ""
    major: Annotated[int | None, 3] = None
    minor: Annotated[int | None, 4] = None
    access: Annotated[str, 5] = ""


class LinuxResources(Value, frozen=True, kw_only=True):
    """What a cgroup limits."""

    memory: Annotated[LinuxMemory, 1] = LinuxMemory()
    cpu: Annotated[LinuxCPU, 2] = LinuxCPU()
    hugepage_limits: Annotated[tuple[HugepageLimit, ...], 3] = ()
    unified: Annotated[Mapping[str, str], 6] = {}
    devices: Annotated[tuple[LinuxDeviceCgroup, ...], 7] = ()


class LinuxPodSandbox(Value, frozen=True, kw_only=True):
    """What of a pod is Linux's."""

    pod_overhead: Annotated[LinuxResources, 1] = LinuxResources()
    pod_resources: Annotated[LinuxResources, 2] = LinuxResources()
    cgroup_parent: Annotated[str, 3] = ""
    cgroups_path: Annotated[str, 4] = ""
    namespaces: Annotated[tuple[LinuxNamespace, ...], 5] = ()
    resources: Annotated[LinuxResources, 6] = LinuxResources()


class PodSandbox(Value, frozen=True, kw_only=True):
    """A pod's sandbox. A pod (`uid`) whose sandbox died has another one, with another `id`."""

    id: Annotated[str, 1] = ""
    name: Annotated[str, 2] = ""
    uid: Annotated[str, 3] = ""
    namespace: Annotated[str, 4] = ""
    labels: Annotated[Mapping[str, str], 5] = {}
    annotations: Annotated[Mapping[str, str], 6] = {}
    runtime_handler: Annotated[str, 7] = ""
    linux: Annotated[LinuxPodSandbox, 8] = LinuxPodSandbox()
    pid: Annotated[int, 9] = 0
    ips: Annotated[tuple[str, ...], 10] = ()

    @property
    def network_namespace(self) -> str:
        """The path of its network namespace; empty if it uses the host's, or if the runtime does not say.

        Remember it from RunPodSandbox: some runtimes leave it out at StopPodSandbox.
        """
        return next((one.path for one in self.linux.namespaces if one.type == "network"), "")


class Mount(Value, frozen=True, kw_only=True):
    """A file system in a container."""

    destination: Annotated[str, 1] = ""
    type: Annotated[str, 2] = ""
    source: Annotated[str, 3] = ""
    options: Annotated[tuple[str, ...], 4] = ()


class LinuxDevice(Value, frozen=True, kw_only=True):
    """A device node in a container; its permissions need an entry in `LinuxResources.devices`."""

    path: Annotated[str, 1] = ""
    type: Annotated[str, 2] = ""
    major: Annotated[int, 3] = 0
    minor: Annotated[int, 4] = 0
    file_mode: Annotated[int | None, 5] = None
    uid: Annotated[int | None, 6] = None
    gid: Annotated[int | None, 7] = None


class CDIDevice(Value, frozen=True, kw_only=True):
    """A device by its qualified CDI name; containerd 2.1, CRI-O 1.34."""

    name: Annotated[str, 1] = ""


class LinuxContainer(Value, frozen=True, kw_only=True):
    """What of a container is Linux's."""

    namespaces: Annotated[tuple[LinuxNamespace, ...], 1] = ()
    devices: Annotated[tuple[LinuxDevice, ...], 2] = ()
    resources: Annotated[LinuxResources, 3] = LinuxResources()
    cgroups_path: Annotated[str, 5] = ""


CREATED, PAUSED, RUNNING, STOPPED = 1, 2, 3, 4
"""Values of `Container.state`; 0 is unknown."""


class Container(Value, frozen=True, kw_only=True):
    """A container; `env` has entries `NAME=value`, those of CDI devices too."""

    id: Annotated[str, 1] = ""
    pod_sandbox_id: Annotated[str, 2] = ""
    name: Annotated[str, 3] = ""
    state: Annotated[int, 4] = 0
    labels: Annotated[Mapping[str, str], 5] = {}
    annotations: Annotated[Mapping[str, str], 6] = {}
    args: Annotated[tuple[str, ...], 7] = ()
    env: Annotated[tuple[str, ...], 8] = ()
    mounts: Annotated[tuple[Mount, ...], 9] = ()
    linux: Annotated[LinuxContainer, 11] = LinuxContainer()
    pid: Annotated[int, 12] = 0
    cdi_devices: Annotated[tuple[CDIDevice, ...], 20] = ()


class KeyValue(Value, frozen=True, kw_only=True):
    """A variable of the environment."""

    key: Annotated[str, 1] = ""
    value: Annotated[str, 2] = ""


class LinuxContainerAdjustment(Value, frozen=True, kw_only=True):
    """What of an adjustment is Linux's."""

    devices: Annotated[tuple[LinuxDevice, ...], 1] = ()
    resources: Annotated[LinuxResources, 2] = LinuxResources()


class ContainerAdjustment(Value, frozen=True, kw_only=True):
    """What a container that is being created gets, beside what it has. A name that begins with `-` is removed."""

    annotations: Annotated[Mapping[str, str], 2] = {}
    mounts: Annotated[tuple[Mount, ...], 3] = ()
    env: Annotated[tuple[KeyValue, ...], 4] = ()
    linux: Annotated[LinuxContainerAdjustment, 6] = LinuxContainerAdjustment()
    cdi_devices: Annotated[tuple[CDIDevice, ...], 8] = ()

    @staticmethod
    def of(resources: LinuxResources) -> ContainerAdjustment:
        """One that sets resources."""
        return ContainerAdjustment(linux=LinuxContainerAdjustment(resources=resources))


class LinuxContainerUpdate(Value, frozen=True, kw_only=True):
    """What of an update is Linux's."""

    resources: Annotated[LinuxResources, 1] = LinuxResources()


class ContainerUpdate(Value, frozen=True, kw_only=True):
    """Other resources for a container that exists.

    With `ignore_failure`, an operation on another container does not fail with this update, such as when this one is
    just ending.
    """

    container_id: Annotated[str, 1] = ""
    linux: Annotated[LinuxContainerUpdate, 2] = LinuxContainerUpdate()
    ignore_failure: Annotated[bool, 3] = False

    @staticmethod
    def of(container_id: str, resources: LinuxResources, *, ignore_failure: bool = True) -> ContainerUpdate:
        """One that sets resources."""
        linux = LinuxContainerUpdate(resources=resources)
        return ContainerUpdate(container_id=container_id, linux=linux, ignore_failure=ignore_failure)


class CreateContainerResponse(Value, frozen=True, kw_only=True):
    """What the new container gets, and other resources for others."""

    adjust: Annotated[ContainerAdjustment, 1] = ContainerAdjustment()
    update: Annotated[tuple[ContainerUpdate, ...], 2] = ()


def cpuset(cpus: str, mems: str = "") -> LinuxResources:
    """Resources that restrict a container to CPUs and, if given, to the memory of NUMA nodes, as lists: `0-3,8`.

    Raises:
        ValueError: `cpus` is empty, which NRI takes for no change.
    """
    if not cpus:
        raise ValueError(
            "cpus is empty, which the container runtime takes for no change; name the CPUs, or send nothing"
        )
    return LinuxResources(cpu=LinuxCPU(cpus=cpus, mems=mems))
