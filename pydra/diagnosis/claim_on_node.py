"""Judges what this node holds for a claim: its record, and the CDI file that belongs to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from pydra.cdi.spec import build_spec
from pydra.cdi.store import CdiStore
from pydra.checkpoint.record import Stage
from pydra.diagnosis.checkpoint_records import ClaimRecord, find_drivers, read_records
from pydra.diagnosis.findings import Finding, Level
from pydra.errors import PydraError
from pydra.settings import Settings


async def read_held(settings: Settings) -> tuple[Sequence[ClaimRecord], Mapping[str, Finding]]:
    """Return the records of this node, and by driver why it may have others; under "" if no driver is known."""
    return await asyncio.to_thread(_read_held, settings)


def _read_held(settings: Settings) -> tuple[Sequence[ClaimRecord], Mapping[str, Finding]]:
    held: list[ClaimRecord] = []
    unread: dict[str, Finding] = {}
    try:
        drivers = find_drivers(settings)
    except PydraError as error:
        return (), {"": _build_unread(error)}
    for driver in drivers:
        try:
            held += read_records(settings, driver=driver)
        except PydraError as error:
            unread[driver] = _build_unread(error)
    return held, unread


def _build_unread(error: PydraError) -> Finding:
    advice = "run it as root on the node, or in the agent's pod"
    return Finding(subject="record", level=Level.UNKNOWN, found=str(error), advice=advice)


def list_prepared(one: ClaimRecord) -> Iterator[tuple[tuple[str, str, str], tuple[str, ...]]]:
    """Yield driver, pool and name of each prepared device, with its CDI ids; none where the record cannot be read."""
    if one.stored.record is None:
        return
    with suppress(PydraError):  # of the file: it is reported with the file
        prepared = one.stored.record.prepared
        for device, ids in zip(prepared, build_spec(one.driver, one.claim.uid, prepared).ids, strict=True):
            yield (one.driver, device.pool, device.device), ids


async def judge_record(settings: Settings, record: ClaimRecord, *, is_wanted: bool) -> list[Finding]:
    """Judge a record and its CDI file; `is_wanted`: the claim is allocated, as far as that is known."""
    kept, where = record.stored.record, record.stored.path
    if kept is None:
        found = f"the record of {record.driver} cannot be read: {record.stored.problem} ({where})"
        return [Finding(subject="prepared", level=Level.PROBLEM, found=found, advice="see: pydra checkpoint repair")]
    if kept.stage is Stage.STARTED:
        found = f"{record.driver} has begun, and not ended, to prepare or to unprepare it ({where})"
        advice = "the agent undoes or repeats it at the kubelet's next call; the last error is in the Events"
        return [Finding(subject="prepared", level=Level.PROBLEM, found=found, advice=advice)]
    findings = [Finding(subject="prepared", level=Level.OK, found=f"by {record.driver} ({where})")]
    if not is_wanted:
        found = "but the claim is not allocated any more"
        advice = "the kubelet unprepares it when its pods have ended; garbage collection does if the kubelet forgot it"
        findings.append(Finding(subject="prepared", level=Level.PROBLEM, found=found, advice=advice))
    return [*findings, await judge_file(settings, record)]


async def judge_files(settings: Settings, held: Sequence[ClaimRecord]) -> list[Finding]:
    """Return which claims that are prepared have no CDI file, or another than their record says."""
    findings = [
        (one, await judge_file(settings, one)) for one in held if one.stage == Stage.COMPLETED.value and one.claim.name
    ]
    return [
        replace(finding, found=f"{finding.found}: claim {one.claim.namespace}/{one.claim.name}")
        for one, finding in findings
        if finding.level is not Level.OK
    ]


async def judge_file(settings: Settings, record: ClaimRecord) -> Finding:
    """Judge whether the CDI file of a completed record is there, and is what the record says."""
    uid, kept = record.claim.uid, record.stored.record
    store = CdiStore(settings.cdi_dir, record.driver)
    path = f"{store.base}{uid}.json"
    try:
        content = (await store.read()).get(uid)
        expected = build_spec(record.driver, uid, kept.prepared).content if kept is not None else None
    except PydraError as error:
        return Finding(subject="CDI file", level=Level.UNKNOWN, found=str(error))
    if content == expected:
        found = path if expected is not None else "none: the devices change nothing in a container"
        return Finding(subject="CDI file", level=Level.OK, found=found)
    found = f"{path} {'is missing' if content is None else 'is not what the record says'}"
    advice = "the agent writes it again at its start, and at each garbage collection (sweepPeriod)"
    return Finding(subject="CDI file", level=Level.PROBLEM, found=found, advice=advice)
