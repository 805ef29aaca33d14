"""What preparing a claim will have and do: decided before anything is changed. Pure.

The key of a piece of hardware is the PCI address of its GPU: a GPU that is passed through has no UUID on this node.
Shares of one device go together while they want the same time slice; MPS is refused for shares (`plan_sharing`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product

from msgspec.structs import replace

from pydra import Claim, ClaimError, DeviceInUse, InvalidConfig, TerminalError
from pydra_nvidia.claim_config import GpuConfig, MigDeviceConfig, VfioDeviceConfig
from pydra_nvidia.claim_records import Entry, Hold
from pydra_nvidia.claim_targets import Partition, Passthrough, Target, WholeGpu
from pydra_nvidia.device_names import GpuName, MigName, VfioName, parse_name
from pydra_nvidia.fabric.plan_fabric import plan_fabric
from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.mig.plan_partitions import plan_partitions
from pydra_nvidia.mig.vanished_partitions import find_owned
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.plan_sharing import plan_sharing
from pydra_nvidia.steps import ActivateFabric, BindVfio, CreateMig, MigModeOff, MigModeOn, SetTimeSlice, StartMps, Step
from pydra_nvidia.vfio.plan_passthrough import plan_passthrough
from pydra_pci import Owner

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
    entries: Sequence[Entry],
    settings: Settings,
) -> tuple[tuple[Hold, ...], tuple[Step, ...]]:
    """What the claim has, and its steps: modes and partitions, the fabric, how they are shared, passthrough last.

    `entries` is what the other claims have, and must be older than `reading`. Raises ClaimError, DeviceInUse,
    InvalidConfig, TerminalError.
    """
    holds = find_holds(targets)
    if conflict := find_conflict(holds, entries):
        raise conflict
    if problems := tuple(_misplaced(targets)):
        raise InvalidConfig(problems)
    begun = [step for other in entries for step in other.begun]
    owners = {
        step.address: Owner(other.name, left_over=other.left_over)
        for other in entries
        for step in other.steps
        if isinstance(step, BindVfio)
    }
    steps = (
        *plan_partitions(targets, reading, owned=find_owned(entries, reading), settings=settings),
        *plan_fabric(targets, reading),
        *plan_sharing(claim.uid, targets, settings=settings),
        *plan_passthrough(targets, reading, begun=begun, owners=owners, settings=settings),
    )
    return holds, tuple(name_devices(step, targets) for step in steps)


def name_devices(step: Step, targets: Sequence[Target]) -> Step:
    """The step with the names of the devices that it is for."""
    return replace(step, holds=tuple([one.allocated.device for one in targets if _is_for(step, one)]))


def _is_for(step: Step, target: Target) -> bool:
    if target.allocated.admin_access:
        return False
    if isinstance(target, Passthrough):
        return (isinstance(step, BindVfio) and step.address == target.function.address) or (
            isinstance(step, ActivateFabric) and target.function.address in step.gpus
        )
    gpu, place = target.gpu.uuid, target.placement if isinstance(target, Partition) else None
    match step:
        case CreateMig():
            return (step.gpu, step.placement) == (gpu, place)
        case StartMps():
            uuid = target.uuid if isinstance(target, Partition) else gpu
            return uuid in step.devices or (place is not None and step.partition == (gpu, place))
        case ActivateFabric():
            return place is None and target.gpu.pci in step.gpus
        case MigModeOn() | MigModeOff() | SetTimeSlice():
            return step.gpu == gpu
    return False


def _misplaced(targets: Sequence[Target]) -> Iterator[str]:
    """Configurations that the claim gave by name to devices of another kind."""
    for target in targets:
        kind, what = _KINDS[type(target)]
        for config in target.allocated.misplaced(kind):
            yield (
                f"{target.allocated.position(config)}: found a {type(config).__name__}, allowed for"
                f" {target.allocated.device}, which is {what}: {kind.__name__}"
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
            interval=_find_interval(target),
            admin=target.allocated.admin_access,
        )
        for target in targets
    )


def find_conflict(holds: Sequence[Hold], others: Iterable[Entry]) -> ClaimError | None:
    """Why the claim cannot have what it wants, as far as the API cannot tell: TerminalError, DeviceInUse, SharesDiffer.

    Devices and counters are compared by the agent. A GPU that is not read has no counters.
    """
    for one, other in combinations(holds, 2):
        if problem := _differ(one, other, "in one request", "in another"):
            return TerminalError(f"the claim has two shares of device {one.device} that disagree: {problem}")
    for entry in others:
        for held, wanted in product(entry.holds, holds):
            if _is_taken(wanted, held):
                what = f"{wanted.device} ({wanted.device} and {held.device} are the same hardware)"
                return DeviceInUse(what, f"with uid {entry.uid}")
            if problem := _differ(wanted, held, "here", "there"):
                return SharesDiffer(
                    f"device {wanted.device} is shared with the claim with uid {entry.uid}, and claims that share a"
                    f" device must configure it alike: {problem}"
                )
    return None


def _is_taken(one: Hold, other: Hold) -> bool:
    """Whether both are the same hardware by different names: for a guest and for containers, or after renumbering."""
    if one.admin or other.admin or one.hardware != other.hardware or one.device == other.device:
        return False
    match parse_name(one.device), parse_name(other.device):
        case (VfioName(), _) | (_, VfioName()) | (GpuName(), GpuName()):
            return True
        case (MigName() as mine, MigName() as theirs):
            return (mine.profile, mine.start) == (theirs.profile, theirs.start)
    return False


def _differ(one: Hold, other: Hold, here: str, there: str) -> str:
    """What two shares of a device are configured differently in; empty when they agree, or are no such shares."""
    same = (one.hardware, one.place, one.device) == (other.hardware, other.place, other.device)
    if not same or None in (one.share, other.share) or one.admin or other.admin or one.interval == other.interval:
        return ""
    left, right = (json.dumps(hold.interval) if hold.interval else "not set" for hold in (one, other))
    return f"sharing.timeSlicingConfig.interval is {left} {here} and {right} {there}"


def _find_interval(target: Target) -> str:
    """The time slice that is set for the GPU; empty for none."""
    config = target.allocated.config(GpuConfig) if isinstance(target, WholeGpu) else None
    if config is None or config.sharing is None or config.sharing.strategy != "TimeSlicing":
        return ""
    return config.sharing.interval
