"""Reads, writes and removes device metadata files: each request's JSON file, and the CDI spec that mounts it.

`pydra.claims.device_metadata` builds them. The JSON files are on the disk, and so survive a reboot, which claims do
not: what no claim has is found by `read`, and removed. Nothing is flushed: a claim is prepared again after a reboot.

A file is written atomically, by a rename, unless it is the claim's own already: containers have that file mounted, and
would not see another one of the same name. It is overwritten, and blanks fill it up if it becomes shorter.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

import anyio.to_thread
import msgspec

from pydra import atomic_files
from pydra.cdi.spec import cdi_vendor
from pydra.claim import Claim, ClaimRef
from pydra.errors import CdiError

_MODE = 0o644
_DIRECTORY_MODE = 0o755
_MAX_BYTES = 16 * 1024 * 1024
_NAME_BYTES = 255
"""Of a file on Linux; a namespace has up to 63 bytes and a claim's name up to 253."""
_UID = re.compile(rb'"uid":\s*"([^"\\]+)"')
"""The claim's, which comes before anything that a backend chooses."""


class MetadataPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Where the metadata files of one driver are. Requests are base names, without `/sub`."""

    driver: str
    plugin_directory: str
    cdi_directory: str

    @property
    def directory(self) -> str:
        """The directory of the JSON files."""
        return f"{self.plugin_directory}/dra-device-metadata"

    @property
    def spec_prefix(self) -> str:
        """What the names of the CDI specs begin with."""
        return f"{cdi_vendor(self.driver)}_metadata_"

    def claim_directory(self, namespace: str, name: str) -> str:
        """Return the directory of a claim's JSON files; one whose name would be too long ends with a digest of it."""
        full = f"{namespace}_{name}"
        if len(full) > _NAME_BYTES:
            digest = hashlib.sha256(full.encode()).hexdigest()
            full = f"{full[: _NAME_BYTES - len(digest) - 1]}_{digest}"
        return f"{self.directory}/{full}"

    def file(self, claim: Claim, request: str) -> str:
        """Return the path of a request's JSON file."""
        return f"{self.claim_directory(claim.namespace, claim.name)}/{request}/metadata.json"

    def spec(self, uid: str, request: str) -> str:
        """Return the path of the CDI spec that mounts a request's JSON file."""
        return f"{self.cdi_directory}/{self.spec_prefix}{uid}_{request}.json"


