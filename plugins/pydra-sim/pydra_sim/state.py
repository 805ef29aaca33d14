"""The simulated machine's own memory: what outlives the process, as real hardware's state does.

    active/<device>[~<share id>].json   created and configured for a claim
    unhealthy/<device>                  its content says what ails the device
    unplugged/<device>                  the device is gone
    faults/<key>                        how many calls a fault has seen

Whatever is found here after a crash was really left behind. Marks may also be made by hand.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from pydra import DeviceInUse, PydraError


class Active(msgspec.Struct, frozen=True, kw_only=True):
    """An accelerator or partition at work for the claim of this uid; `interval` in milliseconds."""

    claim: str
    accelerator: str
    device: str
    uuid: str
    memory: str
    cores: str
    clock_mhz: int | None = None
    interval: int | None = None


def default_state_path() -> str:
    """A directory that a reboot empties, one for each user."""
    return str(Path(tempfile.gettempdir(), f"pydra-sim-{os.getuid()}"))


class StateDirectory:
    """The directory at `path`, made when first needed; closed to other users."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def prepare_directories(self) -> None:
        """Make them; raises PydraError when the directory belongs to somebody else."""
        for folder in ("active", "unhealthy", "unplugged", "faults"):
            (self.path / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        if (owner := self.path.lstat().st_uid) != os.getuid():
            raise PydraError(
                f"state directory {self.path} belongs to uid {owner}; set PYDRA_SIM_STATE to one of your own"
            )

    def activate(self, key: str, wanted: Active) -> tuple[Active, bool]:
        """Create `wanted`; or return what exists for the same claim, and False. Raises DeviceInUse."""
        target = self.info_file(key)
        draft = f"{target}.{os.getpid()}"
        _write(draft, msgspec.json.encode(wanted))
        try:
            # A link either makes the whole file or finds one; no reader sees half of it.
            os.link(draft, target)
        except FileExistsError:
            found = _decode(target)
            if found.claim != wanted.claim:
                raise DeviceInUse(wanted.device, f"uid {found.claim}") from None
            return found, False
        finally:
            os.unlink(draft)
        return wanted, True

    def release(self, key: str, claim: str) -> None:
        """Destroy what the claim has at `key`, if anything."""
        file = self.info_file(key)
        with suppress(FileNotFoundError):
            if _decode(file).claim == claim:
                os.unlink(file)

    def active(self) -> tuple[Active, ...]:
        """Everything at work."""
        folder = f"{self.path}/active"
        return tuple(_decode(f"{folder}/{name}") for name in sorted(os.listdir(folder)) if name.endswith(".json"))

    def info_file(self, key: str) -> str:
        """Where the description of an active device is, for its containers."""
        return f"{self.path}/active/{key}.json"

    def mark(self, mark: str, device: str, message: str) -> None:
        """Make a device `unhealthy` or `unplugged` from now on."""
        (self.path / mark / device).write_text(message)

    def marks(self, mark: str) -> Mapping[str, str]:
        """The devices marked so, and the message of each."""
        return {file.name: file.read_text().strip() for file in sorted((self.path / mark).iterdir())}

    def count(self, fault: str) -> int:
        """How many calls this fault saw before; this one is counted."""
        file = self.path / "faults" / fault
        earlier = int(file.read_text() or 0) if file.exists() else 0
        file.write_text(str(earlier + 1))
        return earlier

    def signature(self) -> tuple[int, ...]:
        """What differs when a mark was made, changed in place excepted."""
        return tuple((self.path / mark).stat().st_mtime_ns for mark in ("unhealthy", "unplugged"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with the hardware, also among processes."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _write(path: str, content: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(content)


def _decode(path: str) -> Active:
    with open(path, "rb", buffering=0) as file:
        return msgspec.json.decode(file.read(), type=Active)
