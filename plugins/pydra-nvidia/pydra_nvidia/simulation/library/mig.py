"""MIG: the mode, the profiles, and instances and compute instances, made and destroyed."""

from __future__ import annotations

from typing import Any

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.gpu_model import ComputeProfile, GpuProfile, MigModel
from pydra_nvidia.simulation.library.arguments import Refusal, fill, number, pointed, put, put_handle, put_handles
from pydra_nvidia.simulation.library.function_registry import Call, Target, function, gpu_target, require
from pydra_nvidia.simulation.machine_state import ComputeState, GpuState, InstanceState
from pydra_nvidia.simulation.machine_transitions import add_compute, make_instance, switch_mode

PROFILE_INFO_V2 = 0x02000098
PROFILE_COUNT = 0x11
"""Kinds of GPU instances that driver 580 knows, as an H100 with it answers."""
COMPUTE_INFO_V2 = 0x02000088


@function("gpu", "nvmlDeviceGetMigMode")
def _mig_mode(call: Call, current: Any, pending: Any) -> None:
    _mig_model(call)
    put(current, int(call.gpu.mig))
    put(pending, int(call.gpu.mig_pending))


@function("gpu", "nvmlDeviceSetMigMode", root=True)
def _set_mig_mode(call: Call, mode: Any, activation: Any) -> None:
    """The call succeeds once the mode is pending; whether it came into effect is what `activation` says."""
    model = _mig_model(call)
    if number(mode) not in (0, 1):
        raise Refusal(Code.INVALID_ARGUMENT)
    wanted = bool(number(mode))
    clients = call.library.others()
    with call.changing():
        state = call.gpu
        state.mig_pending = wanted
        if state.mig == wanted:
            put(activation, int(Code.SUCCESS))
        elif state.processes or clients or state.instances:
            put(activation, int(Code.IN_USE))
        elif not model.resetless:
            put(activation, int(Code.RESET_REQUIRED))
        else:
            switch_mode(state, wanted)
            state.compute_mode = 0
            put(activation, int(Code.SUCCESS))


@function("gpu", "nvmlDeviceGetGpuInstanceProfileInfo")
def _profile_info(call: Call, profile: Any, info: Any) -> None:
    fill(info, **_figures(_profile_by_enum(call, profile)))


@function("gpu", "nvmlDeviceGetGpuInstanceProfileInfoV")
def _profile_info_v(call: Call, profile: Any, info: Any) -> None:
    if not call.gpu.mig and not call.view.scenario.driver.named_profiles_when_off:
        raise Refusal(Code.NOT_SUPPORTED)
    found = _profile_by_enum(call, profile)
    fill(info, PROFILE_INFO_V2, name=f"MIG {found.name}".encode(), **_figures(found))


@function(
    "gpu",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "nvmlDeviceGetGpuInstancePossiblePlacements",
    root=True,
)
def _possible_placements(call: Call, profile: Any, placements: Any, count: Any) -> None:
    found = _profile_of(call, profile)
    if placements is not None:
        array = pointed(placements)
        for position, start in enumerate(found.starts):
            array[position].start, array[position].size = start, found.size
    put(count, len(found.starts))


@function("gpu", "nvmlDeviceGetMaxMigDeviceCount")
def _most_mig_devices(call: Call, reference: Any) -> None:
    model = call.board.model.mig
    put(reference, model.most_devices if model is not None and call.gpu.mig else 0)


@function("gpu", "nvmlDeviceCreateGpuInstanceWithPlacement", root=True)
def _create_instance_at(call: Call, profile: Any, placement: Any, reference: Any) -> None:
    _needs_mode(call)
    wanted, place = _profile_of(call, profile), pointed(placement)
    if place.size != wanted.size or place.start not in wanted.starts:
        raise Refusal(Code.INVALID_ARGUMENT)
    model = _mig_model(call)
    with call.changing():
        _needs_mode(call)
        if not _fits(model, call.gpu, wanted, place.start):
            raise Refusal(Code.INSUFFICIENT_RESOURCES)
        serial = call.library.machine.new_number(call.view.state)
        made = make_instance(call.board, call.gpu.instances, wanted, place.start, serial=serial)
        call.gpu.instances.append(made)
    put_handle(reference, _instance_address(call, made))


