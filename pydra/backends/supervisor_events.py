"""Events and statistics that the backend supervisor reports."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import msgspec

from pydra.backends.crash_diagnosis import CallInFlight, Diagnosis
from pydra.backends.wire import BackendDescription, Method
from pydra.claim import Claim


class BackendFacts(BackendDescription, frozen=True, kw_only=True):
    """A backend that can be called, and where it is from."""

    name: str
    distribution: str
    version: str

    @property
    def has_steps(self) -> bool:
        """Whether its plans consist of steps."""
        return Method.APPLY in self.methods

    @property
    def reads_held(self) -> bool:
        """Whether it is kept up to date about the claims that the node holds."""
        return Method.PLAN in self.methods or Method.RESTORE in self.methods

    def find_changes(self, new: BackendFacts) -> tuple[str, ...]:
        """Return in which of the things that a driver is set up for once an upgraded backend differs."""
        things = (
            ("DRIVER", self.driver, new.driver),
            ("SURVIVES_REBOOT", self.survives_reboot, new.survives_reboot),
            ("ONE_POD", self.one_pod, new.one_pod),
            ("DEADLINE", self.deadline, new.deadline),
            ("plan", Method.PLAN in self.methods, Method.PLAN in new.methods),
            ("STEP_TYPES", self.has_steps, new.has_steps),
        )
        return tuple(
            f"{what} was {before} and is {now} in version {new.version}, installed meanwhile; restart the agent"
            for what, before, now in things
            if before != now
        )


class BackendReady(msgspec.Struct, frozen=True, kw_only=True):
    """Its process can be called, `seconds` after it was spawned; `starts` counts from 1."""

    backend: str
    facts: BackendFacts
    pid: int
    starts: int
    seconds: float


class BackendEnded(msgspec.Struct, frozen=True, kw_only=True):
    """Its process is gone, with `calls` in flight."""

    backend: str
    diagnosis: Diagnosis
    calls: tuple[CallInFlight, ...]


class BackendRefused(msgspec.Struct, frozen=True, kw_only=True):
    """It cannot be loaded or breaks the contract, or its own settings are invalid; it is not started again."""

    backend: str
    violations: tuple[str, ...]
    details: str
    invalid_settings: bool = False


class AnswerRejected(msgspec.Struct, frozen=True, kw_only=True):
    """A result violated the contract; `method` is None for an unsolicited answer."""

    backend: str
    method: Method | None
    claim: Claim | None
    violations: tuple[str, ...]


class Trouble(Enum):
    """What does not work, though it may later. The value is the reason of its Event."""

    START = "BackendStartFailed"
    """Its process could not be started, or `connect` failed."""
    RESTORE = "BackendRestoreFailed"
    """`restore` failed; until it succeeds nothing else is called."""
    HINTS = "BackendHintsFailed"
    """`wait_changed` failed; until it works again only the periodic `discover` notices changes."""
    SLOW = "BackendSlow"
    """A call that is for no claim takes long."""
    UNKILLABLE = "BackendUnkillable"
    """A process hangs in the kernel, usually in a device driver."""


class BackendTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """What does not work now. `ended`: it has ended the process, too."""

    backend: str
    trouble: Trouble
    message: str
    details: str = ""
    ended: bool = False


def build_trouble(
    backend: str, trouble: Trouble, message: object, *, details: str = "", ended: bool = False
) -> BackendTrouble:
    """Return the event; its message does not name the backend again."""
    text = str(message).removeprefix(f"backend {backend}: ")
    return BackendTrouble(backend=backend, trouble=trouble, message=text, details=details, ended=ended)


BackendEvent: TypeAlias = BackendReady | BackendEnded | BackendRefused | BackendTrouble | AnswerRejected


class BackendState(Enum):
    """The state of a backend's process."""

    STARTING = "starting"
    READY = "ready"
    DOWN = "down"
    REFUSED = "refused"
    STOPPED = "stopped"


class BackendStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot."""

    state: BackendState
    pid: int
    starts: int
    in_flight: tuple[CallInFlight, ...]
