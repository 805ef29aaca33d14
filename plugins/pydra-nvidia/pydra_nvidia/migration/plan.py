"""What a claim that NVIDIA's driver prepared means here: the claim, its entry in the journal, its devices. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from pydra import AllocatedDevice, Claim, ClaimError, ContainerEdits
from pydra_nvidia.hardware import Reading
from pydra_nvidia.migration.vendor_checkpoint import VendorClaim, VendorDevice
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.holds import find_holds
from pydra_nvidia.steps import BindVfio, CreateMig, Entry, Hold, MigModeOn, SetTimeSlice, Step
from pydra_nvidia.targets import Partition, Passthrough, Target, find_targets


class Succession(msgspec.Struct, frozen=True, kw_only=True):
    """A claim to take over. `targets` has None for a device that this node no longer has; `notes` are for the admin."""

    claim: Claim
    entry: Entry
    targets: tuple[Target | None, ...]
    notes: tuple[str, ...] = ()


def plan_succession(vendor: VendorClaim, reading: Reading, *, settings: Settings) -> Succession:
    """A completed claim. What that driver did for it is what will be undone when it ends."""
    devices = tuple(_allocated(vendor, device) for device in vendor.devices)
    targets = tuple(_find(device, reading) for device in devices)
    holds: list[Hold] = []
    steps: list[Step] = []
    notes: list[str] = []
    for device, allocated, target in zip(vendor.devices, devices, targets, strict=True):
        if target is None:
            notes.append(
                f"claim {vendor.uid}: this node no longer has device {device.device}; nothing is undone for it"
            )
            continue
        holds.extend(find_holds((target,)))
        if not allocated.admin_access:
            steps.extend(step for step in _steps(device, target, settings) if step not in steps)
        if device.mps:
            notes.append(
                f"claim {vendor.uid} uses the MPS control daemon that NVIDIA's driver started: delete the Deployment"
                f" mps-control-daemon-{device.mps} when the claim has ended"
            )
    return Succession(
        claim=Claim(uid=vendor.uid, namespace=vendor.namespace, name=vendor.name, devices=devices),
        entry=Entry(
            uid=vendor.uid, namespace=vendor.namespace, name=vendor.name, holds=tuple(holds), steps=tuple(steps)
        ),
        targets=targets,
        notes=tuple(dict.fromkeys(notes)),
    )


def plan_cleaning(vendor: VendorClaim, reading: Reading, *, driver: str, taken: Sequence[Entry]) -> Entry:
    """What to undo of a claim in whose preparation that driver was stopped: partitions made, functions bound.

    The allocation's device names say where to look. Places and functions that a completed claim has are left alone.
    """
    places = {(step.gpu, step.placement) for entry in taken for step in entry.steps if isinstance(step, CreateMig)}
    held = {(hold.hardware, hold.place) for entry in taken for hold in entry.holds}
    steps: list[Step] = []
    for result in vendor.results:
        if result.driver != driver or result.admin_access:
            continue
        allocated = AllocatedDevice(request=result.request, pool=result.pool, device=result.device)
        match _find(allocated, reading):
            case Partition(gpu=gpu, placement=placement) as target if (gpu.pci, placement) not in held:
                if (gpu.uuid, placement) not in places:
                    steps.extend(_partition(target))
            case Passthrough(function=function) if (function.address, None) not in held:
                steps.append(BindVfio(address=function.address, before="nvidia", target=function.driver))
    return Entry(uid=vendor.uid, namespace=vendor.namespace, name=vendor.name, steps=tuple(dict.fromkeys(steps)))


def mps_edits(directory: str, daemon: str) -> ContainerEdits:
    """What that driver gives to the clients of its MPS control daemon; `directory` is its plugin directory."""
    root, options = f"{directory}/mps/{daemon}", ("rw", "nosuid", "nodev", "bind")
    return (
        ContainerEdits()
        .with_env("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108 - NVIDIA's place inside containers
        .with_mount(f"{root}/shm", "/dev/shm", options=options, optional=True)  # noqa: S108
        .with_mount(f"{root}/pipe", "/tmp/nvidia-mps", options=options, optional=True)  # noqa: S108
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
    try:
        return find_targets((device,), reading)[0]
    except ClaimError:
        return None


def _steps(device: VendorDevice, target: Target, settings: Settings) -> Iterator[Step]:
    match target:
        case Partition():
            # That driver writes partitions that it made and those that it found alike; its gate tells them apart.
            if settings.dynamic_mig and target.uuid and target.uuid == device.uuid:
                yield from _partition(target)
        case Passthrough(function=function):
            yield BindVfio(address=function.address, before="nvidia", target=function.driver, persistence=True)
        case _ if device.time_sliced or device.mps:
            yield SetTimeSlice(gpu=target.gpu.uuid, interval=0)  # undone: the default slice and compute mode


def _partition(target: Partition) -> Iterator[Step]:
    if target.instance is None:
        return
    if target.gpu.mig is not None and target.gpu.mig.resetless:
        yield MigModeOn(gpu=target.gpu.uuid)
    yield CreateMig(
        gpu=target.gpu.uuid,
        profile=target.profile_id,
        profile_name=target.profile.name if target.profile is not None else "",
        placement=target.placement,
        uuid=target.uuid,
    )
