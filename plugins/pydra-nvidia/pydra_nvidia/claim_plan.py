"""What preparing a claim will hold and do, and who may not have it at once: decided before anything is touched. Pure.

The key of a piece of hardware is the PCI address of its GPU: a GPU that is passed through has no UUID on this node.
Looking with admin access excludes nobody, whatever the scheduler believed. Shares of one device go together while their
configs agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra import Claim, ClaimError, DeviceInUse, InvalidConfig, TerminalError
from pydra_nvidia.claim_config import GpuConfig, MigDeviceConfig, TimeSlicingConfig, VfioDeviceConfig
from pydra_nvidia.devices import MigName, Partition, Passthrough, Target, WholeGpu, is_on_gpu, parse_name
from pydra_nvidia.hardware_types import Gpu, Placement, Reading
from pydra_nvidia.held_claims import PlanUnknown, UnreadClaim, describe_claim
from pydra_nvidia.mig.plan_partitions import plan_partitions
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.plan_sharing import plan_sharing
from pydra_nvidia.steps import CreateMig, Entry, Hold, Step
from pydra_nvidia.vfio.plan_passthrough import plan_passthrough

_KINDS: Mapping[type, tuple[type, str]] = {
    WholeGpu: (GpuConfig, "a whole GPU"),
    Partition: (MigDeviceConfig, "a partition"),
    Passthrough: (VfioDeviceConfig, "a GPU to pass through"),
}


def plan_claim(
    claim: Claim,
    targets: Sequence[Target],
    reading: Reading,
    *,
    entries: Mapping[str, Entry],
    unread: Iterable[UnreadClaim] = (),
    settings: Settings,
) -> Entry:
    """The claim's entry: modes and partitions first, then how they are shared, passthrough last.

    `entries` is what the other claims hold, by uid, and must be older than `reading`. `unread` are those of which that
    is not known: they keep their GPUs. Raises ClaimError, DeviceInUse, InvalidConfig, TerminalError.
    """
    entry = Entry(uid=claim.uid, namespace=claim.namespace, name=claim.name, holds=find_holds(targets))
    if conflict := find_conflict(entry, entries.values()):
        raise conflict
    if problems := tuple(_find_kept(targets, reading, unread)):
        raise PlanUnknown("; ".join(problems))
    if problems := tuple(_misplaced(targets)):
        raise InvalidConfig(problems)
    begun = [step for other in entries.values() for step in other.steps]
    steps = (
        *plan_partitions(targets, reading, owned=find_owned(entries, reading), settings=settings),
        *plan_sharing(claim.uid, targets, settings=settings),
        *plan_passthrough(targets, reading, begun=begun, settings=settings),
    )
    return Entry(uid=entry.uid, namespace=entry.namespace, name=entry.name, holds=entry.holds, steps=steps)


def _find_kept(targets: Sequence[Target], reading: Reading, unread: Iterable[UnreadClaim]) -> Iterator[str]:
    """The devices whose GPUs are kept by claims without a readable plan. Admin access only looks."""
    wanted = [target for target in targets if not target.allocated.admin_access]
    for one in unread:
        for target in wanted:
            address = target.function.address if isinstance(target, Passthrough) else target.gpu.pci
            if names := [name for name in one.devices if is_on_gpu(name, address, reading)]:
                yield (
                    f"{target.allocated.device} cannot be prepared: {describe_claim(one.claim)} has {', '.join(names)}"
                    f" of the same GPU ({address}), and what it did there is not known: {one.reason}; delete the pods"
                    " that use that claim (if it is deleted already, the agent unprepares it later)"
                )


def _misplaced(targets: Sequence[Target]) -> Iterator[str]:
    """Configurations that the claim gave by name to devices of another kind."""
    for target in targets:
        kind, what = _KINDS[type(target)]
        for config in target.allocated.misplaced(kind):
            yield (
                f"request {target.allocated.request}: found a {type(config).__name__}, allowed for"
                f" {target.allocated.device}, which is {what}: {kind.__name__}"
            )


def find_owned(entries: Mapping[str, Entry], reading: Reading) -> frozenset[tuple[str, Placement]]:
    """The places whose partitions were made here, by their GPU's UUID: not where one of another profile is by now."""
    gpus = {gpu.uuid: gpu for gpu in reading.gpus}
    return frozenset(
        (step.gpu, step.placement)
        for entry in entries.values()
        for step in entry.steps
        if isinstance(step, CreateMig) and not _is_replaced(step, gpus.get(step.gpu))
    )


