"""Files that are replaced at once: who reads one never sees half of it, and those that remember something as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write all of it or nothing, also in a directory that containers write to. Raises OSError."""
    draft = f"{path}.{os.getpid()}"
    try:
        with suppress(FileNotFoundError):
            os.unlink(draft)
        with open(draft, "xb") as file:  # a link, as a container may have put there, is refused
            file.write(data)
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)
        raise


def overwrite_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write into the file itself, which may be mounted elsewhere; on a full disk it stays as it is. Raises OSError."""
    with open(path, "r+b", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            os.posix_fallocate(file.fileno(), 0, len(data))
        except OSError:
            file.truncate(size)
            raise
        file.write(data)
        file.truncate(len(data))


class StateFile(Generic[T]):
    """Keeps `what` in the file at `path`, as JSON of a type. `say` gets a message when it cannot be read or written."""

    def __init__(self, path: str, kind: type[T], what: str, say: Callable[[str], object]) -> None:
        self.path = path
        self._kind = kind
        self._what = what
        self._say = say

    def read(self) -> T | None:
        """What is in it; None if there is no file, or it cannot be read."""
        try:
            with open(self.path, "rb") as file:
                return msgspec.json.decode(file.read(), type=self._kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            self._say(f"{self._what} cannot be read from {self.path}: {error}")
            return None

    def write(self, value: T) -> bool:
        """Replace it, or say why it cannot be; whether it is written."""
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            replace_file(self.path, msgspec.json.encode(value))
        except OSError as error:
            self._say(f"{self._what} cannot be remembered in {self.path}: {error}")
            return False
        return True
