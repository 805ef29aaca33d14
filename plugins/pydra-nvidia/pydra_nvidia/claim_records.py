"""What a claim holds: encoded as the data of its plan, decoded from its record, and counted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from pydra import Claim, HeldClaim, Sample, StepStage
from pydra_nvidia.device_names import GpuName, MigName, VfioName, parse_name
from pydra_nvidia.hardware_types import Placement
from pydra_nvidia.steps import STEP_TYPES, Step


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """That a claim has (a part of) some hardware: the PCI address of its GPU, and the memory slices it covers.

    `place` None: all of it. `share` is the share id where others may hold it too, and `interval` the time slice that
    they must agree on, empty where none is set. Holds with `admin` only look.
    """

    device: str
    hardware: str
    place: Placement | None = None
    share: str | None = None
    interval: str = ""
    admin: bool = False


class _Data(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a plan has beside its steps."""

    holds: tuple[Hold, ...] = ()


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What a held claim has. `begun` are the steps that were done, or may have been.

    `unread`: its record cannot be read, or a later version wrote it, so there is more than this. `left_over`: the claim
    has ended, and these steps could not be undone yet.
    """

    uid: str
    name: str
    holds: tuple[Hold, ...] = ()
    steps: tuple[Step, ...] = ()
    begun: tuple[Step, ...] = ()
    completed: bool = False
    left_over: bool = False
    unread: bool = False


def build_data(holds: Iterable[Hold]) -> Any:
    """The `data` of a plan."""
    return msgspec.to_builtins(_Data(holds=tuple(holds)))


def read_entries(held: Iterable[HeldClaim], besides: str = "") -> tuple[Entry, ...]:
    """An entry for each claim but the one with the uid `besides`."""
    return tuple([_read(one) for one in held if one.claim.uid != besides])


def find_addresses(claim: Claim) -> frozenset[str]:
    """The PCI addresses of what the claim has; none where its plan is of a later version."""
    try:
        return frozenset([hold.hardware for hold in msgspec.convert(claim.plan or {}, _Data).holds])
    except msgspec.ValidationError:
        return frozenset()


def count_devices(held: Sequence[HeldClaim]) -> tuple[Sample, ...]:
    """How many devices claims hold, by type; those with admin access are held by others."""
    names = [
        parse_name(device.device)
        for one in held
        if not one.left_over
        for device in one.claim.devices
        if not device.admin_access
    ]
    counts = Counter(map(type, names))
    return tuple(
        Sample(
            name="prepared_devices",
            value=counts[kind],
            help="Devices that are prepared for claims, by type.",
            labels={"device_type": device_type},
        )
        for device_type, kind in (("gpu", GpuName), ("mig", MigName), ("vfio", VfioName))
    )


def _read(held: HeldClaim) -> Entry:
    claim = held.claim
    known = [one for one in claim.steps if isinstance(one.step, tuple(STEP_TYPES))]
    unread = claim.plan is None or len(known) < len(claim.steps)
    try:
        data = msgspec.convert(claim.plan or {}, _Data)
        unread = unread or not set(claim.plan or ()) <= {"holds"}
    except msgspec.ValidationError:
        data, unread = _Data(), True
    names = {device.device for device in claim.devices}
    return Entry(
        uid=claim.uid,
        name=str(claim),
        holds=tuple([hold for hold in data.holds if hold.device in names]),
        steps=tuple([one.step for one in known]),
        begun=tuple([one.step for one in known if one.stage is not StepStage.PLANNED]),
        completed=held.completed,
        left_over=held.left_over,
        unread=unread,
    )
