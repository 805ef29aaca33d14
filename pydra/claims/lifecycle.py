"""Claim state machine: decides the next action for prepare, unprepare and reconcile.

    ABSENT ──begin──> STARTED ──complete──> COMPLETED
      ^                │  ^                     │
      └────remove──────┘  └──────set back───────┘

A record is *started* before the backend touches anything, *completed* once containers can use the devices, and set
back before anything is undone. So *started* always means: something may have been done, nobody may use it, and it can
be undone. Whenever the agent dies, the record has all that is needed to continue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

import msgspec

from pydra.checkpoint.record import Record, Stage
from pydra.checkpoint.store import UnreadableRecord
from pydra.claim import AllocatedDevice, Claim
from pydra.claims.device_index import DeviceIndex
from pydra.errors import CheckpointError, KubeError, NotFound, PydraError, UnknownDevice

PublishedDevices: TypeAlias = Mapping[str, Collection[str]] | None
"""The names of the devices that this node publishes, by pool; None while nobody knows, as before the first discover."""


class Answer(msgspec.Struct, frozen=True):
    """The claim is prepared: answer from its record, once its CDI file is seen to be there."""

    record: Record


class Begin(msgspec.Struct, frozen=True):
    """Prepare the claim, of which nothing is known."""

    claim: Claim


class Repeat(msgspec.Struct, frozen=True):
    """Prepare the claim again by the plan of its record, which is of an earlier boot, on hardware that remembers."""

    record: Record


class Undo(msgspec.Struct, frozen=True):
    """Undo what the record stands for. When a claim is to be prepared, decide again afterwards."""

    record: Record


class Refuse(msgspec.Struct, frozen=True):
    """Change nothing and answer with the error."""

    error: PydraError


class RemoveFile(msgspec.Struct, frozen=True):
    """Nothing is known of the claim: at most its CDI file, or a record without content, is there."""


class Keep(msgspec.Struct, frozen=True):
    """Nothing to do."""


def decide_prepare(
    asked: Claim | PydraError,
    record: Record | None,
    *,
    boot_id: str,
    index: DeviceIndex,
    published: PublishedDevices,
) -> Answer | Begin | Repeat | Undo | Refuse:
    """What to do when the kubelet wants a claim prepared.

    `asked` is the claim as the API server has it now, or why that is not known; `record` is what this node did for
    its uid before.
    """
    is_usable = record is not None and record.stage is Stage.COMPLETED and record.boot_id == boot_id
    if isinstance(asked, PydraError):
        # The API server is silent: what was prepared stays right, since a claim that is in use cannot change.
        return Answer(record) if record is not None and is_usable and is_silence(asked) else Refuse(asked)
    if record is not None and is_usable and is_same(record.claim, asked):
        return Answer(record)
    if in_use := index.find_conflict(asked):
        return Refuse(in_use)
    if published is not None and (unknown := _find_unknown(asked, published)):
        return Refuse(unknown)
    if record is None:
        return Begin(asked)
    if record.stage is Stage.COMPLETED and is_same(record.claim, asked):
        return Repeat(record)
    return Undo(record)


def decide_unprepare(
    record: Record | None, *, unreadable: UnreadableRecord | None = None, asked: Claim | PydraError | None = None
) -> Undo | RemoveFile | Refuse:
    """What to do when nobody on this node uses a claim any more.

    Only where the record is `unreadable` the API server was `asked` for the claim.
    """
    if record is not None:
        return Undo(record)
    if unreadable is None:
        return RemoveFile()
    if unreadable.is_newer:
        return Refuse(CheckpointError(f"the claim cannot be unprepared: {unreadable.why} ({unreadable.path})"))
    if isinstance(asked, Claim):
        return Undo(_unknown_extent(asked))
    if asked is not None and is_silence(asked):
        return Refuse(asked)
    claim = unreadable.claim()
    if not claim.devices:
        return RemoveFile()
    return Undo(_unknown_extent(claim))


def decide_reconcile(
    record: Record | None, *, boot_id: str, unreadable: UnreadableRecord | None = None
) -> Undo | RemoveFile | Answer | Keep:
    """What to do about a claim that nobody asked for, whose record and CDI file may disagree."""
    if record is None:
        # A lost record says nothing about the pods: their containers may need the file to start again.
        return RemoveFile() if unreadable is None else Keep()
    if record.stage is Stage.STARTED:
        return Undo(record)
    return Answer(record) if record.boot_id == boot_id else Keep()


def is_silence(error: PydraError) -> bool:
    """Whether the API server said nothing about the claim, not even that it does not exist."""
    return isinstance(error, KubeError) and not (isinstance(error, NotFound) and error.is_of_object)


def is_same(one: Claim, other: Claim) -> bool:
    """Whether two readings of a claim give it the same devices with the same parameters.

    Where the parameters stood is left out: only people read it, and its wording may change with pydra.
    """
    return [_substance(device) for device in one.devices] == [_substance(device) for device in other.devices]


def _substance(device: AllocatedDevice) -> tuple[object, ...]:
    named = (device.request, device.pool, device.device, device.share_id, device.admin_access)
    return (*named, dict(device.consumed_capacity), [config.parameters for config in device.configs])


def _find_unknown(claim: Claim, published: Mapping[str, Collection[str]]) -> UnknownDevice | None:
    for device in claim.devices:
        if device.device not in published.get(device.pool, ()):
            return UnknownDevice(
                f"device {device.device} of pool {device.pool} is not published by this node: it is gone, or the "
                "allocation is out of date; delete the pod, so that its claim is allocated again"
            )
    return None


def _unknown_extent(claim: Claim) -> Record:
    """A record for a claim whose own is lost: whatever may have been done for it is undone."""
    return Record(claim=claim, driver="", stage=Stage.STARTED, boot_id="")