@function("gpu", "nvmlDeviceGetGpuInstances", root=True)
def _list_instances(call: Call, profile: Any, array: Any, count: Any) -> None:
    _needs_mode(call)
    wanted = _profile_of(call, profile)
    found = [one for one in call.gpu.instances if one.profile == wanted.id]
    put_handles(array, count, [_instance_address(call, one) for one in found])


@function("gpu", "nvmlDeviceGetGpuInstanceById", root=True)
def _instance_by_id(call: Call, id_: Any, reference: Any) -> None:
    _needs_mode(call)
    found = next((one for one in call.gpu.instances if one.id == number(id_)), None)
    if found is None:
        raise Refusal(Code.NOT_FOUND)
    put_handle(reference, _instance_address(call, found))


@function("instance", "nvmlGpuInstanceGetInfo")
def _instance_info(call: Call, info: Any) -> None:
    assert call.instance is not None
    struct = pointed(info)
    put_handle(struct, call.library.address(gpu_target(call.view, call.board.uuid)), type(struct).device.offset)
    struct.id, struct.profileId = call.instance.id, call.instance.profile
    struct.placement.start, struct.placement.size = call.instance.start, call.instance.size


@function("instance", "nvmlGpuInstanceDestroy", root=True)
def _destroy_instance(call: Call) -> None:
    with call.changing():
        assert call.instance is not None
        if call.instance.compute or any(one.gi == call.instance.id for one in call.gpu.processes):
            raise Refusal(Code.IN_USE)
        call.gpu.instances.remove(call.instance)


@function("instance", "nvmlGpuInstanceGetComputeInstanceProfileInfo")
def _compute_profile_info(call: Call, profile: Any, engine: Any, info: Any, version: int | None = None) -> None:
    if number(engine):
        raise Refusal(Code.INVALID_ARGUMENT)
    found = next((one for one in _profile(call).compute_profiles() if one.id == number(profile)), None)
    if found is None:
        raise Refusal(Code.NOT_SUPPORTED)
    fill(info, version, id=found.id, sliceCount=found.slices, instanceCount=found.most)


@function("instance", "nvmlGpuInstanceGetComputeInstanceProfileInfoV")
def _compute_profile_info_v(call: Call, profile: Any, engine: Any, info: Any) -> None:
    _compute_profile_info(call, profile, engine, info, COMPUTE_INFO_V2)


@function("instance", "nvmlGpuInstanceCreateComputeInstance", root=True)
def _create_compute(call: Call, profile: Any, reference: Any) -> None:
    found = _compute_profile(call, profile)
    with call.changing():
        assert call.instance is not None
        start = next((one for one in found.starts if _is_free(call, one, found.slices)), None)
        if start is None or sum(1 for one in call.instance.compute if one.profile == found.id) >= found.most:
            raise Refusal(Code.INSUFFICIENT_RESOURCES)
        made = add_compute(call.board, call.instance, found, start)
        put_handle(reference, _compute_address(call, call.instance, made))


@function("instance", "nvmlGpuInstanceGetComputeInstances", root=True)
def _list_compute(call: Call, profile: Any, array: Any, count: Any) -> None:
    assert call.instance is not None
    found, here = _compute_profile(call, profile), call.instance
    addresses = [_compute_address(call, here, one) for one in here.compute if one.profile == found.id]
    put_handles(array, count, addresses)


@function("instance", "nvmlGpuInstanceGetComputeInstanceById", root=True)
def _compute_by_id(call: Call, id_: Any, reference: Any) -> None:
    assert call.instance is not None
    found = next((one for one in call.instance.compute if one.id == number(id_)), None)
    if found is None:
        raise Refusal(Code.NOT_FOUND)
    put_handle(reference, _compute_address(call, call.instance, found))


