"""Claim state machine: decides the next action for prepare, unprepare and reconcile.

    ABSENT ──begin──> STARTED ──complete──> COMPLETED
      ^                │  ^                     │
      └────remove──────┘  └──────set back───────┘

A record is *started* before the backend touches anything, *completed* once containers can use the devices, and set
back before the backend undoes anything. So *started* always means: something may have been done, nobody may use it,
and it can be undone. Whenever the agent dies, the record has all that is needed to continue.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from pydra.checkpoint.record import Metadata, Record, Stage
from pydra.checkpoint.store import UnreadableRecord
from pydra.claim import AllocatedDevice, Claim
from pydra.claims.device_use import DeviceIndex
from pydra.errors import CheckpointError, KubeError, NotFound, PydraError, UnknownDevice


class ReuseRecord(msgspec.Struct, frozen=True):
    """The claim is prepared: answer from its record, after a check of its CDI file."""

    record: Record


class Begin(msgspec.Struct, frozen=True):
    """Prepare the claim for the first time."""

    claim: Claim


class WaitForDevices(msgspec.Struct, frozen=True):
    """Decide again once the devices are known, with their counters and attributes: from the first discover on."""


class PrepareAgain(msgspec.Struct, frozen=True):
    """Prepare the claim again with the plan of its record: it is of an earlier boot, on hardware that remembers, or of
    another pod than the one that uses the claim now.
    """

    record: Record


class Undo(msgspec.Struct, frozen=True):
    """Undo what the record says. If the claim is to be prepared, decide again afterwards."""

    record: Record


class Refuse(msgspec.Struct, frozen=True):
    """Change nothing and answer with the error."""

    error: PydraError


class RemoveCdiFile(msgspec.Struct, frozen=True):
    """Nothing is known about the claim: remove its CDI file, or a record without content, if there is one."""


class DoNothing(msgspec.Struct, frozen=True):
    """Change nothing."""


def decide_prepare(
    asked: Claim | PydraError,
    record: Record | None,
    *,
    boot_id: str,
    index: DeviceIndex,
    needs_published: bool,
    unreadable: UnreadableRecord | None,
) -> ReuseRecord | Begin | WaitForDevices | PrepareAgain | Undo | Refuse:
    """Decide what to do when the kubelet asks to prepare a claim.

    `asked` is the claim as the API server has it now, or the error of that request; `record` is what this node did for
    its uid before, `unreadable` what is known of that if the record cannot be read. `needs_published` says that nothing
    can begin before it is known what this node publishes.
    """
    usable = record if record is not None and record.stage is Stage.COMPLETED and record.boot_id == boot_id else None
    if isinstance(asked, PydraError):
        # No answer of the API server: what was prepared stays valid, since a claim that is in use cannot change.
        return ReuseRecord(usable) if usable is not None and is_unanswered(asked) else Refuse(asked)
    if [device for device in asked.devices if device.consumed_capacity]:
        asked = index.adopt_capacity_names(asked)
    if usable is not None and has_same_devices(usable.claim, asked) and usable.claim.pod == asked.pod:
        return ReuseRecord(usable)
    if in_use := index.find_conflict(asked):
        return Refuse(in_use)
    if (unknown := index.find_unknown(asked)) is not None:
        return Refuse(_build_unknown(unknown))
    if record is None and unreadable is not None and not unreadable.is_newer and _is_allocated_again(unreadable, asked):
        return Undo(_build_started_record(unreadable.claim))
    if record is None:
        return WaitForDevices() if needs_published and index.published is None else Begin(asked)
    if record.stage is Stage.COMPLETED and has_same_devices(record.claim, asked):
        return PrepareAgain(replace(record, claim=replace(record.claim, pod=asked.pod)))
    return Undo(record)


def decide_unprepare(
    record: Record | None,
    *,
    index: DeviceIndex,
    unreadable: UnreadableRecord | None = None,
    asked: Claim | PydraError | None = None,
) -> Undo | RemoveCdiFile | Refuse:
    """Decide what to do when no pod on this node uses a claim any more.

    The API server was `asked` for the claim only if its record is `unreadable`.
    """
    if record is not None:
        return Undo(record)
    if unreadable is None:
        return RemoveCdiFile()
    if unreadable.is_newer:
        return Refuse(CheckpointError(f"the claim cannot be unprepared: {unreadable.why} ({unreadable.path})"))
    claim = unreadable.claim
    if isinstance(asked, Claim):
        # After another allocation, whose devices are not prepared: other claims or nodes may have them.
        devices = claim.devices if _is_allocated_again(unreadable, asked) else asked.devices
        if not claim.devices:
            devices = tuple([one for one in devices if _may_be_held(replace(asked, devices=(one,)), index)])
        claim = replace(asked, devices=devices)
    elif asked is not None and is_unanswered(asked):
        return Refuse(asked)
    return Undo(_build_started_record(claim)) if claim.devices else RemoveCdiFile()


def decide_reconcile(
    record: Record | None, *, boot_id: str, unreadable: UnreadableRecord | None = None
) -> Undo | RemoveCdiFile | ReuseRecord | DoNothing:
    """Decide what to do about a claim whose record and CDI file may disagree."""
    if record is None:
        # A lost record says nothing about the pods: their containers may need the file to start again.
        return RemoveCdiFile() if unreadable is None else DoNothing()
    if record.stage is Stage.STARTED:
        return Undo(record)
    return ReuseRecord(record) if record.boot_id == boot_id else DoNothing()


def is_unanswered(error: PydraError) -> bool:
    """Return whether the API server gave no answer about the claim, not even that it does not exist."""
    return isinstance(error, KubeError) and not (isinstance(error, NotFound) and error.is_of_object)


def has_same_devices(one: Claim, other: Claim) -> bool:
    """Return whether two readings of a claim have the same devices with the same parameters.

    The positions of the parameters are ignored: they are for messages, and may change with pydra's version. So are
    domains of capacities: of both forms of a name, one may be written and the other published.
    """
    return [_comparison_key(device) for device in one.devices] == [_comparison_key(device) for device in other.devices]


def _comparison_key(device: AllocatedDevice) -> tuple[object, ...]:
    named = (device.request, device.pool, device.device, device.share_id, device.admin_access)
    shares = sorted((name.rpartition("/")[2], amount) for name, amount in device.consumed_capacity.items())
    return (*named, shares, [config.parameters for config in device.configs])


def _is_allocated_again(unreadable: UnreadableRecord, asked: Claim) -> bool:
    """Return whether the claim had a device that it has not any longer."""
    now = {(device.pool, device.device) for device in asked.devices}
    return any((device.pool, device.device) not in now for device in unreadable.claim.devices)


def _may_be_held(claim: Claim, index: DeviceIndex) -> bool:
    """Return whether the claim may hold its devices here, though no record says so."""
    return index.find_conflict(claim) is None and index.find_unknown(claim) is None


def _build_unknown(device: AllocatedDevice) -> UnknownDevice:
    return UnknownDevice(
        f"device {device.device} of pool {device.pool} is not published by this node: it is gone, or the "
        "allocation is out of date; delete the pod, so that its claim is allocated again"
    )


def _build_started_record(claim: Claim) -> Record:
    """Build a *started* record for a claim whose own is lost: whatever may have been done for it is undone."""
    return Record(claim=claim, driver="", stage=Stage.STARTED, boot_id="", metadata=Metadata())
