"""What has been done, or begun, for which claim: one file a claim, written before the hardware is touched.

It lies on a file system that a reboot empties, as the hardware forgets then too. Two processes may use it at once
(overlapping upgrades); the agent lets only one of them prepare at a time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from pydra import ClaimError
from pydra_nvidia.steps import Entry


class JournalError(ClaimError):
    """The journal cannot be read or written; nothing is done to the hardware without it."""

    reason = "JournalFailed"


class Journal:
    """The directory at `path`, made when first needed."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, uid: str) -> Entry | None:
        """What is known of the claim; raises JournalError for a file that cannot be read or understood."""
        try:
            with open(self._file(uid), "rb") as file:
                return msgspec.json.decode(file.read(), type=Entry)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise JournalError(f"the journal of claim {uid}, {self._file(uid)}, cannot be read: {error}") from error

    def entries(self) -> Mapping[str, Entry]:
        """All claims by uid. What cannot be understood is left out: it belongs to one claim, whose calls say so."""
        found: dict[str, Entry] = {}
        try:
            names = sorted(os.listdir(self._path))
        except FileNotFoundError:
            return found
        except OSError as error:
            raise JournalError(f"the journal {self._path} cannot be read: {error}") from error
        for name in names:
            if name.endswith(".json"):
                try:
                    entry = self.read(name.removesuffix(".json"))
                except JournalError:
                    continue
                if entry is not None:
                    found[entry.uid] = entry
        return found

    def write(self, entry: Entry) -> None:
        """Durable when it returns; raises JournalError."""
        target = self._file(entry.uid)
        draft = f"{target}.{os.getpid()}"
        try:
            os.makedirs(self._path, mode=0o700, exist_ok=True)
            with open(draft, "wb") as file:
                file.write(msgspec.json.encode(entry))
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, target)
        except OSError as error:
            raise JournalError(f"the journal {target} cannot be written: {error}") from error

    def remove(self, uid: str) -> None:
        """Forget the claim; nothing to forget is fine."""
        try:
            os.unlink(self._file(uid))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise JournalError(f"the journal {self._file(uid)} cannot be removed: {error}") from error

    def _file(self, uid: str) -> str:
        return os.path.join(self._path, f"{uid}.json")
