"""What preparing a claim will hold and do, decided before anything is touched. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from pydra import Claim, InvalidConfig
from pydra_nvidia.claim_config import GpuConfig, MigDeviceConfig, VfioDeviceConfig
from pydra_nvidia.devices import MigName, Partition, Passthrough, Target, WholeGpu, is_on_gpu, parse_name
from pydra_nvidia.hardware_types import Gpu, Placement, Reading
from pydra_nvidia.held_claims import PlanUnknown, UnreadClaim, describe_claim
from pydra_nvidia.mig.plan import plan_partitions
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.plan import plan_sharing
from pydra_nvidia.slicing.conflicts import find_conflict, find_holds
from pydra_nvidia.steps import CreateMig, Entry, Step
from pydra_nvidia.vfio.plan import plan_passthrough

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
