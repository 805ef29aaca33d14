"""What has been done, or begun, for which claim: one file a claim, written before the hardware is touched.

It lies on a file system that a reboot empties, as the hardware forgets then too; where it does not, what another boot
wrote is passed over. A file `began` says that the journal is whole since then: without it, it may have been lost, and
partitions and MPS daemons without an owner may be those of claims. Two processes may use the journal at once
(overlapping upgrades); the agent lets only one of them prepare at a time. Each look asks every file for its sign, and
reads those whose sign is new; a file that was written a moment ago has no sign yet, for its clock counts in ticks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from pydra import ClaimError
from pydra_nvidia.hardware import Placement
from pydra_nvidia.host.settled import is_settled
from pydra_nvidia.steps import Entry

SUFFIX = ".json"
ASIDE = ".json.unreadable"
BEGAN = "began"

Sign: TypeAlias = tuple[int, int, int]
"""A file's inode, time in nanoseconds since 1970, and size."""


class JournalError(ClaimError):
    """The journal cannot be read or written; nothing is done to the hardware without it."""

    reason = "JournalFailed"


class Began(msgspec.Struct, frozen=True, kw_only=True):
    """When the journal began: the boot, and the partitions that were there already, by their GPU's UUID and place.

    `at` is in seconds since boot; 0 where an earlier version did not write it down.
    """

    boot: str = ""
    found: tuple[tuple[str, Placement], ...] = ()
    at: float = 0.0


