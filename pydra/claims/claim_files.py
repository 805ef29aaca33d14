"""The files through which containers get what was prepared: a claim's CDI file, and its device metadata files.

All of them can be built again from the claim's record, so they may be missing, stale or damaged, and are mended.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from msgspec.structs import replace

from pydra.cdi.device_metadata_files import MetadataStore
from pydra.cdi.host_path_checks import resolve
from pydra.cdi.spec import ClaimSpec, build_spec
from pydra.cdi.store import CdiStore
from pydra.checkpoint.record import Record
from pydra.claim import ClaimRef, ContainerDevice
from pydra.claims.allocation import base_request
from pydra.claims.device_metadata import add_metadata_ids, build_metadata_files
from pydra.errors import CdiError, PydraError

_log = logging.getLogger(__name__)


class ClaimFiles:
    """The files of one driver's claims, in its two stores; those of metadata only of claims whose records have some.

    `host_root` is where the agent sees the host's root directory. Methods raise CdiError if the file system fails, and
    what `build_spec` raises if the devices of a claim contradict each other.
    """

    def __init__(self, driver: str, *, cdi: CdiStore, metadata: MetadataStore, host_root: str = "/") -> None:
        self._driver = driver
        self.cdi = cdi
        self.metadata = metadata
        self._host_root = host_root

    def open(self) -> None:
        """Create directories, and remove what killed writers have left."""
        self.cdi.open()
        self.metadata.open()

    async def write(self, record: Record) -> tuple[Record, tuple[ContainerDevice, ...]]:
        """Write the files; return the devices as the kubelet passes them on, and the record.

        That has the devices without the optional edits whose paths the host lacks.

        Raises:
            HostPathMissing: a path that is not optional is not there.
        """
        record = replace(record, prepared=await resolve(record.prepared, root=self._host_root))
        spec = build_spec(self._driver, record.claim.uid, record.prepared)
        if spec.content is not None:
            self.cdi.write(record.claim.uid, spec.content)
        if record.metadata is not None:
            self.write_metadata(record)
        return record, self._build_devices(record, spec)

    def write_metadata(self, record: Record) -> None:
        """Write the claim's metadata files."""
        self.metadata.write(build_metadata_files(record, self.metadata.paths))

    async def mend(self, record: Record) -> tuple[tuple[ContainerDevice, ...], bool]:
        """Check the host's paths and restore files; return the devices as `write` does, and whether one was wrong.

        The record keeps the optional edits whose paths the host lacks now: they may come back.
        """
        record = replace(record, prepared=await resolve(record.prepared, root=self._host_root))
        spec = build_spec(self._driver, record.claim.uid, record.prepared)
        is_restored = spec.content is not None and self.cdi.ensure(record.claim.uid, spec.content)
        if record.metadata is not None:
            is_restored = self.metadata.ensure(build_metadata_files(record, self.metadata.paths)) or is_restored
        if is_restored:
            _log.warning("a CDI or metadata file of the claim was missing or changed, and was restored")
        return self._build_devices(record, spec), is_restored

    def take_back(self, record: Record) -> None:
        """Remove the files, so that no container can start with devices that are being taken away."""
        self.cdi.remove(record.claim.uid)
        if record.metadata is not None:
            try:
                self.metadata.remove(ClaimRef.of(record.claim))
            except CdiError as error:  # they hold no device: the claim ends all the same
                _log.warning("%s; garbage collection tries again", error)

    def remove(self, ref: ClaimRef) -> None:
        """Remove the files of a claim that has no record."""
        self.cdi.remove(ref.uid)
        self.metadata.remove(ref)

    def build_cdi_content(self, record: Record) -> bytes | None:
        """Return the content that the claim's CDI file must have; None if there must be none, or cannot be one."""
        try:
            return build_spec(self._driver, record.claim.uid, record.prepared).content
        except PydraError:
            return None  # then it is reconciled, and the error is reported for that claim

    def build_metadata_content(self, record: Record) -> Mapping[str, bytes]:
        """Return the content that the claim's metadata files must have, by path; none if there cannot be any."""
        try:
            return build_metadata_files(record, self.metadata.paths)
        except PydraError:
            return {}  # as above

    def _build_devices(self, record: Record, spec: ClaimSpec) -> tuple[ContainerDevice, ...]:
        devices = [
            ContainerDevice(
                requests=(base_request(device.request),),
                pool=device.pool,
                device=device.device,
                cdi_ids=ids,
                share_id=device.share_id,
            )
            for device, ids in zip(record.prepared, spec.ids, strict=True)
        ]
        if record.metadata is not None:
            devices = add_metadata_ids(devices, driver=self._driver, uid=record.claim.uid)
        return tuple(devices)
