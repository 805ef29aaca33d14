"""Has the store repair the records that can be read again, or discard one; `pydra checkpoint repair`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from pydra import atomic_files
from pydra.agent.driver import read_boot_id
from pydra.cdi.store import CdiStore
from pydra.checkpoint.locks_between_instances import InstanceLocks
from pydra.checkpoint.store import RecordStore
from pydra.claims.gc import read_kubelet_claims
from pydra.diagnosis.checkpoint_records import find_directories
from pydra.diagnosis.findings import Finding, Level
from pydra.errors import CheckpointError, SettingsError
from pydra.settings import Settings


async def repair_records(settings: Settings, *, driver: str = "", discard: str = "") -> tuple[Finding, ...]:
    """Open each store as the agent does at its start, and put back what is readable again.

    `discard` is the uid of a claim whose record cannot be read: its files are removed, and its devices are free. An
    agent that runs notices all changes. The findings are what was done, and what is left.

    Raises:
        CheckpointError: the disk failed, or the kubelet may still need what was to be discarded.
        SettingsError: the driver has no records here, or no unreadable record has that uid.
    """
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
