"""What this node holds for claims: their records and CDI files. Judges them, and has the store repair records.

Which of its two directories for records a driver uses follows from its backend, which is not asked: both are read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec
from msgspec.structs import replace

from pydra import atomic_files
from pydra.cdi.spec import build_spec
from pydra.cdi.store import CdiStore
from pydra.checkpoint.locks_between_instances import InstanceLocks
from pydra.checkpoint.record import Stage
from pydra.checkpoint.record_files import StoredRecord, list_stored
from pydra.checkpoint.store import RecordStore
from pydra.claim import Claim, HeldClaim
from pydra.claims.gc import read_kubelet_claims
from pydra.diagnosis import Finding, Level
from pydra.errors import CheckpointError, PydraError, SettingsError
from pydra.message_text import suggest
from pydra.settings import Settings


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one claim of one driver. `durable`: it is where records are that survive a reboot."""

    driver: str
    durable: bool
    stored: StoredRecord

    @property
    def claim(self) -> Claim:
        """The claim, as far as it can be read."""
        return self.stored.claim

    @property
    def held(self) -> HeldClaim:
        """The claim as it is passed to a backend."""
        record = self.stored.record
        return record.held() if record is not None else HeldClaim(claim=self.claim, completed=False)

    @property
    def stage(self) -> str:
        """`started`, `completed`, `left over` (the claim has ended), or `unreadable`."""
        if self.stored.record is not None and self.stored.record.left_over:
            return "left over"
        return self.stored.record.stage.value if self.stored.record is not None else "unreadable"


def find_drivers(settings: Settings) -> tuple[str, ...]:
    """Return the drivers that have a directory of records on this node.

    Raises:
        CheckpointError: a directory cannot be read.
    """
    found = set()
    for parent in {os.path.dirname(settings.records_directory("-")), os.path.dirname(settings.plugin_directory("-"))}:
        try:
            names = os.listdir(parent)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CheckpointError(atomic_files.explain(error, f"reading {parent}")) from error
        found |= {name for name in names if any(map(os.path.isdir, settings.claim_directories(name)))}
    return tuple(sorted(found))


def read_records(settings: Settings, *, driver: str = "") -> tuple[ClaimRecord, ...]:
    """Read the records of one driver, or of all. Blocks.

    Raises:
        CheckpointError: a directory cannot be read.
        SettingsError: the driver has no records here.
    """
    return tuple(
        ClaimRecord(driver=name, durable=durable, stored=stored)
        for name, path, durable in find_directories(settings, driver)
        for stored in list_stored(path)
    )


def judge_left_over(held: Iterable[ClaimRecord]) -> Iterator[Finding]:
    """Yield what claims that have ended have left, and why that is not undone yet."""
    for one in held:
        record = one.stored.record
        if record is not None and record.left_over:
            devices = ", ".join(device.device for device in record.claim.devices) or "no device"
            yield Finding(
                "left over",
                Level.PROBLEM,
                f"{record.claim} of driver {one.driver} has ended and still holds {devices}: {record.left_over}",
                "the agent tries again; repair or reset the hardware, or reboot the node",
            )


def judge_unreadable(held: Iterable[ClaimRecord]) -> Iterator[Finding]:
    """Yield the records that cannot be read, whose claims hold devices all the same."""
    for one in held:
        if one.stored.record is None:
            found = f"the record of {one.driver} cannot be read: {one.stored.problem} ({one.stored.path})"
            yield Finding("record", Level.PROBLEM, found, "see: pydra checkpoint repair")


def choose_records(records: tuple[ClaimRecord, ...], claim: str) -> tuple[ClaimRecord, ...]:
    """Return the records of the claim with this uid, or of NAMESPACE/NAME. Raises SettingsError."""
    named = [(record, (record.claim.uid, f"{record.claim.namespace}/{record.claim.name}")) for record in records]
    found = tuple(record for record, names in named if claim in names)
    if not found:
        known = [name for _, names in named for name in names]
        raise SettingsError([f"no record of a claim {claim} on this node{suggest(claim, known)}"])
    return found


