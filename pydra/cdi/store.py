"""Writes and removes CDI spec files.

Container runtimes read the directory; this driver has one file in it for each claim. Writes are atomic but not durable:
the directory is on a tmpfs (/var/run/cdi), and every file can be built again from the claim's record. So they do not
block for long and need no thread. Files of others are never touched.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress

import anyio.to_thread
import msgspec

from pydra import atomic_files
from pydra.cdi.spec import CLASS, cdi_vendor
from pydra.claim import AllocatedDevice
from pydra.errors import CdiError

FILE_MODE = 0o644
DIRECTORY_MODE = 0o755
MAX_BYTES = 16 * 1024 * 1024
"""The specification's limit for a file."""

_DEVICE_NAME = re.compile(r"(?P<request>[a-z0-9-]+):(?P<device>[a-z0-9-]{1,63})(:(?P<share>[A-Za-z0-9-]+))?")


class _Name(msgspec.Struct, frozen=True):
    name: str


class _Names(msgspec.Struct, frozen=True):
    devices: tuple[_Name, ...]


class CdiStore:
    """The files `<vendor>-claim_<uid>.json` of one driver below `path`; `base` is what comes before the uid.

    Uids must be valid in file names. Every method raises CdiError, with advice, if the file system fails.
    """

    def __init__(self, path: str, driver: str) -> None:
        self._path = path
        self._prefix = f"{cdi_vendor(driver)}-{CLASS}_"
        self.base = f"{path}/{self._prefix}"

    def open(self) -> None:
        """Create the directory when it is absent, and remove temporary files of a killed writer of this driver."""
        try:
            atomic_files.make_directory(self._path, DIRECTORY_MODE)
            for name in os.listdir(self._path):
                if name.startswith(self._prefix) and name.endswith(".tmp"):
                    with suppress(FileNotFoundError):
                        os.unlink(f"{self._path}/{name}")
        except OSError as error:
            raise self._failed("opening", error) from error

    def write(self, uid: str, content: bytes) -> None:
        """Write the claim's file atomically: a reader sees the old content or the new one."""
        path = f"{self.base}{uid}.json"
        try:
            try:
                atomic_files.write_file(path, content, mode=FILE_MODE, durable=False)
            except FileNotFoundError:
                # The directory was wiped, or another instance's `open` removed the temporary file.
                atomic_files.make_directory(self._path, DIRECTORY_MODE)
                atomic_files.write_file(path, content, mode=FILE_MODE, durable=False)
        except OSError as error:
            raise self._failed(f"writing {self._prefix}{uid}.json in", error) from error

    def ensure(self, uid: str, content: bytes) -> bool:
        """Write the claim's file unless it already has this content; return whether it was written."""
        try:
            if atomic_files.read_regular_file(f"{self.base}{uid}.json", MAX_BYTES) == content:
                return False
        except OSError:
            pass  # writing it either repairs the file or reports what is wrong
        self.write(uid, content)
        return True

    def has(self, uid: str) -> bool:
        """Return whether there is a file of the claim, whatever is in it."""
        return os.path.lexists(f"{self.base}{uid}.json")

    def remove(self, uid: str) -> None:
        """Remove the claim's file, if there is one."""
        try:
            os.unlink(f"{self.base}{uid}.json")
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failed(f"removing {self._prefix}{uid}.json from", error) from error

    def read_devices(self, uid: str, *, pool: str) -> tuple[AllocatedDevice, ...]:
        """Return the devices that the claim's file names, which are all of this pool; none if it cannot be read."""
        try:
            content = atomic_files.read_regular_file(f"{self.base}{uid}.json", MAX_BYTES)
        except OSError:
            return ()
        return _parse_devices(content, uid, pool=pool)

    def list_of_this_boot(self) -> tuple[str, ...]:
        """Return the uids of the claims whose files were written since the node has booted."""
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        try:
            with os.scandir(self._path) as entries:
                own = {uid: entry for entry in entries if (uid := self._find_uid(entry.name))}
            return tuple(sorted(uid for uid, entry in own.items() if _read_time(entry) >= booted))
        except OSError as error:
            raise self._failed("reading", error) from error

    async def read(self) -> Mapping[str, bytes]:
        """Read this driver's files by claim uid, in a thread; one that cannot be read is returned empty."""
        return await anyio.to_thread.run_sync(self._read)

    def _read(self) -> Mapping[str, bytes]:
        files: dict[str, bytes] = {}
        try:
            names = sorted(os.listdir(self._path))
        except FileNotFoundError:
            return files
        except OSError as error:
            raise self._failed("reading", error) from error
        for name in names:
            uid = self._find_uid(name)
            if not uid:
                continue
            try:
                files[uid] = atomic_files.read_regular_file(f"{self._path}/{name}", MAX_BYTES)
            except FileNotFoundError:
                continue
            except OSError:
                files[uid] = b""
        return files

    def _find_uid(self, name: str) -> str:
        uid = name.removeprefix(self._prefix).removesuffix(".json")
        return uid if name == f"{self._prefix}{uid}.json" else ""

    def _failed(self, doing: str, error: OSError) -> CdiError:
        return CdiError(atomic_files.explain(error, f"{doing} the CDI directory {self._path}"))


def _read_time(entry: os.DirEntry[str]) -> float:
    """Return when the file was written; 0 if another instance has removed it."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def _parse_devices(content: bytes, uid: str, *, pool: str) -> tuple[AllocatedDevice, ...]:
    """Return the devices in a claim's CDI file, which does not say their pool; none if it is not such a file."""
    try:
        names = [device.name for device in msgspec.json.decode(content, type=_Names).devices]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    found = [_DEVICE_NAME.fullmatch(name.removeprefix(f"{uid}:")) for name in names]
    return tuple(
        [
            AllocatedDevice(request=one["request"], pool=pool, device=one["device"], share_id=one["share"])
            for one in found
            if one is not None
        ]
    )
