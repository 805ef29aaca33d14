"""Builds the answer to an event, with the updates that wait for one. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from pydra_nri.event_handlers import Event, Updates
from pydra_nri.messages import UpdatesResponse
from pydra_nri.protobuf import encode
from pydra_nri.values import Container, ContainerAdjustment, ContainerUpdate, CreateContainerResponse, LinuxCPU

T = TypeVar("T")
_CARRIERS = ("CreateContainer", "UpdateContainer", "StopContainer")


def carries_updates(event: Event) -> bool:
    """Whether the answer to an event may have updates of containers."""
    return event.method in _CARRIERS


def build_answer(event: Event, result: Any, waiting: Mapping[str, ContainerUpdate]) -> bytes:
    """The answer, which may carry updates, with the handler's result and the updates that wait for it, by container.

    Of the event's own container, a waiting update only goes with UpdateContainer: one that is being created must not be
    updated, and one that has ended need not be.
    """
    own = () if event.method == "UpdateContainer" else (event.container.id,)
    others = {key: update for key, update in waiting.items() if key not in own}
    if event.method != "CreateContainer":
        return encode(UpdatesResponse(update=merge(others, result)))
    adjust = leave_out_present(result.adjust, event.container)
    return encode(CreateContainerResponse(adjust=adjust, update=merge(others, result.update)))


def merge(waiting: Mapping[str, ContainerUpdate], updates: Updates) -> tuple[ContainerUpdate, ...]:
    """One update for each container, sorted; `updates` are newer."""
    newest = {**waiting, **{one.container_id: one for one in updates}}
    return tuple(one for _, one in sorted(newest.items()))


def leave_out_present(adjust: ContainerAdjustment, container: Container) -> ContainerAdjustment:
    """The adjustment without what the container has already.

    During an upgrade that is from this plugin's other instance, and to set it again would be refused: a field belongs
    to the plugin that set it first.
    """
    wanted, present = adjust.linux.resources.cpu, container.linux.resources.cpu
    equal = [name for name in LinuxCPU.__struct_fields__ if getattr(wanted, name) == getattr(present, name)]
    cpu = msgspec.structs.replace(wanted, **{name: getattr(LinuxCPU(), name) for name in equal})
    resources = msgspec.structs.replace(adjust.linux.resources, cpu=cpu)
    devices = _find_new(adjust.linux.devices, container.linux.devices)
    return msgspec.structs.replace(
        adjust,
        mounts=_find_new(adjust.mounts, container.mounts),
        env=tuple(one for one in adjust.env if f"{one.key}={one.value}" not in container.env),
        cdi_devices=_find_new(adjust.cdi_devices, container.cdi_devices),
        linux=msgspec.structs.replace(adjust.linux, devices=devices, resources=resources),
    )


def _find_new(wanted: tuple[T, ...], present: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(one for one in wanted if one not in present)
