"""Faults of calls, on demand: what NVML does to a process, when the scenario says so.

    faults:
    - {op: nvmlDeviceCreateGpuInstanceWithPlacement, do: drop-reply, count: 1}
    - {op: "nvmlDeviceGet*", device: 3, do: raise, code: GPU_IS_LOST, after: 10}
    - {op: nvmlDeviceGetTemperature, do: hang, seconds: 2}

How often a fault was met is kept in the state directory, so that it survives what it does.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Literal, TypeAlias

import msgspec

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.gpu_model import Natural, Strict

Effect: TypeAlias = Literal["raise", "hang", "exit", "lost", "drop-reply", "xid"]

NO_INSTANCE = 0xFFFFFFFF


class Fault(Strict, frozen=True, kw_only=True):
    """`do` this to calls of `op`, a C symbol in which `*` and `?` match anything; `device` (a minor) only for its GPU.

    It strikes `count` times (default: always) after `after` calls. `code` is the error that raise answers, `seconds`
    how long hang lasts, `xid` the XID that strikes the GPU. `exit`: the process ends. `drop-reply`: the call has its
    effect, and the process ends before it knows. `lost`: the GPU falls off the bus, and the call tells it.
    """

    op: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_*?]+$")]
    do: Effect
    device: Natural | None = None
    after: Natural = 0
    count: Annotated[int, msgspec.Meta(ge=1)] | None = None
    code: str = "UNKNOWN"
    seconds: Annotated[float, msgspec.Meta(gt=0)] = 1e6
    xid: Natural = 79

    def __post_init__(self) -> None:
        if self.code not in Code.__members__:
            raise ValueError(f"code must be one of {', '.join(Code.__members__)}, not {self.code}")

    def key(self) -> str:
        """A file name for its count: the same for equal faults."""
        return f"{zlib.crc32(msgspec.json.encode(self)):08x}"

    def strikes(self, earlier: int) -> bool:
        """Whether it strikes a call that `earlier` calls came before, which it could have struck as well."""
        return earlier >= self.after and (self.count is None or earlier < self.after + self.count)


class FaultPlan:
    """The faults of a scenario, with their counts in the directory at `path`."""

    def __init__(self, faults: Sequence[Fault], path: str) -> None:
        self._faults = tuple(faults)
        self._path = path

    def find(self, symbol: str) -> tuple[Fault, ...]:
        """The faults that calls of this C symbol may meet."""
        return tuple(fault for fault in self._faults if fnmatchcase(symbol, fault.op))

    def draw(self, symbol: str, minor: int | None) -> list[Fault]:
        """The faults that strike this call, of the GPU with this minor number or of none; it is counted."""
        return [
            fault
            for fault in self.find(symbol)
            if fault.device in (None, minor) and fault.strikes(self._count(fault.key()))
        ]

    def _count(self, key: str) -> int:
        os.makedirs(self._path, exist_ok=True)
        descriptor = os.open(os.path.join(self._path, key), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            earlier = int(os.read(descriptor, 32) or b"0")
            os.pwrite(descriptor, b"%d" % (earlier + 1), 0)
        finally:
            os.close(descriptor)
        return earlier


def act(fault: Fault) -> None:
    """Do to this process what the fault says. What it does to the answer or the GPU is the library's to do."""
    if fault.do == "hang":
        time.sleep(fault.seconds)
    elif fault.do in ("exit", "drop-reply"):
        os._exit(3)