class Vanished(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that a prepared claim has and that exists no more; `claim` is `namespace/name`."""

    device: str
    claim: str
    gpu: str
    profile: int
    placement: Placement


def find_vanished(entries: Iterable[Entry], reading: Reading) -> tuple[Vanished, ...]:
    """Partitions of prepared claims that somebody else removed; of a GPU that is not read nothing is known."""
    gpus = {gpu.pci: gpu for gpu in reading.gpus if _is_read(gpu)}
    found: dict[str, Vanished] = {}
    for entry in entries:
        for hold in entry.holds:
            name, gpu = parse_name(hold.device), gpus.get(hold.hardware)
            if gpu is None or hold.place is None or hold.admin or not isinstance(name, MigName):
                continue
            if (name.profile, hold.place) not in _usable_places(gpu):
                found[hold.device] = Vanished(
                    device=hold.device,
                    claim=f"{entry.namespace}/{entry.name}",
                    gpu=gpu.uuid,
                    profile=name.profile,
                    placement=hold.place,
                )
    return tuple(found[device] for device in sorted(found))


def _is_read(gpu: Gpu) -> bool:
    return not (gpu.unread or gpu.condition.silence or (gpu.mig is not None and gpu.mig.unseen))


def _usable_places(gpu: Gpu) -> frozenset[tuple[int, Placement]]:
    instances = gpu.mig.instances if gpu.mig is not None else ()
    return frozenset((one.profile, one.placement) for one in instances if one.compute)


def _is_replaced(step: CreateMig, gpu: Gpu | None) -> bool:
    instances = gpu.mig.instances if gpu is not None and gpu.mig is not None else ()
    return any(one.placement == step.placement and one.profile != step.profile for one in instances)


def find_absent(targets: Iterable[Target], entry: Entry) -> frozenset[Step]:
    """The partitions to create of which nothing is there yet."""
    missing = {
        (target.gpu.uuid, target.profile_id, target.placement)
        for target in targets
        if isinstance(target, Partition) and target.instance is None
    }
    return frozenset(
        step
        for step in entry.steps
        if isinstance(step, CreateMig) and (step.gpu, step.profile, step.placement) in missing
    )


class SharesDiffer(ClaimError):
    """Another claim has a share of the device, with other settings."""

    reason = "SharesDiffer"


def find_holds(targets: Sequence[Target]) -> tuple[Hold, ...]:
    """What the devices take of the hardware, one hold for each."""
    return tuple(
        Hold(
            device=target.allocated.device,
            hardware=target.gpu.pci if isinstance(target, WholeGpu | Partition) else target.function.address,
            place=target.placement if isinstance(target, Partition) else None,
            share=target.allocated.share_id,
            config=_agreed(target),
            admin=target.allocated.admin_access,
        )
        for target in targets
    )


def find_conflict(entry: Entry, others: Iterable[Entry]) -> ClaimError | None:
    """Why the claim cannot have what it wants: TerminalError for its own devices, DeviceInUse, SharesDiffer.

    `others` may have the claim itself, which is not a conflict.
    """
    for one, other in combinations(entry.holds, 2):
        if _exclude(one, other):
            return TerminalError(f"{_relate(one, other)}, so that one claim cannot have both; ask for one of them")
        if problem := _differ(one, other, "in one request", "in another"):
            return TerminalError(f"the claim has two shares of device {one.device} that disagree: {problem}")
    for held, uid in _held(others, besides=entry.uid):
        for wanted in entry.holds:
            if _exclude(wanted, held):
                return DeviceInUse(_describe(wanted, held), f"with uid {uid}")
            if problem := _differ(wanted, held, "here", "there"):
                return SharesDiffer(
                    f"device {wanted.device} is shared with the claim with uid {uid}, and claims that share a device"
                    f" must configure it alike: {problem}"
                )
    return None


def _held(entries: Iterable[Entry], besides: str) -> Iterator[tuple[Hold, str]]:
    for entry in entries:
        if entry.uid != besides:
            for hold in entry.holds:
                yield hold, entry.uid


def _exclude(one: Hold, other: Hold) -> bool:
    if one.admin or other.admin or one.hardware != other.hardware:
        return False
    if one.place is not None and other.place is not None and not one.place.overlaps(other.place):
        return False
    return not _share(one, other)


def _share(one: Hold, other: Hold) -> bool:
    """Whether both are shares of the same device."""
    same = (one.hardware, one.place, one.device) == (other.hardware, other.place, other.device)
    return same and one.share is not None and other.share is not None


def _differ(one: Hold, other: Hold, here: str, there: str) -> str:
    """What two shares of a device are configured differently in; empty when they agree."""
    if one.admin or other.admin or not _share(one, other) or one.config == other.config:
        return ""
    left, right = _flatten(one.config), _flatten(other.config)
    return "; ".join(
        f"{path} is {left.get(path, 'not set')} {here} and {right.get(path, 'not set')} {there}"
        for path in sorted(left.keys() | right.keys())
        if left.get(path) != right.get(path)
    )


def _describe(wanted: Hold, held: Hold) -> str:
    return wanted.device if wanted.device == held.device else f"{wanted.device} ({_relate(wanted, held)})"


def _relate(one: Hold, other: Hold) -> str:
    if one.device == other.device:
        return f"{one.device} is asked for twice"
    if one.place is None and other.place is None:
        return f"{one.device} and {other.device} are the same hardware"
    if one.place is not None and other.place is not None:
        return f"{one.device} and {other.device} need the same memory slices"
    part, whole = (one, other) if one.place is not None else (other, one)
    return f"{part.device} is a part of {whole.device}"


def _agreed(target: Target) -> str:
    """What those who share the device must agree on, with what is left out filled in; empty for nothing."""
    match target:
        case WholeGpu():
            config = target.allocated.config(GpuConfig)
            if config is None or config.sharing is None:
                return ""
            sharing = config.sharing
            if sharing.strategy == "TimeSlicing" and not (
                sharing.time_slicing_config and sharing.time_slicing_config.interval
            ):
                sharing = replace(sharing, time_slicing_config=TimeSlicingConfig(interval="Default"))
            return _encode(GpuConfig(sharing=sharing))
        case Partition():
            partitioned = target.allocated.config(MigDeviceConfig)
            return _encode(partitioned) if partitioned is not None and partitioned.sharing is not None else ""
    return ""


def _encode(config: GpuConfig | MigDeviceConfig) -> str:
    return msgspec.json.encode(config, order="deterministic").decode()


def _flatten(config: str) -> dict[str, str]:
    """Paths to values, as JSON writes them."""
    return dict(_leaves(msgspec.json.decode(config), "")) if config else {}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, f"{path}.{name}" if path else name)
    else:
        yield path, msgspec.json.encode(value).decode()