class MetadataStore:
    """The metadata files of one driver. Every method raises CdiError, with advice, if the file system fails."""

    def __init__(self, paths: MetadataPaths) -> None:
        self.paths = paths

    def open(self) -> None:
        """Remove files that a loss of power left incomplete: they name no claim, so nothing else would."""
        try:
            for path in self._find_files():
                if not _find_uid(_read(path)):
                    self._remove(path)
            for claim in _list(self.paths.directory):
                self._remove_directory(f"{self.paths.directory}/{claim}")
        except OSError as error:
            raise self._failed("removing incomplete files of", error) from error

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write these files in their order; a JSON file that the claim has already is overwritten."""
        for path, content in files.items():
            try:
                try:
                    self._write(path, content)
                except FileNotFoundError:  # another instance's `open` removed the temporary file
                    self._write(path, content)
            except OSError as error:
                raise self._failed(f"writing {path} of", error) from error

    def ensure(self, files: Mapping[str, bytes]) -> bool:
        """Write those of these files that are missing or different; return whether there were any.

        The JSON files of a later claim with this name stay.
        """
        changed: dict[str, bytes] = {}
        for path, content in files.items():
            found = _read(path)
            if found != content and _find_uid(found) in ("", _find_uid(content)):
                changed[path] = content
        self.write(changed)
        return bool(changed)

    def remove(self, ref: ClaimRef) -> None:
        """Remove the claim's files, CDI specs first. One without a name is looked for by its uid."""
        try:
            for name in _list(self.paths.cdi_directory):
                if name.startswith(f"{self.paths.spec_prefix}{ref.uid}_"):
                    self._remove(f"{self.paths.cdi_directory}/{name}")
            own = (ref.uid, "") if ref.name else (ref.uid,)  # a writer that was killed has left no uid
            for path in self._find_files(self.paths.claim_directory(ref.namespace, ref.name) if ref.name else ""):
                if _find_uid(_read(path)) in own:  # else the files are of a later claim with this name
                    self._remove(path)
            if ref.name:
                self._remove_directory(self.paths.claim_directory(ref.namespace, ref.name))
        except OSError as error:
            raise self._failed("removing", error) from error

    async def read(self) -> Mapping[str, Mapping[str, bytes]]:
        """Read the driver's metadata files, by claim uid and path, in a thread."""
        return await anyio.to_thread.run_sync(self._read_all)

    def _read_all(self) -> Mapping[str, Mapping[str, bytes]]:
        files: dict[str, dict[str, bytes]] = {}
        try:
            for name in _list(self.paths.cdi_directory):
                if name.startswith(self.paths.spec_prefix) and name.endswith(".json"):
                    uid = name.removeprefix(self.paths.spec_prefix).rpartition("_")[0]
                    path = f"{self.paths.cdi_directory}/{name}"
                    files.setdefault(uid, {})[path] = _read(path)
            for path in self._find_files():
                content = _read(path)
                if uid := _find_uid(content):
                    files.setdefault(uid, {})[path] = content
        except OSError as error:
            raise self._failed("reading", error) from error
        return files

    def _find_files(self, claim: str = "") -> Iterator[str]:
        all_claims = (f"{self.paths.directory}/{one}" for one in _list(self.paths.directory))
        for directory in (claim,) if claim else all_claims:
            for request in _list(directory):
                yield f"{directory}/{request}/metadata.json"

    def _remove(self, path: str) -> None:
        for one in (path, f"{path}.tmp"):
            with suppress(FileNotFoundError):
                os.unlink(one)
        if path.startswith(f"{self.paths.directory}/"):
            self._remove_directory(os.path.dirname(path))

    def _remove_directory(self, path: str) -> None:
        """Remove the directory of a request or claim, and the one above it, unless there is something in it."""
        while path != self.paths.directory:
            try:
                os.rmdir(path)
            except FileNotFoundError:
                pass
            except OSError:
                return
            path = os.path.dirname(path)

    def _write(self, path: str, content: bytes) -> None:
        uid = _find_uid(content)
        if uid and _find_uid(_read(path)) == uid:
            _overwrite(path, content)
            return
        os.makedirs(os.path.dirname(path), _DIRECTORY_MODE, exist_ok=True)
        atomic_files.write_file(path, content, mode=_MODE, durable=False)

    def _failed(self, doing: str, error: OSError) -> CdiError:
        return CdiError(atomic_files.explain(error, f"{doing} the metadata files of claims in {self.paths.directory}"))


def _list(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(path: str) -> bytes:
    """Return the file's content without blanks at its end; empty if it cannot be read."""
    try:
        return atomic_files.read_regular_file(path, _MAX_BYTES).rstrip(b" ")
    except OSError:
        return b""


def _overwrite(path: str, content: bytes) -> None:
    """Replace the content of a file that may be mounted, so that a reader finds all of the old or all of the new one.

    Only a reader at the very moment of the copy may find both. The file grows first, by blanks, which a reader of JSON
    skips: if the disk is full, the old content is still there.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        for part, place in ((b" " * (len(content) - size), size), (content.ljust(size), 0)):
            if os.pwrite(descriptor, part, place) < len(part):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(descriptor)


def _find_uid(content: bytes) -> str:
    """Return the uid of the claim in a JSON file; empty if it is incomplete, and for a CDI spec."""
    found = _UID.search(content)
    return found[1].decode(errors="replace") if found else ""
