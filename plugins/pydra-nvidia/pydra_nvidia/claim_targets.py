"""From the devices of a claim to the hardware that they mean, as it was read. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from pydra import AllocatedDevice, AttributeValue, DeviceStatus, TerminalError, UnknownDevice
from pydra_nvidia.device_names import GpuName, MigName, VfioName, mig_name, parse_name, passthrough_candidates
from pydra_nvidia.hardware_types import Gpu, GpuInstance, Placement, Profile, Reading
from pydra_pci import PciFunction


class WholeGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, all of it."""

    allocated: AllocatedDevice
    gpu: Gpu


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A place on a GPU. `instance` is what exists there, None when it has yet to be created.

    `profile` is None where the driver no longer reports the profiles but the instance exists.
    """

    allocated: AllocatedDevice
    gpu: Gpu
    profile_id: int
    placement: Placement
    profile: Profile | None = None
    instance: GpuInstance | None = None

    @property
    def uuid(self) -> str:
        """The UUID of the compute instance that fills it; empty while there is none."""
        return self.instance.compute[0].uuid if self.instance and len(self.instance.compute) == 1 else ""


class Passthrough(msgspec.Struct, frozen=True, kw_only=True):
    """A function of a GPU to pass through."""

    allocated: AllocatedDevice
    function: PciFunction


Target: TypeAlias = WholeGpu | Partition | Passthrough


def describe_prepared(target: Target) -> dict[str, AttributeValue]:
    """The attributes for containers that were not known when the device was published: the UUID of a partition."""
    return {"uuid": target.uuid} if isinstance(target, Partition) and target.uuid else {}


def identify(target: Target) -> DeviceStatus:
    """What the claim's status says of it: which hardware it is, also when the node publishes it no more."""
    if isinstance(target, Passthrough):
        return DeviceStatus(data={"pciBusID": target.function.address})
    gpu = target.gpu
    if isinstance(target, WholeGpu):
        return DeviceStatus(data={"uuid": gpu.uuid, "pciBusID": gpu.pci})
    data: dict[str, str | int] = {"parentUUID": gpu.uuid, "pciBusID": gpu.pci}
    if target.uuid:
        data["uuid"] = target.uuid
    if target.profile is not None:
        data["profile"] = target.profile.name
    if target.instance is not None:
        data["gpuInstanceID"] = target.instance.id
    return DeviceStatus(data=data)


def find_targets(devices: Sequence[AllocatedDevice], reading: Reading) -> tuple[Target, ...]:
    """What each device is, in their order.

    Raises:
        UnknownDevice: this node does not have one of them.
        TerminalError: a partition of a GPU that has to be reset first, for its MIG mode.
    """
    return tuple(_find(device, reading) for device in devices)


def _find(device: AllocatedDevice, reading: Reading) -> Target:
    match parse_name(device.device):
        case GpuName(minor):
            return WholeGpu(allocated=device, gpu=_gpu(device, minor, reading))
        case MigName() as name:
            return _partition(device, name, _gpu(device, name.minor, reading))
        case VfioName(index):
            functions = passthrough_candidates(reading)
            if index in functions:
                return Passthrough(allocated=device, function=functions[index])
            raise UnknownDevice(f"this node has no device {device.device}: it has {len(functions)} NVIDIA functions")
    raise UnknownDevice(f"{device.device} is not the name of an NVIDIA device, such as gpu-0 or gpu-0-mig-1g10gb-19-0")


def _gpu(device: AllocatedDevice, minor: int, reading: Reading) -> Gpu:
    for gpu in reading.gpus:
        if gpu.minor == minor:
            return gpu
    for lost in reading.lost:
        if lost.last is not None and lost.last.minor == minor:
            raise UnknownDevice(f"device {device.device} is lost: {lost.message}")
    known = ", ".join(str(gpu.minor) for gpu in reading.gpus) or "none"
    raise UnknownDevice(f"this node has no device {device.device}: the minor numbers of its GPUs are {known}")


def _partition(device: AllocatedDevice, name: MigName, gpu: Gpu) -> Partition:
    if gpu.mig is None:
        raise UnknownDevice(f"device {device.device} does not exist: {gpu.name} cannot be partitioned")
    profile = next((one for one in gpu.mig.profiles if one.id == name.profile), None)
    instance = next(
        (one for one in gpu.mig.instances if one.profile == name.profile and one.placement.start == name.start), None
    )
    if not gpu.mig.enabled and not gpu.mig.resetless:
        raise _mode_is_off(device.device, gpu)
    places = [instance.placement] if instance else []
    if profile is not None:
        spelt = mig_name(gpu.minor, profile.name, profile.id, name.start) == device.device
        places = [one for one in (*places, *profile.placements) if one.start == name.start] if spelt else []
    if not places:
        offered = ", ".join(f"{one.name} ({one.id})" for one in gpu.mig.profiles) or "none"
        raise UnknownDevice(
            f"device {device.device} does not exist on this GPU; the profiles that it offers: {offered}"
        )
    return Partition(
        allocated=device,
        gpu=gpu,
        profile_id=name.profile,
        placement=places[0],
        profile=profile,
        instance=instance,
    )


def _mode_is_off(device: str, gpu: Gpu) -> TerminalError:
    """Generations before Hopper change the mode with a reset, which nobody but the admin can decide."""
    if gpu.mig is not None and gpu.mig.pending:
        todo = f"is on but pending; reset the GPU: nvidia-smi -i {gpu.uuid} --gpu-reset"
    else:
        todo = f"is off; switch it on and reset the GPU: nvidia-smi -i {gpu.uuid} -mig 1, then --gpu-reset"
    return TerminalError(f"device {device} needs the MIG mode of {gpu.name} (gpu-{gpu.minor}), which {todo}")
