"""What backends return for NRI: adjustments of a container that is being created, and updates of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydra_nri.protobuf import Value
from pydra_nri.values import CDIDevice, LinuxCPU, LinuxDevice, LinuxResources, Mount


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
