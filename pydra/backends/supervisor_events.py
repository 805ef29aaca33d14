"""Events and statistics that the backend supervisor reports."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

import msgspec

from pydra.backends.crash_attribution import CallInFlight, Diagnosis
from pydra.backends.wire import Method, SettingValue
from pydra.claim import Claim


class BackendFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A backend that can be called. `driver` is its default driver name, empty when the settings must give one.

    `reasons` are those of its errors that have one of their own, by the name of the class, whether they can be used
    or not. `misspelt` are its names that resemble one of the contract that it lacks, with that one.
    `survives_reboot`: the hardware keeps what `prepare` did to it across a reboot of the node. `one_pod`: a claim is
    for one pod, which the backend is given. `deadline` is how many seconds a call for a claim may take, where the
    agent's settings give less. `settings` are its own, where it has a SETTINGS_TYPE.
    """

    name: str
    distribution: str
    version: str
    driver: str
    methods: tuple[Method, ...]
    config_kinds: tuple[str, ...]
    reasons: Mapping[str, str]
    misspelt: Mapping[str, str] = {}
    survives_reboot: bool = False
    one_pod: bool = False
    deadline: float = 0.0
    settings: tuple[SettingValue, ...] = ()

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
    """Its process is gone, with `calls` in flight; the next starts in `restart_in` seconds."""

    backend: str
    diagnosis: Diagnosis
    calls: tuple[CallInFlight, ...]
    restart_in: float


class BackendStartFailed(msgspec.Struct, frozen=True, kw_only=True):
    """Its process could not be started, or `connect` failed; the next attempt is in `restart_in` seconds."""

    backend: str
    message: str
    details: str
    restart_in: float


class BackendRefused(msgspec.Struct, frozen=True, kw_only=True):
    """It cannot be loaded or breaks the contract, or its own settings are invalid; it is not started again."""

    backend: str
    violations: tuple[str, ...]
    details: str
    invalid_settings: bool = False


class BackendUnkillable(msgspec.Struct, frozen=True, kw_only=True):
    """A process that cannot be killed: it hangs in the kernel, usually in a device driver."""

    backend: str
    pid: int


class BackendSlow(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is for no claim takes long; `message` names it, and where it waits."""

    backend: str
    message: str


class AnswerRejected(msgspec.Struct, frozen=True, kw_only=True):
    """A result violated the contract; `method` is None for an unsolicited answer."""

    backend: str
    method: Method | None
    claim: Claim | None
    violations: tuple[str, ...]


class HintsFailed(msgspec.Struct, frozen=True, kw_only=True):
    """`wait_changed` failed; until it works again only the periodic `discover` notices changes.

    `ended`: it ended the process, too.
    """

    backend: str
    message: str
    details: str
    ended: bool = False


class RestoreFailed(msgspec.Struct, frozen=True, kw_only=True):
    """`restore` failed; until it succeeds nothing else is called. The next attempt is in `retry_in` seconds."""

    backend: str
    message: str
    details: str
    retry_in: float


BackendEvent: TypeAlias = (
    BackendReady
    | BackendEnded
    | BackendStartFailed
    | BackendRefused
    | BackendUnkillable
    | BackendSlow
    | AnswerRejected
    | HintsFailed
    | RestoreFailed
)


class BackendState(Enum):
    """The state of a backend's process."""

    STARTING = "starting"
    READY = "ready"
    DOWN = "down"
    REFUSED = "refused"
    STOPPED = "stopped"


class BackendStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. `endings` counts the ended processes by signal, `exit <status>` or cause."""

    state: BackendState
    pid: int
    starts: int
    endings: Mapping[str, int]
    in_flight: tuple[CallInFlight, ...]
