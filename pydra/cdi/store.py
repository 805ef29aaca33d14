"""The directory where container runtimes read CDI specs: this driver's files in it, one for each claim.

Writes are atomic but not durable: the directory usually lies on tmpfs, and every file can be built
again from the claim's record. Files of others are never touched. `open` removes what a killed
writer left; it is called under the instance lock, as all writes are, so that no other writer is at work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import anyio.to_thread

from pydra import disk
from pydra.cdi.document import MAX_BYTES
from pydra.cdi.names import cdi_file_name, parse_file_name
from pydra.errors import CdiError

FILE_MODE = 0o644
DIRECTORY_MODE = 0o755


class CdiDirectory:
    """The files `<vendor>-claim_<uid>.json` of one driver below `path`.

    Every method raises CdiError with what to do when the disk refuses. Those that end in `_now` block; they are for
    whoever is in a worker thread already.
    """

    def __init__(self, path: str, driver: str, *, step: disk.Step = disk.no_step) -> None:
        self._path = path
        self._driver = driver
        self._step = step

    async def open(self) -> None:
        """Create the directory when absent, and remove temporary files of a killed writer of this driver."""
        await anyio.to_thread.run_sync(self._open)

    async def write(self, uid: str, spec: bytes) -> None:
        """Put the claim's file in place. A directory that was removed meanwhile is created again."""
        await anyio.to_thread.run_sync(self.write_now, uid, spec)

    def write_now(self, uid: str, spec: bytes) -> None:
        """Put the claim's file in place."""
        self._write(self._name(uid), spec)

    async def ensure(self, uid: str, spec: bytes) -> bool:
        """Write the claim's file unless it says so already; True when it was written."""
        return await anyio.to_thread.run_sync(self._ensure, self._name(uid), spec)

    async def remove(self, uid: str) -> None:
        """Remove the claim's file, if there is one."""
        await anyio.to_thread.run_sync(self.remove_now, uid)

    def remove_now(self, uid: str) -> None:
        """Remove the claim's file, if there is one."""
        self._remove(self._name(uid))

    async def read(self) -> Mapping[str, bytes]:
        """This driver's files by claim uid; a file that cannot be read as one is there, but empty."""
        return await anyio.to_thread.run_sync(self._read)

    def _name(self, uid: str) -> str:
        try:
            return cdi_file_name(self._driver, uid)
        except ValueError as error:
            raise CdiError(str(error)) from error

    def _open(self) -> None:
        with self._explained("creating"):
            disk.make_directory(self._path, DIRECTORY_MODE)
        with self._explained("cleaning"), disk.opened(self._path) as directory:
            for name in os.listdir(directory):
                if self._is_left_over(name):
                    disk.remove_file(directory, name)

    def _is_left_over(self, name: str) -> bool:
        if not disk.is_temporary(name, ".json"):
            return False
        finished = name[1:].removesuffix(".tmp").rpartition(".")[0]
        return parse_file_name(self._driver, finished) is not None

    def _write(self, name: str, spec: bytes) -> None:
        with self._explained("creating"):
            disk.make_directory(self._path, DIRECTORY_MODE)
        with self._explained(f"writing {name} in"), disk.opened(self._path) as directory:
            disk.replace_file(directory, name, spec, mode=FILE_MODE, durable=False, step=self._step)

    def _ensure(self, name: str, spec: bytes) -> bool:
        # Whatever keeps the file from being read, writing it either mends it or says what is wrong.
        with suppress(OSError), disk.opened(self._path) as directory:
            if disk.read_file(directory, name, MAX_BYTES) == spec:
                return False
        self._write(name, spec)
        return True

    def _remove(self, name: str) -> None:
        with (
            self._explained(f"removing {name} from"),
            suppress(FileNotFoundError),
            disk.opened(self._path) as directory,
        ):
            self._step("unlink")
            disk.remove_file(directory, name)

    def _read(self) -> Mapping[str, bytes]:
        files: dict[str, bytes] = {}
        with self._explained("reading"), suppress(FileNotFoundError), disk.opened(self._path) as directory:
            for name in sorted(os.listdir(directory)):
                uid = parse_file_name(self._driver, name)
                if uid is None:
                    continue
                try:
                    files[uid] = disk.read_file(directory, name, MAX_BYTES)
                except FileNotFoundError:
                    continue
                except OSError:
                    files[uid] = b""
        return files

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CdiError(disk.explain(error, f"{doing} the CDI directory {self._path}")) from error
