"""Lists the checkpoint records of a node, and has the store repair or discard them; `pydra checkpoint`.

Which of its two directories a driver uses follows from its backend, which is not asked: both are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import msgspec

from pydra import atomic_files
from pydra.cdi.store import CdiStore
from pydra.checkpoint.locks_between_instances import InstanceLocks
from pydra.checkpoint.record_files import StoredRecord, list_stored
from pydra.checkpoint.store import RecordStore
from pydra.claim import Claim, HeldClaim
from pydra.claims.gc import read_kubelet_claims
from pydra.diagnosis.findings import Finding, Level
from pydra.errors import CheckpointError, SettingsError
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
                subject="left over",
                level=Level.PROBLEM,
                found=f"{record.claim.namespace}/{record.claim.name} of driver {one.driver} has ended and still holds "
                f"{devices}: {record.left_over}",
                advice="the agent tries again; repair or reset the hardware, or reboot the node",
            )


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
                findings += [
                    Finding(subject=name, level=Level.OK, found=f"{one} can be read, and is used again") for one in used
                ]
                if discard in store.unreadable:
                    _check_discarded(settings, discard)
                    cdi.remove(discard)  # else the claim would hold the devices that it names
                    await store.remove(discard)
                    discarded = True
                    found = f"the record of claim {discard} is removed, and its devices are free"
                    findings.append(Finding(subject=name, level=Level.OK, found=found))
                findings += _describe_unreadable(name, {uid: one.path for uid, one in store.unreadable.items()}, store)
                if not store.unreadable:
                    found = f"records in {path}: {len(store.records)}, all readable"
                    findings.append(Finding(subject=name, level=Level.OK, found=found))
        finally:
            lock.close()
    if discard and not discarded:
        raise SettingsError([f"--discard: no unreadable record of a claim with the uid {discard} is on this node"])
    return tuple(findings)


def _describe_unreadable(driver: str, paths: Mapping[str, str], store: RecordStore) -> Iterator[Finding]:
    for uid, path in sorted(paths.items()):
        one = store.unreadable[uid]
        devices = ", ".join(sorted({device.device for device in one.claim.devices})) or "devices that are not known"
        advice = (
            f"it is freed when the claim's pods have ended; if they never ran, pydra checkpoint repair --discard {uid}"
        )
        if one.is_newer:
            advice = "start the newer version of pydra again; only it can unprepare the claim"
        found = f"{path} ({one.why}) holds {devices}"
        yield Finding(subject=driver, level=Level.PROBLEM, found=found, advice=advice)


def _check_discarded(settings: Settings, uid: str) -> None:
    if uid in read_kubelet_claims(settings.kubelet_claims):
        raise CheckpointError(
            f"the kubelet still has claim {uid}, so its containers may run, and its record is kept; "
            "delete the pods that use the claim, and the kubelet has it unprepared"
        )
