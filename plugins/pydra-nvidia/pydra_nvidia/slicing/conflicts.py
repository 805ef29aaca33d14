"""Who holds what of the hardware, and who may not have it at once, whatever the scheduler believed. Pure.

The key of a piece of hardware is the PCI address of its GPU: a GPU that is passed through has no UUID on this node.
Looking with admin access excludes nobody. Shares of one device go together while their configs agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra import ClaimError, DeviceInUse, TerminalError
from pydra_nvidia.claim_config import GpuConfig, MigDeviceConfig, TimeSlicingConfig
from pydra_nvidia.devices import Partition, Target, WholeGpu
from pydra_nvidia.steps import Entry, Hold


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