class Journal:
    """The directory at `path`, made when first needed. `boot` is this boot's id; empty where nobody can tell."""

    def __init__(self, path: str, boot: str = "") -> None:
        self.boot = boot
        self._path = path
        self._leaving: set[str] = set()
        self._known: Mapping[str, tuple[Sign, Entry]] = {}

    def read(self, uid: str) -> Entry | None:
        """What is known of the claim; raises JournalError for a file that cannot be read or understood.

        Nothing is known from another boot.
        """
        try:
            with open(self._file(uid), "rb") as file:
                entry = msgspec.json.decode(file.read(), type=Entry)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise JournalError(f"the journal of claim {uid}, {self._file(uid)}, cannot be read: {error}") from error
        if entry.uid != uid:
            raise JournalError(f"the journal of claim {uid}, {self._file(uid)}, is one of claim {entry.uid}")
        return None if self.boot and entry.boot and entry.boot != self.boot else entry

    def whole(self, besides: str = "") -> Mapping[str, Entry]:
        """The same as `entries`, for decisions; raises JournalError when one but `besides` is not known."""
        found, problems = self._look()
        unreadable = [problem for uid, problem in problems.items() if uid != besides]
        if unreadable:
            raise JournalError(
                f"what other claims have is not known, so nothing is decided: {'; '.join(unreadable)}. Each is"
                " forgotten when its claim's pods have ended; the admin can remove the file of a claim that is no more"
            )
        return found

    def entries(self) -> Mapping[str, Entry]:
        """All claims by uid, and what is ownerless. What cannot be understood is left out: good for telling only."""
        return self._look()[0]

    def staying(self, besides: str) -> tuple[Entry, ...]:
        """The other claims that are not being undone: what they share with this one must stay. Raises JournalError."""
        return tuple(
            entry
            for uid, entry in self.whole(besides).items()
            if uid != besides and uid not in self._leaving and not entry.ownerless
        )

    @contextmanager
    def leaving(self, uid: str) -> Generator[None]:
        """The claim is being undone. Of two that leave at once, neither keeps for the other what both had."""
        self._leaving.add(uid)
        try:
            yield
        finally:
            self._leaving.discard(uid)

    def unreadable(self) -> Mapping[str, str]:
        """Why, by the claim's uid: what it held is not known, so nothing can be called ownerless meanwhile."""
        return self._look()[1]

    def began(self) -> Began | None:
        """When this journal began; None when it did not yet, in this boot. Raises JournalError."""
        path = os.path.join(self._path, BEGAN)
        try:
            with open(path, "rb") as file:
                began = msgspec.json.decode(file.read(), type=Began)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        except OSError as error:
            raise JournalError(f"the journal's beginning, {path}, cannot be read: {error}") from error
        return began if began.boot == self.boot else None

    def begin(self, found: Iterable[tuple[str, Placement]]) -> None:
        """From now on the journal is whole; `found` was there before. Forgets other boots. Raises JournalError."""
        for name in self._names():
            if name.endswith(SUFFIX) and self._is_of_another_boot(name):
                self.remove(name.removesuffix(SUFFIX))
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._put(BEGAN, msgspec.json.encode(Began(boot=self.boot, found=tuple(found), at=at)))

    def recover(self, uid: str) -> Entry | None:
        """What is known of the claim; nothing, if its file cannot be read, which is set aside. Raises JournalError."""
        try:
            return self.read(uid)
        except JournalError:
            self.set_aside(uid)
            return None

    def set_aside(self, uid: str) -> None:
        """Keep an unreadable file where it is in nobody's way; it goes when the claim does. Raises JournalError."""
        try:
            os.replace(self._file(uid), os.path.join(self._path, uid + ASIDE))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise JournalError(f"the journal {self._file(uid)} cannot be set aside: {error}") from error

    def write(self, entry: Entry) -> None:
        """Durable when it returns, and of this boot; raises JournalError."""
        self._put(entry.uid + SUFFIX, msgspec.json.encode(self.stamp(entry)))

    def stamp(self, entry: Entry) -> Entry:
        """The entry as `read` returns it when it was written now."""
        return replace(entry, boot=self.boot)

    def _put(self, name: str, content: bytes) -> None:
        target = os.path.join(self._path, name)
        draft = f"{target}.{os.getpid()}"
        try:
            os.makedirs(self._path, mode=0o700, exist_ok=True)
            with open(draft, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, target)
        except OSError as error:
            raise JournalError(f"the journal {target} cannot be written: {error}") from error

    def remove(self, uid: str) -> None:
        """Forget the claim, and the drafts that killed processes left; nothing to forget is fine."""
        for name in self._names():
            if name == uid + SUFFIX or name.startswith(f"{uid}{SUFFIX}."):
                path = os.path.join(self._path, name)
                try:
                    os.unlink(path)
                except FileNotFoundError:
                    pass
                except OSError as error:
                    raise JournalError(f"the journal {path} cannot be removed: {error}") from error

    def _look(self) -> tuple[Mapping[str, Entry], Mapping[str, str]]:
        """What is known, and why the rest is not, both by uid."""
        found: dict[str, Entry] = {}
        problems: dict[str, str] = {}
        before, known = self._known, dict[str, tuple[Sign, Entry]]()
        names = self._names()
        for name in names:
            if name.endswith(ASIDE):
                problems[name.removesuffix(ASIDE)] = f"{os.path.join(self._path, name)} was set aside"
        for name, sign in self._signs(names):
            uid = name.removesuffix(SUFFIX)
            seen = before.get(name)
            try:
                entry = seen[1] if seen is not None and seen[0] == sign else self.read(uid)
            except JournalError as error:
                problems[uid] = str(error)
                continue
            if entry is not None:
                found[uid] = entry
                if sign is not None:
                    known[name] = sign, entry
        self._known = known
        return found, problems

    def _is_of_another_boot(self, name: str) -> bool:
        try:
            return self.read(name.removesuffix(SUFFIX)) is None
        except JournalError:
            return False

    def _signs(self, names: Iterable[str]) -> Iterator[tuple[str, Sign | None]]:
        """The claims' files of these, in their order; None for one that may change without its sign doing so."""
        now = time.time()
        for name in names:
            if name.endswith(SUFFIX):
                try:
                    status = os.stat(os.path.join(self._path, name))
                except OSError:
                    yield name, None
                else:
                    sign = status.st_ino, status.st_mtime_ns, status.st_size
                    yield name, sign if is_settled(status.st_mtime_ns, now) else None

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise JournalError(f"the journal {self._path} cannot be read: {error}") from error

    def _file(self, uid: str) -> str:
        return os.path.join(self._path, uid + SUFFIX)
