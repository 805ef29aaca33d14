"""The devices of a node: their names, and from the devices of a claim to the hardware that they mean. Pure.

    gpu-0                       a whole GPU, by its minor number
    gpu-0-mig-1g10gb-me-20-3    a partition: profile, hardware profile id, first memory slice
    gpu-vfio-0                  a GPU to pass through, by its position among the node's NVIDIA functions
    gpu-0-counter-set           what the partitions of a GPU draw from

Source of the names: kubernetes-sigs/dra-driver-nvidia-gpu, so that allocations made for it mean the same here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import msgspec

from pydra import AllocatedDevice, AttributeValue, DeviceStatus, TerminalError, UnknownDevice
from pydra_nvidia.hardware_types import Gpu, GpuInstance, Placement, Profile, Reading
from pydra_pci import PciFunction

DRIVER = "gpu.nvidia.com"

_GPU = re.compile(r"gpu-(0|[1-9]\d{0,5})")
_MIG = re.compile(r"gpu-(0|[1-9]\d{0,5})-mig-([0-9a-z-]+)-(\d{1,5})-(\d{1,3})")
_VFIO = re.compile(r"gpu-vfio-(0|[1-9]\d{0,5})")


class GpuName(msgspec.Struct, frozen=True):
    """A whole GPU."""

    minor: int


class MigName(msgspec.Struct, frozen=True):
    """A partition of the GPU `minor`; `spelling` is the profile as the name spells it: `1g10gb-me`."""

    minor: int
    spelling: str
    profile: int
    start: int


class VfioName(msgspec.Struct, frozen=True):
    """A GPU to pass through."""

    index: int


def gpu_name(minor: int) -> str:
    """The device name of a whole GPU."""
    return f"gpu-{minor}"


def mig_name(minor: int, profile_name: str, profile_id: int, start: int) -> str:
    """The device name of a partition. `+me` and `-me` are spelt alike; the id tells them apart."""
    return f"gpu-{minor}-mig-{_spell(profile_name)}-{profile_id}-{start}"


@lru_cache(maxsize=256)
def _spell(profile_name: str) -> str:
    """As a device's name has it: `1g10gb-me`. A node has few profiles, and hundreds of places for them."""
    return re.sub(r"[^0-9a-z]+", "-", profile_name.lower().replace(".", "")).strip("-")


def vfio_name(index: int) -> str:
    """The device name of a GPU to pass through."""
    return f"gpu-vfio-{index}"


def counter_set_name(minor: int) -> str:
    """The counter set of a GPU."""
    return f"gpu-{minor}-counter-set"


def parse_name(device: str) -> GpuName | MigName | VfioName | None:
    """What kind of device the name means; None when it is none of ours."""
    if match := _GPU.fullmatch(device):
        return GpuName(int(match[1]))
    if match := _MIG.fullmatch(device):
        return MigName(int(match[1]), match[2], int(match[3]), int(match[4]))
    if match := _VFIO.fullmatch(device):
        return VfioName(int(match[1]))
    return None


class WholeGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, all of it."""

    allocated: AllocatedDevice
    gpu: Gpu


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A place on a GPU. `instance` is what exists there, None when it has yet to be created.

    `profile` is None where the driver no longer tells the profiles but the instance exists.
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


def passthrough_candidates(reading: Reading) -> tuple[PciFunction, ...]:
    """The functions that can be passed through, in the order of their names' indices: by PCI address.

    The index counts all of the node's NVIDIA functions but virtual ones, so that a name keeps its meaning when another
    GPU is bound or gets virtual functions. Source: NVIDIA's driver counts the same.
    """
    addresses = sorted(reading.functions, key=lambda address: (len(address), address))  # domains may have more digits
    return tuple(reading.functions[address] for address in addresses if not reading.functions[address].is_virtual)


def _find(device: AllocatedDevice, reading: Reading) -> Target:
    match parse_name(device.device):
        case GpuName(minor):
            return WholeGpu(allocated=device, gpu=_gpu(device, minor, reading))
        case MigName() as name:
            return _partition(device, name, _gpu(device, name.minor, reading))
        case VfioName(index):
            functions = passthrough_candidates(reading)
            if index < len(functions):
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
