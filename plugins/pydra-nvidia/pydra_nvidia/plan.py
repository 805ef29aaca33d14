"""What preparing a claim will hold and do, decided before anything is touched. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from pydra import Claim, InvalidConfig
from pydra_nvidia.config import GpuConfig, MigDeviceConfig, VfioDeviceConfig
from pydra_nvidia.hardware import Placement, Reading
from pydra_nvidia.mig.plan import plan_partitions
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.holds import find_conflict, find_holds
from pydra_nvidia.sharing.plan import plan_sharing
from pydra_nvidia.steps import BindVfio, CreateMig, Entry, MigModeOff, MigModeOn, SetTimeSlice, StartMps, Step
from pydra_nvidia.targets import Partition, Passthrough, Target, WholeGpu
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
    settings: Settings,
) -> Entry:
    """The claim's entry: modes and partitions first, then how they are shared, passthrough last.

    `entries` is the whole journal by claim uid, read before `reading` and once more after it. Raises ClaimError,
    DeviceInUse, InvalidConfig, TerminalError.
    """
    entry = Entry(uid=claim.uid, namespace=claim.namespace, name=claim.name, holds=find_holds(targets))
    if conflict := find_conflict(entry, entries.values()):
        raise conflict
    if problems := tuple(_misplaced(targets)):
        raise InvalidConfig(problems)
    begun = [step for other in entries.values() for step in other.steps]
    steps = (
        *plan_partitions(targets, reading, owned=find_owned(entries, reading), settings=settings),
        *plan_sharing(claim.uid, targets, settings=settings),
        *plan_passthrough(targets, reading, begun=begun, settings=settings),
    )
    return Entry(uid=entry.uid, namespace=entry.namespace, name=entry.name, holds=entry.holds, steps=steps)


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
    return frozenset(
        (step.gpu, step.placement)
        for entry in entries.values()
        for step in entry.steps
        if isinstance(step, CreateMig) and not _is_replaced(step, reading)
    )


def _is_replaced(step: CreateMig, reading: Reading) -> bool:
    gpu = reading.gpu(step.gpu)
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


def go_on(written: Entry, planned: Entry) -> Entry | None:
    """What to carry out for a claim that was begun: `written`, where that does what is planned now.

    A running claim is not undone because a setting has changed that would do the same by other steps. A change of mode
    that is planned now and was not needed then is done as well; MIG mode that need not be left any more, as on a GPU
    that is passed through by now, is not left again. None: what was begun is to be undone.
    """
    if written.holds != planned.holds:
        return None
    done = {effect for step in written.steps if (effect := _effect(step)) is not None}
    if any(effect not in done for step in planned.steps if (effect := _effect(step)) is not None):
        return None
    modes = [step for step in planned.steps if _effect(step) is None and step not in written.steps]
    needed = [step for step in written.steps if not isinstance(step, MigModeOff) or step in planned.steps]
    return replace(written, steps=(*modes, *needed))


def _effect(step: Step) -> object:
    """What carrying it out makes of the hardware, apart from what it was before; None for a mode."""
    match step:
        case MigModeOn() | MigModeOff():
            return None
        case CreateMig():
            return CreateMig, step.gpu, step.profile, step.placement
        case SetTimeSlice():
            return SetTimeSlice, step.gpu, step.interval
        case StartMps():  # its id and its devices follow from the holds
            limits = tuple(sorted(step.pinned_mib.items())), step.default_pinned_mib
            return StartMps, step.exclusive, step.thread_percentage, limits, step.multi_user
        case BindVfio():
            return BindVfio, step.address, step.target
