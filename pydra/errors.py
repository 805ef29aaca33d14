"""Exception hierarchy of pydra; the branch says who is at fault.

PydraError
├── SettingsError            the admin's settings: all problems at once
├── BackendError             the hardware code
│   ├── ContractError        it violated the contract: all violations at once
│   ├── BackendDied          its process ended during the call
│   ├── BackendTimeout       the call timed out
│   └── BackendUnavailable   its process is not running at the moment
├── ClaimError               the claim, or what it asks for
│   ├── NotAllocated         the scheduler has not allocated it
│   ├── Replaced             another claim of the same name took its place
│   ├── ClaimShared          several pods, or none, use what only one pod can use
│   ├── DeviceInUse          another claim holds the device
│   ├── UnknownDevice        the hardware has no such device
│   ├── InvalidConfig        its opaque parameters: all problems at once
│   ├── EditConflict         two of its devices want different things of one container
│   ├── HostPathMissing      a device node or mount that it needs is not on the node
│   ├── LeftBehind           applying a step failed, and some of it may be done
│   ├── UndoLater            a step cannot be undone now
│   └── TerminalError        trying again cannot help
│       └── ClaimQuarantined it ended its backend's process too often
├── CheckpointError          the node's disk
├── CdiError                 the node's CDI directory, or a file in it
├── InternalError            pydra itself: an internal error, and the log has its traceback
└── KubeError                the API server
    ├── Conflict             409: the object was changed by another writer
    ├── NotFound             404
    ├── Gone                 410: the resource version is too old
    ├── Invalid              422: the object breaks the API's rules
    ├── Unreadable           one object cannot be decoded
    ├── Unsupported          the cluster lacks what pydra needs
    └── Unavailable          no answer, or an answer that says to try again later

`retryable` says whether a later, identical call may succeed. `reason` is the stable name
that Kubernetes Events and metrics use; a backend can give its errors reasons of their own, which
arrive at the agent on the instance: `type(error).reason` is then still pydra's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from pydra.message_text import format_seconds

E = TypeVar("E", bound="PydraError")


class PydraError(Exception):
    """The base class of all errors that pydra raises on purpose."""

    retryable: ClassVar[bool] = True
    reason: str = "Error"
    reached_backend: bool = True
    """False when a call failed before the backend's code ran, so that there is nothing to undo."""
    repeated: bool = False
    """True for a call that failed when it was repeated: the process ended during the first attempt."""


def of_call(error: E, *, reason: str = "", reached_backend: bool = True, repeated: bool = False) -> E:
    """Return the error of a call to a backend, with what is known of that call only; the one place that sets this."""
    error.reason = reason or error.reason
    error.reached_backend, error.repeated = reached_backend, repeated
    return error


class SettingsError(PydraError):
    """The agent cannot start with these settings."""

    retryable = False
    reason = "InvalidSettings"

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class BackendError(PydraError):
    """The backend failed; `details` (a traceback, a crash report) is for the log, never for the kubelet.

    `logged` says that the details are in the log already, with the end of the process.
    """

    reason = "BackendFailed"

    def __init__(self, backend: str, message: str, *, details: str = "", logged: bool = False) -> None:
        self.backend = backend
        self.message = message
        self.details = details
        self.logged = logged
        super().__init__(f"backend {backend}: {message}")


class ContractError(BackendError):
    """The backend violated its contract; `violations` lists everything that is wrong."""

    retryable = False
    reason = "BackendContract"

    def __init__(self, backend: str, violations: Sequence[str], *, details: str = "", logged: bool = False) -> None:
        self.violations = tuple(violations)
        text = "breaks the contract: " + "; ".join(self.violations)
        super().__init__(backend, text, details=details, logged=logged)


class BackendDied(BackendError):
    """The backend's process ended with the call in flight."""

    reason = "BackendDied"


class BackendTimeout(BackendError):
    """A call to the backend timed out; `deadline` is in seconds, `where` names the code that it was waiting in.

    A call whose deadline is 0 was not begun: what came before it took all the time.
    """

    reason = "BackendTimeout"

    def __init__(
        self, backend: str, call: str, deadline: float, *, where: str = "", details: str = "", logged: bool = False
    ) -> None:
        self.call = call
        self.deadline = deadline
        self.where = where
        waiting = f"; it was waiting in {where}" if where else ""
        after = f"after {format_seconds(deadline)} s" if deadline else "before it began"
        super().__init__(backend, f"{call} timed out {after}{waiting}", details=details, logged=logged)


class BackendUnavailable(BackendError):
    """The backend's process is not running at the moment; the message says why and what happens next."""

    reason = "BackendUnavailable"


class ClaimError(PydraError):
    """This claim cannot be served. Backends raise it with a message for the claim's author."""

    reason = "ClaimFailed"


class NotAllocated(ClaimError):
    """The claim has no allocation, or none for this driver."""

    reason = "ClaimNotAllocated"


