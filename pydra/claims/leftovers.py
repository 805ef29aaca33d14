"""What a sweep has to put right: records, claims of the API server and CDI files held against each other. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from pydra.checkpoint.record import Record, Stage
from pydra.claims.outcome import ClaimRef


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Claims to `unprepare`, which are gone for good, and uids to `tidy`, whose traces disagree."""

    unprepare: tuple[ClaimRef, ...] = ()
    tidy: tuple[str, ...] = ()
    absent_since: Mapping[str, float] = {}

    @property
    def waiting(self) -> int:
        """Claims that are gone, but not for long enough."""
        return len(self.absent_since) - len(self.unprepare)


def plan_sweep(
    records: Mapping[str, Record],
    files: Mapping[str, bytes] | None,
    *,
    unreadable: Collection[str],
    absent: Collection[str],
    absent_since: Mapping[str, float],
    now: float,
    grace: float,
    boot_id: str,
    expected_file: Callable[[Record], bytes | None],
) -> SweepPlan:
    """What to do about claims that nobody asks about.

    `files` are the driver's CDI files by uid, None when they cannot be read; `unreadable` the uids whose
    records cannot be. `absent` are the records'
    uids that the API server says it does not have. A claim must have been absent for `grace` seconds:
    the kubelet, which unprepares it when its last container has ended, comes first.
    """
    since = {uid: absent_since.get(uid, now) for uid in sorted(absent) if uid in records}
    gone = {uid for uid, first in since.items() if now - first >= grace}
    disagreeing = {
        uid
        for uid, record in records.items()
        if record.stage is Stage.STARTED
        or (files is not None and record.boot_id == boot_id and files.get(uid) != expected_file(record))
    }
    orphans = (files or {}).keys() - records.keys() - set(unreadable)
    return SweepPlan(
        unprepare=tuple(_ref(records[uid]) for uid in sorted(gone)),
        tidy=tuple(sorted((disagreeing | orphans) - gone)),
        absent_since=since,
    )


def _ref(record: Record) -> ClaimRef:
    return ClaimRef(uid=record.claim.uid, namespace=record.claim.namespace, name=record.claim.name)
