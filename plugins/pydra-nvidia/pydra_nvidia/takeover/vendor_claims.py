"""What a claim that NVIDIA's driver prepared means here: the claim, its steps, its devices. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from pydra import AllocatedDevice, Claim, ClaimError
from pydra_nvidia.claim_plan import find_holds, name_devices
from pydra_nvidia.claim_records import Hold
from pydra_nvidia.claim_targets import Partition, Passthrough, Target, WholeGpu, find_targets
from pydra_nvidia.fabric.plan_fabric import find_activated
from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.host.pci import DRIVER
from pydra_nvidia.inventory.attributes import passthrough_uuid
from pydra_nvidia.mig.plan_partitions import create_partition
from pydra_nvidia.settings import Settings
from pydra_nvidia.steps import BindVfio, SetTimeSlice, Step
from pydra_nvidia.takeover.vendor_checkpoint import VendorClaim, VendorDevice
from pydra_pci import PciFunction, is_vfio


class ConvertedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim to take over. `targets` has None for what is no longer as it was prepared; `notes` are for the admin."""

    claim: Claim
    holds: tuple[Hold, ...]
    steps: tuple[Step, ...]
    targets: tuple[Target | None, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_void(self) -> bool:
        """Whether nothing of the claim is left: who still needs it has it prepared again."""
        return not any(self.targets)


def convert_claim(
    vendor: VendorClaim, reading: Reading, *, settings: Settings, overridden: Collection[str] = ()
) -> ConvertedClaim:
    """A completed claim. What that driver did for it is what will be undone when it ends.

    `overridden` are the addresses of functions that are kept for a driver for passthrough. That driver keeps those that
    it binds; one that is bound without was so before, and stays so.
    """
    devices = tuple(_allocated(vendor, device) for device in vendor.devices)
    targets = tuple(
        _recognise(device, allocated, reading) for device, allocated in zip(vendor.devices, devices, strict=True)
    )
    holds: list[Hold] = []
    steps: list[Step] = []
    notes: list[str] = []
    for device, allocated, target in zip(vendor.devices, devices, targets, strict=True):
        if target is None:
            notes.append(
                f"claim {vendor.uid}: device {device.device} is no longer there as NVIDIA's driver prepared it; nothing"
                " is undone for it"
            )
            continue
        holds.extend(find_holds((target,)))
        if not allocated.admin_access:
            steps.extend(step for step in _steps(device, target, settings, overridden) if step not in steps)
            if isinstance(target, Passthrough) and target.function.address not in overridden:
                notes.append(
                    f"claim {vendor.uid}: function {target.function.address} has no driver_override, so somebody else"
                    f" bound it to {target.function.driver}; it stays so when the claim ends"
                )
        if device.mps:
            notes.append(
                f"claim {vendor.uid} uses the MPS control daemon that NVIDIA's driver started: delete the Deployment"
                f" mps-control-daemon-{device.mps} when the claim has ended"
            )
    steps = [*find_activated([one for one in targets if one], reading), *steps]
    return ConvertedClaim(
        claim=Claim(uid=vendor.uid, namespace=vendor.namespace, name=vendor.name, devices=devices),
        holds=tuple(holds),
        steps=tuple(name_devices(step, [one for one in targets if one]) for step in steps),
        targets=targets,
        notes=tuple(dict.fromkeys(notes)),
    )


class Cleaning(msgspec.Struct, frozen=True, kw_only=True):
    """What to undo of a claim that was begun, which is nobody's then, and what is left, in words for the admin."""

    claim: Claim
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()


def plan_cleaning(
    vendor: VendorClaim,
    reading: Reading,
    *,
    driver: str,
    taken: Sequence[ConvertedClaim],
    settings: Settings,
    overridden: Collection[str] = (),
) -> Cleaning:
    """A claim in whose preparation that driver was stopped: partitions half made, functions bound.

    The allocation's device names say where to look. Places and functions that a completed claim has are left alone. So
    are partitions that are whole, which the admin may have made, and functions that somebody else bound: `overridden`
    are the addresses that are kept for a driver for passthrough in this boot, as that driver does.
    """
    held = {(hold.hardware, hold.place) for one in taken for hold in one.holds}
    steps: list[Step] = []
    notes: list[str] = []
    for result in vendor.results:
        if result.driver != driver or result.admin_access:
            continue
        allocated = AllocatedDevice(request=result.request, pool=result.pool, device=result.device)
        match _find(allocated, reading):
            case Partition(gpu=gpu, placement=placement) as target if (gpu.pci, placement) not in held:
                if target.instance is None:
                    continue
                if settings.dynamic_mig and not target.instance.compute:
                    steps.extend(create_partition(target))
                else:
                    notes.append(_left(vendor, f"partition {result.device}"))
            case Passthrough(function=function) if (function.address, None) not in held:
                if function.address in overridden:
                    steps.append(_binding(function))
                elif is_vfio(function.driver):
                    notes.append(_left(vendor, f"function {function.address}, bound to {function.driver},"))
    claim = Claim(uid=vendor.uid, namespace=vendor.namespace, name=vendor.name, devices=())
    return Cleaning(claim=claim, steps=tuple(dict.fromkeys(steps)), notes=tuple(notes))


def _left(vendor: VendorClaim, what: str) -> str:
    return (
        f"claim {vendor.uid} was begun by NVIDIA's driver; {what} is left as it is, for nothing shows whether that"
        " driver or the admin made it so"
    )


def _allocated(vendor: VendorClaim, device: VendorDevice) -> AllocatedDevice:
    """The device with what only the allocation says of it."""
    for result in vendor.results:
        if (result.pool, result.device) == (device.pool, device.device) and result.request == device.request:
            return AllocatedDevice(
                request=result.request,
                pool=result.pool,
                device=result.device,
                share_id=result.share_id,
                consumed_capacity={name: str(value) for name, value in result.consumed_capacity.items()},
                admin_access=bool(result.admin_access),
            )
    return AllocatedDevice(request=device.request, pool=device.pool, device=device.device)


def _find(device: AllocatedDevice, reading: Reading) -> Target | None:
    """By its name."""
    try:
        return find_targets((device,), reading)[0]
    except ClaimError:
        return None


def _recognise(device: VendorDevice, allocated: AllocatedDevice, reading: Reading) -> Target | None:
    """What was prepared, known by its UUID or address: names have changed between versions, and with the node."""
    match device.kind:
        case "gpu" if device.uuid:
            gpu = reading.gpu(device.uuid)
            return WholeGpu(allocated=allocated, gpu=gpu) if gpu is not None else None
        case "mig":
            return _recognise_partition(device, allocated, reading)
        case "vfio":
            return _recognise_function(device, allocated, reading)
    return _find(allocated, reading)


def _recognise_partition(device: VendorDevice, allocated: AllocatedDevice, reading: Reading) -> Partition | None:
    for gpu in reading.gpus:
        for instance in gpu.mig.instances if gpu.mig is not None else ():
            if gpu.mig is not None and any(one.uuid == device.uuid for one in instance.compute):
                return Partition(
                    allocated=allocated,
                    gpu=gpu,
                    profile_id=instance.profile,
                    placement=instance.placement,
                    profile=next((one for one in gpu.mig.profiles if one.id == instance.profile), None),
                    instance=instance,
                )
    return None


def _recognise_function(device: VendorDevice, allocated: AllocatedDevice, reading: Reading) -> Passthrough | None:
    """Old versions kept no address, but made the UUID of it."""
    made_of = {passthrough_uuid(address): address for address in reading.functions}
    function = reading.functions.get(device.address or made_of.get(device.uuid, ""))
    if function is None or not is_vfio(function.driver):
        return None
    return Passthrough(allocated=allocated, function=function)


def _steps(device: VendorDevice, target: Target, settings: Settings, overridden: Collection[str]) -> Iterator[Step]:
    match target:
        case Partition():
            # That driver writes partitions that it made and those that it found alike; its gate tells them apart.
            if settings.dynamic_mig:
                yield from create_partition(target)
        case Passthrough(function=function) if function.address in overridden:
            yield _binding(function)
        case Passthrough(function=function):
            yield BindVfio(address=function.address, before=function.driver, target=function.driver)
        case _ if device.time_sliced or device.mps:
            yield SetTimeSlice(gpu=target.gpu.uuid, interval=0)  # undone: the default slice and compute mode


def _binding(function: PciFunction) -> BindVfio:
    """That driver leaves every GPU persistent that it takes back."""
    target = function.driver if is_vfio(function.driver) else function.vfio_driver
    return BindVfio(address=function.address, before=DRIVER, target=target, persistence=True)