class Replaced(ClaimError):
    """The claim of this name has another uid than the one the kubelet asked for."""

    reason = "ClaimReplaced"


class ClaimShared(ClaimError):
    """Several pods, or none, use a claim that only one pod can use."""

    reason = "ClaimShared"


class DeviceInUse(ClaimError):
    """The device, or something of it, is prepared for another claim.

    `why` says what it lacks, if it can be shared. `left_over` says why a claim that has ended still holds it.
    """

    reason = "DeviceInUse"

    def __init__(self, device: str, holder: str, *, why: str = "", left_over: str = "", holder_uid: str = "") -> None:
        self.device = device
        self.holder = holder
        self.left_over = left_over
        self.holder_uid = holder_uid
        free = "it is free once the pods of that claim have ended"
        if left_over:
            free = f"that claim has ended, and what was done for it cannot be undone yet: {left_over}"
        super().__init__(f"device {device} is still prepared for claim {holder}{why and f' ({why})'}; {free}")


class UnknownDevice(ClaimError):
    """The allocation names a device that the backend does not have."""

    reason = "UnknownDevice"


class InvalidConfig(ClaimError):
    """The claim's (or its class's) opaque parameters are wrong; `problems` has all of them, each with its path."""

    retryable = False
    reason = "InvalidConfig"

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class EditConflict(ClaimError):
    """Devices of one claim set the same thing of a container differently; each of `conflicts` names both owners."""

    retryable = False
    reason = "EditConflict"

    def __init__(self, *conflicts: str) -> None:
        self.conflicts = conflicts
        super().__init__("; ".join(conflicts))


class HostPathMissing(ClaimError):
    """The node lacks a device node or a mounted path; `missing` has all of them, each with its device.

    Retryable: a driver may still be loading.
    """

    reason = "HostPathMissing"

    def __init__(self, *missing: str) -> None:
        self.missing = missing
        super().__init__("; ".join(missing))


class LeftBehind(ClaimError):
    """Applying a step failed, and some of it may be done: the agent undoes it. Other ClaimErrors changed nothing."""

    reason = "LeftBehind"


class UndoLater(ClaimError):
    """A step cannot be undone now, for example because the GPU is lost: its claim ends, and the agent tries again."""

    reason = "UndoLater"


class TerminalError(ClaimError):
    """The claim cannot be served now or later, unless the claim or the hardware changes."""

    retryable = False
    reason = "ClaimFailedTerminally"


class ClaimQuarantined(TerminalError):
    """The claim ended its backend's process too often; it is refused until the claim or the backend changes."""

    reason = "ClaimQuarantined"


class CheckpointError(PydraError):
    """A checkpoint record cannot be written to disk or read from it."""

    reason = "CheckpointFailed"


class CdiError(PydraError):
    """The CDI directory cannot be written or read, or a file in it is not a CDI spec; `problems` lists all reasons."""

    reason = "CDIFailed"

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class InternalError(PydraError):
    """An internal error in pydra failed one claim; the log has the traceback."""

    reason = "InternalError"


class KubeError(PydraError):
    """The API server refused; `status` is the HTTP status, 0 when there was no answer."""

    reason = "KubernetesAPI"

    def __init__(self, message: str, *, status: int = 0, cause: str = "") -> None:
        self.status = status
        self.cause = cause
        super().__init__(message)


class Conflict(KubeError):
    """409: the object changed, or exists already; read again."""

    reason = "Conflict"


class NotFound(KubeError):
    """404: no such object, or no such API."""

    reason = "NotFound"

    def __init__(self, message: str, *, status: int = 0, cause: str = "", is_of_object: bool = False) -> None:
        self.is_of_object = is_of_object
        """Whether the API itself says that it has no such object: it names the object.

        A server that does not serve the API at all, or a proxy before it, answers 404, too, from Kubernetes 1.38 on
        with the same reason.
        """
        super().__init__(message, status=status, cause=cause)


class Gone(KubeError):
    """410: the resource version is too old to continue from; list again."""

    reason = "Gone"


class Invalid(KubeError):
    """422: the object breaks the API's validation rules."""

    retryable = False
    reason = "Invalid"


class Unreadable(KubeError):
    """The API server has the object, and its JSON cannot be decoded: nested too deep, or not a Kubernetes object."""

    reason = "Unreadable"


class Unsupported(KubeError):
    """The cluster is too old for pydra, or does not serve an API that pydra needs."""

    retryable = False
    reason = "ClusterUnsupported"


class Unavailable(KubeError):
    """No answer, a time-out, 429 or 5xx: try again later, not before `retry_after` seconds if the server said so."""

    reason = "Unavailable"

    def __init__(self, message: str, *, status: int = 0, cause: str = "", retry_after: float = 0.0) -> None:
        self.retry_after = retry_after
        super().__init__(message, status=status, cause=cause)