@function("compute", "nvmlComputeInstanceGetInfo_v2", "nvmlComputeInstanceGetInfo")
def _compute_info(call: Call, info: Any) -> None:
    gi, ci = call.part()
    struct = pointed(info)
    library = call.library
    put_handle(struct, library.address(Target("mig", call.board.uuid, gi.serial, ci.uuid)), type(struct).device.offset)
    put_handle(struct, _instance_address(call, gi), type(struct).gpuInstance.offset)
    struct.id, struct.profileId = ci.id, ci.profile
    struct.placement.start, struct.placement.size = ci.start, ci.slices


@function("compute", "nvmlComputeInstanceDestroy", root=True)
def _destroy_compute(call: Call) -> None:
    with call.changing():
        gi, ci = call.part()
        if any((one.gi, one.ci) == (gi.id, ci.id) for one in call.gpu.processes):
            raise Refusal(Code.IN_USE)
        gi.compute.remove(ci)


def _mig_model(call: Call) -> MigModel:
    """How the GPU can be partitioned; raises Refusal when it cannot."""
    return require(call.board.model.mig)


def _profile_of(call: Call, id_: Any) -> GpuProfile:
    """The profile with the hardware's id; raises Refusal for none, or when the driver does not report it."""
    found = _told(call).profile(number(id_))
    if found is None:
        raise Refusal(Code.INVALID_ARGUMENT)
    return found


def _profile_by_enum(call: Call, enum: Any) -> GpuProfile:
    model = _told(call)
    if not 0 <= number(enum) < PROFILE_COUNT:
        raise Refusal(Code.INVALID_ARGUMENT)
    found = next((one for one in model.profiles if one.enum == number(enum)), None)
    if found is None:
        raise Refusal(Code.NOT_SUPPORTED)
    return found


def _told(call: Call) -> MigModel:
    model = _mig_model(call)
    if not call.gpu.mig and not model.reports_profiles_when_off:
        raise Refusal(Code.NOT_SUPPORTED)
    return model


def _figures(profile: GpuProfile) -> dict[str, int]:
    return {
        "id": profile.id,
        "sliceCount": profile.slices,
        "instanceCount": profile.most,
        "multiprocessorCount": profile.multiprocessors,
        "copyEngineCount": profile.copy_engines,
        "decoderCount": profile.decoders,
        "encoderCount": profile.encoders,
        "jpegCount": profile.jpeg_engines,
        "ofaCount": profile.ofa_engines,
        "memorySizeMB": profile.memory,
    }


def _fits(model: MigModel, state: GpuState, profile: GpuProfile, start: int) -> bool:
    """Whether memory slices, compute slices and the profile's count leave room at `start`."""
    used = 0
    for one in state.instances:
        if start < one.start + one.size and one.start < start + profile.size:
            return False
        other = model.profile(one.profile)
        used += other.slices if other else 0
    alike = sum(1 for one in state.instances if one.profile == profile.id)
    return used + profile.slices <= model.compute_slices and alike < profile.most


def _is_free(call: Call, start: int, slices: int) -> bool:
    assert call.instance is not None
    return all(start >= one.start + one.slices or one.start >= start + slices for one in call.instance.compute)


def _needs_mode(call: Call) -> None:
    _mig_model(call)
    if not call.gpu.mig:
        raise Refusal(Code.NOT_SUPPORTED)


def _profile(call: Call) -> GpuProfile:
    assert call.instance is not None
    found = _mig_model(call).profile(call.instance.profile)
    assert found is not None
    return found


def _compute_profile(call: Call, id_: Any) -> ComputeProfile:
    found = next((one for one in _profile(call).compute_profiles() if one.id == number(id_)), None)
    if found is None:
        raise Refusal(Code.INVALID_ARGUMENT)
    return found


def _instance_address(call: Call, one: InstanceState) -> int:
    return call.library.address(Target("instance", call.board.uuid, one.serial))


def _compute_address(call: Call, gi: InstanceState, ci: ComputeState) -> int:
    return call.library.address(Target("compute", call.board.uuid, gi.serial, ci.uuid))
