"""Events: sets of GPUs and event types, and asking for one, which happens in whatever process."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.call_faults import NO_INSTANCE
from pydra_nvidia.simulation.library.arguments import Refusal, handle, number, pointed, put_handle
from pydra_nvidia.simulation.library.function_registry import Call, Target, function, gpu_target
from pydra_nvidia.simulation.machine_state import Event, View


class EventSet(msgspec.Struct):
    """`masks` are the event types wanted of each GPU, by UUID; `seen` is the last event that was there before.

    `epochs` are those of the GPUs when they were registered: nothing is heard of one whose MIG mode changed since.
    """

    masks: dict[str, int] = {}
    seen: dict[str, int] = {}
    epochs: dict[str, int] = {}

    def take(self, view: View) -> Event | None:
        """The next event of the set, which is then seen."""
        for event in view.state.events:
            mask = self.masks.get(event.uuid, 0)
            if mask and self.epochs[event.uuid] != view.state.gpus[event.uuid].epoch:
                continue
            if event.type & mask and event.number > self.seen[event.uuid]:
                self.seen[event.uuid] = event.number
                return event
        return None

    def is_lost(self, view: View) -> bool:
        """Whether one of its GPUs has fallen off the bus."""
        return any(view.state.gpus[uuid].lost or not view.state.gpus[uuid].plugged for uuid in self.masks)


@function("system", "nvmlEventSetCreate")
def _create_set(call: Call, reference: Any) -> None:
    target = Target("set", "", time.monotonic_ns())
    address = call.library.address(target)
    call.library.sets[address] = EventSet()
    put_handle(reference, address)


@function("gpu", "nvmlDeviceRegisterEvents")
def _register_events(call: Call, types: Any, event_set: Any) -> None:
    wanted, supported = number(types), call.board.model.events
    if not supported:
        raise Refusal(Code.NOT_SUPPORTED)
    if not wanted or wanted & ~supported:
        raise Refusal(Code.INVALID_ARGUMENT)
    registered = _find(call, event_set)
    uuid = call.board.uuid
    registered.masks[uuid] = registered.masks.get(uuid, 0) | wanted
    if registered.epochs.get(uuid) != call.gpu.epoch:
        registered.epochs[uuid] = call.gpu.epoch
        registered.seen[uuid] = call.view.state.happened


@function("system", "nvmlEventSetWait_v2")
def _wait(call: Call, event_set: Any, reference: Any, _timeout: Any) -> None:
    """Events that happened come before the news that their GPU is lost. Nobody waits for more."""
    registered = _find(call, event_set)
    event = registered.take(call.view)
    if event is not None:
        return _tell(call, event, reference)
    raise Refusal(Code.GPU_IS_LOST if registered.is_lost(call.view) else Code.TIMEOUT)


@function("system", "nvmlEventSetFree")
def _free_set(call: Call, event_set: Any) -> None:
    _find(call, event_set)
    del call.library.sets[handle(event_set)]


def _find(call: Call, event_set: Any) -> EventSet:
    found = call.library.sets.get(handle(event_set))
    if found is None:
        raise Refusal(Code.INVALID_ARGUMENT)
    return found


def _tell(call: Call, event: Event, reference: Any) -> None:
    data = pointed(reference)
    put_handle(data, call.library.address(gpu_target(call.view, event.uuid)), type(data).device.offset)
    data.eventType, data.eventData = event.type, event.data
    data.gpuInstanceId = NO_INSTANCE if event.gi is None else event.gi
    data.computeInstanceId = NO_INSTANCE if event.ci is None else event.ci
