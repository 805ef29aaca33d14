"""MIG: the mode, the profiles, and the MIG devices that exist."""

from __future__ import annotations

from typing import Any

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.gpu_model import GpuProfile, MigModel
from pydra_nvidia.simulation.library.arguments import Refusal, fill, number, pointed, put
from pydra_nvidia.simulation.library.function_registry import Call, function, require
from pydra_nvidia.simulation.machine_transitions import switch_mode

PROFILE_INFO_V2 = 0x02000098
PROFILE_COUNT = 0x11
"""Kinds of GPU instances that driver 580 knows, as an H100 with it answers."""


@function("gpu", "nvmlDeviceGetMigMode")
def _mig_mode(call: Call, current: Any, pending: Any) -> None:
    mig_model(call)
    put(current, int(call.gpu.mig))
    put(pending, int(call.gpu.mig_pending))


@function("gpu", "nvmlDeviceSetMigMode", root=True)
def _set_mig_mode(call: Call, mode: Any, activation: Any) -> None:
    """The call succeeds once the mode is pending; whether it came into effect is what `activation` says."""
    model = mig_model(call)
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
    found = profile_of(call, profile)
    if placements is not None:
        array = pointed(placements)
        for position, start in enumerate(found.starts):
            array[position].start, array[position].size = start, found.size
    put(count, len(found.starts))


@function("gpu", "nvmlDeviceGetMaxMigDeviceCount")
def _most_mig_devices(call: Call, reference: Any) -> None:
    model = call.board.model.mig
    put(reference, model.most_devices if model is not None and call.gpu.mig else 0)


def mig_model(call: Call) -> MigModel:
    """How the GPU can be partitioned; raises Refusal when it cannot."""
    return require(call.board.model.mig)


def profile_of(call: Call, id_: Any) -> GpuProfile:
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
    model = mig_model(call)
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
