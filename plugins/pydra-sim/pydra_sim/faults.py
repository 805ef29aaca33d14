"""Faults on demand: what native code does to a process, when the scenario says so.

    faults:
    - {call: prepare, claim: greedy, do: segfault, count: 2}
    - {call: discover, do: slow, seconds: 3}

A fault strikes the calls it matches `count` times (default: always), after letting `after` calls
pass. How often it struck is kept in the state directory, so that it survives what it does.
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import Collection
from typing import Annotated, Literal, NoReturn

import msgspec

from pydra import ClaimError, TerminalError

Call = Literal["discover", "prepare", "unprepare", "wait_changed", "measure"]
Effect = Literal[
    "raise",
    "refuse",
    "refuse-forever",
    "slow",
    "hang",
    "gil-hang",
    "segfault",
    "abort",
    "exit",
    "garbage",
    "stdout-noise",
    "unhealthy",
    "unplug",
]
GARBAGE = "\u0007 this is not an answer"


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`do` this to the matching calls: `claim` is a claim's name, `device` one that it has; empty matches all.

    `at` says whether it strikes before the call has done its work or after, with the answer lost.
    `seconds` is how long slow, hang and gil-hang last. `message` is what the errors say.
    """

    do: Effect
    call: Call = "prepare"
    claim: str = ""
    device: str = ""
    at: Literal["start", "end"] = "start"
    count: Annotated[int, msgspec.Meta(ge=1)] | None = None
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    seconds: Annotated[float, msgspec.Meta(gt=0)] = 1e6
    message: str = "a simulated fault"

    def matches(self, call: Call, claim: str, devices: Collection[str]) -> bool:
        """Whether this fault is meant for such a call."""
        return self.call == call and self.claim in ("", claim) and (not self.device or self.device in devices)

    def strikes(self, earlier: int) -> bool:
        """Whether it strikes a matching call that `earlier` matching calls came before."""
        return earlier >= self.after and (self.count is None or earlier < self.after + self.count)

    def key(self) -> str:
        """A file name for its count: the same for equal faults."""
        return f"{zlib.crc32(msgspec.json.encode(self)):08x}"


async def act(fault: Fault) -> None:
    """Do to this process what the fault says. Effects on the answer or on devices are the machine's to apply."""
    match fault.do:
        case "raise":
            raise RuntimeError(fault.message)
        case "refuse":
            raise ClaimError(fault.message)
        case "refuse-forever":
            raise TerminalError(fault.message)
        case "slow":
            await asyncio.sleep(fault.seconds)
        case "hang":
            _hang(fault.seconds)
        case "gil-hang":
            _hang_holding_the_gil(fault.seconds)
        case "segfault":
            _segfault()
        case "abort":
            os.abort()
        case "exit":
            os._exit(3)
        case "stdout-noise":
            os.write(1, b"libsim: WARNING: hello from native code\n")
        case "garbage" | "unhealthy" | "unplug":
            pass


def _hang(seconds: float) -> None:
    """Block the thread, and with it the event loop, as a driver call that waits for the hardware does."""
    time.sleep(seconds)


def _hang_holding_the_gil(seconds: float) -> None:
    """Block every thread: native code that forgot to release the interpreter's lock."""
    import ctypes  # noqa: PLC0415 - only a fault needs it

    ctypes.PyDLL(None).sleep(int(max(1, seconds)))


def _segfault() -> NoReturn:
    import ctypes  # noqa: PLC0415 - only a fault needs it

    ctypes.string_at(0)
    raise AssertionError("reading address 0 is a segmentation fault")