def find_directories(settings: Settings, driver: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the directories of records: driver, path, and whether it survives a reboot. Raises as `read_records`."""
    drivers = find_drivers(settings)
    if driver and driver not in drivers:
        listed = f"records are of {', '.join(drivers)}" if drivers else "no driver of pydra has any"
        raise SettingsError([f"--only: {driver} has no records on this node{suggest(driver, drivers)}: {listed}"])
    for name in (driver,) if driver else drivers:
        for path, durable in zip(settings.claim_directories(name), (False, True), strict=True):
            if os.path.isdir(path):
                yield name, path, durable


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
    return Finding("record", Level.UNKNOWN, str(error), "run it as root on the node, or in the agent's pod")


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
        return [replace(one, subject="prepared") for one in judge_unreadable((record,))]
    if kept.stage is Stage.STARTED:
        found = f"{record.driver} has begun, and not ended, to prepare or to unprepare it ({where})"
        advice = "the agent undoes or repeats it at the kubelet's next call; the last error is in the Events"
        return [Finding("prepared", Level.PROBLEM, found, advice)]
    findings = [Finding("prepared", Level.OK, f"by {record.driver} ({where})")]
    if not is_wanted:
        found = "but the claim is not allocated any more"
        advice = "the kubelet unprepares it when its pods have ended; garbage collection does if the kubelet forgot it"
        findings.append(Finding("prepared", Level.PROBLEM, found, advice))
    return [*findings, await judge_file(settings, record)]


async def judge_files(settings: Settings, held: Sequence[ClaimRecord]) -> list[Finding]:
    """Return which claims that are prepared have no CDI file, or another than their record says."""
    findings = [
        (one, await judge_file(settings, one)) for one in held if one.stage == Stage.COMPLETED.value and one.claim.name
    ]
    return [
        replace(finding, found=f"{finding.found}: claim {one.claim}")
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
        return Finding("CDI file", Level.UNKNOWN, str(error))
    if content == expected:
        found = path if expected is not None else "none: the devices change nothing in a container"
        return Finding("CDI file", Level.OK, found)
    found = f"{path} {'is missing' if content is None else 'is not what the record says'}"
    advice = "the agent writes it again at its start, and at each garbage collection (sweepPeriod)"
    return Finding("CDI file", Level.PROBLEM, found, advice)


# Repairing


async def repair_records(settings: Settings, *, driver: str = "", discard: str = "") -> tuple[Finding, ...]:
    """Open each store as the agent does at its start, and put back what is readable again.

    `discard` is the uid of a claim whose record cannot be read: its files are removed, and its devices are free. An
    agent that runs notices all changes. The findings are what was done, and what is left.

    Raises:
        CheckpointError: the disk failed, or the kubelet may still need what was to be discarded.
        SettingsError: the driver has no records here, or no unreadable record has that uid.
    """
    from pydra.agent.driver import read_boot_id  # noqa: PLC0415 - loads the agent, which reading needs nothing of

    boot_id = read_boot_id(settings.boot_id_file)
    findings: list[Finding] = []
    discarded = False
    for name, path, durable in find_directories(settings, driver):
        lock = InstanceLocks(f"{settings.records_directory(name)}/lock")
        atomic_files.make_directory(settings.records_directory(name), 0o700)
        cdi = CdiStore(settings.cdi_dir, name)
        known = partial(cdi.read_devices, pool=settings.node_name)
        store = RecordStore(path, lock, durable=durable, boot_id=boot_id, find_devices=known)
        store.open()
        try:
            async with store:
                used = await store.put_back()
                findings += [Finding(name, Level.OK, f"{one} can be read, and is used again") for one in used]
                if discard in store.unreadable:
                    _check_discarded(settings, discard)
                    cdi.remove(discard)  # else the claim would hold the devices that it names
                    await store.remove(discard)
                    discarded = True
                    found = f"the record of claim {discard} is removed, and its devices are free"
                    findings.append(Finding(name, Level.OK, found))
                findings += _describe_unreadable(name, store)
                if not store.unreadable:
                    findings.append(Finding(name, Level.OK, f"records in {path}: {len(store.records)}, all readable"))
        finally:
            lock.close()
    if discard and not discarded:
        raise SettingsError([f"--discard: no unreadable record of a claim with the uid {discard} is on this node"])
    return tuple(findings)


def _describe_unreadable(driver: str, store: RecordStore) -> Iterator[Finding]:
    for uid, one in sorted(store.unreadable.items()):
        devices = ", ".join(sorted({device.device for device in one.claim.devices})) or "devices that are not known"
        advice = (
            f"it is freed when the claim's pods have ended; if they never ran, pydra checkpoint repair --discard {uid}"
        )
        if one.is_newer:
            advice = "start the newer version of pydra again; only it can unprepare the claim"
        yield Finding(driver, Level.PROBLEM, f"{one.path} ({one.why}) holds {devices}", advice)


def _check_discarded(settings: Settings, uid: str) -> None:
    if uid in read_kubelet_claims(settings.kubelet_claims):
        raise CheckpointError(
            f"the kubelet still has claim {uid}, so its containers may run, and its record is kept; "
            "delete the pods that use the claim, and the kubelet has it unprepared"
        )
