"""Serialises a backend's exceptions so that the agent can raise them again.

Nothing is pickled: an error arrives as one of pydra's own exceptions, with the backend's message and, for the log, its
traceback. Vendor exceptions need not exist in the agent.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from enum import Enum
from types import TracebackType

import msgspec

from pydra.backends.struct_constructor_errors import explain_constructor
from pydra.errors import (
    BackendError,
    ClaimError,
    ContractError,
    DeviceInUse,
    EditConflict,
    InvalidConfig,
    LeftBehind,
    NotAllocated,
    PydraError,
    Replaced,
    TerminalError,
    UndoLater,
    UnknownDevice,
    of_call,
)
from pydra.message_text import cut, encodable

INTERNAL_PATHS = (f"{os.path.dirname(__file__)}{os.sep}", importlib.__file__, contextlib.__file__, "<frozen importlib")
"""Files whose frames are left out of tracebacks: they load and call the backend."""

MAX_MESSAGE = 4096
MAX_TRACEBACK = 64 * 1024
MAX_PROBLEMS = 100
MAX_REASON = 64
MAX_REASONS = 100
_REASON = re.compile(rf"[A-Z][A-Za-z0-9]{{0,{MAX_REASON - 1}}}")


class FaultKind(Enum):
    """The exception class of `pydra.errors`; `CANCELLED` answers a cancelled call."""

    CLAIM = "claim"
    TERMINAL = "terminal"
    INVALID_CONFIG = "invalid_config"
    UNKNOWN_DEVICE = "unknown_device"
    DEVICE_IN_USE = "device_in_use"
    EDIT_CONFLICT = "edit_conflict"
    NOT_ALLOCATED = "not_allocated"
    REPLACED = "replaced"
    LEFT_BEHIND = "left_behind"
    UNDO_LATER = "undo_later"
    CONTRACT = "contract"
    INVALID_SETTINGS = "invalid_settings"
    BACKEND = "backend"
    CANCELLED = "cancelled"


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One error: `problems` for the kinds that list them, `device` and `holder` for a device in use.

    `reason` is the backend's own reason, empty if it has none. `reached` is false if the call failed before the
    backend's code ran.
    """

    kind: FaultKind
    message: str = ""
    reason: str = ""
    problems: tuple[str, ...] = ()
    device: str = ""
    holder: str = ""
    traceback: str = ""
    reached: bool = True


_OF_MESSAGE: Mapping[FaultKind, type[ClaimError]] = {
    FaultKind.TERMINAL: TerminalError,
    FaultKind.UNKNOWN_DEVICE: UnknownDevice,
    FaultKind.EDIT_CONFLICT: EditConflict,
    FaultKind.NOT_ALLOCATED: NotAllocated,
    FaultKind.REPLACED: Replaced,
    FaultKind.LEFT_BEHIND: LeftBehind,
    FaultKind.UNDO_LATER: UndoLater,
}
"""The classes that are made of a message only, of which none is derived from another."""


def build_fault(error: BaseException) -> Fault:
    """Encode the error, with bounded size whatever the backend put into it.

    An exception group of a backend's task group counts as what its tasks raised: the only one, or all claim errors.
    """
    leaves = tuple(_leaves(error))
    error = leaves[0] if len(leaves) == 1 else error
    lines = traceback.format_exception(type(error), error, _strip_internal_frames(error))
    trace = _clip("".join(lines), MAX_TRACEBACK, keep_end=True)
    reason = _custom_reason(type(error), error)
    match error:
        case ContractError(violations=violations):
            return Fault(kind=FaultKind.CONTRACT, problems=_clip_all(violations), traceback=trace)
        case ClaimError():
            return msgspec.structs.replace(_build_claim_fault(error), reason=reason, traceback=trace)
        case PydraError():  # expected, and its message is enough: the traceback adds nothing
            return Fault(kind=FaultKind.BACKEND, message=_clip(_text(error), MAX_MESSAGE), reason=reason)
        case _ if all(isinstance(one, ClaimError) for one in leaves):
            kind = FaultKind.CLAIM if all(getattr(one, "retryable", True) for one in leaves) else FaultKind.TERMINAL
            return Fault(kind=kind, message=_clip("; ".join(map(_text, leaves)), MAX_MESSAGE), traceback=trace)
        case _:
            message = "; ".join(map(_describe, leaves))
            return Fault(kind=FaultKind.BACKEND, message=_clip(message, MAX_MESSAGE), traceback=trace)


def _describe(error: BaseException) -> str:
    return explain_constructor(error) or f"{type(error).__name__}: {_text(error)}".removesuffix(": ")


def _build_claim_fault(error: ClaimError) -> Fault:
    match error:
        case DeviceInUse(device=str(device), holder=str(holder)):
            return Fault(kind=FaultKind.DEVICE_IN_USE, device=device, holder=holder)
        case InvalidConfig(problems=problems):
            return Fault(kind=FaultKind.INVALID_CONFIG, problems=_clip_all(problems))
        case _:
            other = FaultKind.CLAIM if error.retryable else FaultKind.TERMINAL
            kind = next((kind for kind, error_type in _OF_MESSAGE.items() if isinstance(error, error_type)), other)
            return Fault(kind=kind, message=_clip(_text(error), MAX_MESSAGE))


def parse_fault(fault: Fault, backend: str, doing: str, *, repeated: bool = False) -> PydraError:
    """Decode the error that the agent raises; `doing` says what failed, such as `prepare`.

    Its texts are cut again: the process that sent them may not have done so.
    """
    reason = fault.reason if is_reason(fault.reason) else ""
    error = _parse_error(limit_fault(fault), backend, doing)
    return of_call(error, reason=reason, reached_backend=fault.reached, repeated=repeated)


def limit_fault(fault: Fault) -> Fault:
    """Cut the texts of a fault that a process sent."""
    return msgspec.structs.replace(
        fault,
        message=cut(fault.message, MAX_MESSAGE),
        problems=tuple(cut(problem, MAX_MESSAGE) for problem in fault.problems[:MAX_PROBLEMS]),
        device=cut(fault.device, MAX_MESSAGE),
        holder=cut(fault.holder, MAX_MESSAGE),
        traceback=cut(fault.traceback, MAX_TRACEBACK),
    )


def _parse_error(fault: Fault, backend: str, doing: str) -> PydraError:
    match fault.kind:
        case FaultKind.DEVICE_IN_USE:
            return DeviceInUse(fault.device, fault.holder)
        case FaultKind.INVALID_CONFIG:
            return InvalidConfig(fault.problems)
        case FaultKind.CONTRACT:
            return ContractError(backend, fault.problems)
        case FaultKind.BACKEND | FaultKind.CANCELLED:
            return BackendError(backend, f"{doing} failed: {fault.message}", details=fault.traceback)
        case kind:
            return _OF_MESSAGE.get(kind, ClaimError)(fault.message)


def is_reason(word: str) -> bool:
    """Return whether the word can be an Event's reason and a metric's label: CamelCase of at most 64 characters."""
    return _REASON.fullmatch(word) is not None


def find_custom_reasons() -> Mapping[str, str]:
    """Find the error classes in this process that have a reason of their own: reason by name of the class."""
    found = {one.__name__: reason for one in _subclasses(PydraError) if (reason := _custom_reason(one, one))}
    return dict(sorted(found.items())[:MAX_REASONS])


def _subclasses(error_type: type[PydraError]) -> Iterator[type[PydraError]]:
    for one in error_type.__subclasses__():
        yield one
        yield from _subclasses(one)


def _custom_reason(error_type: type[BaseException], holder: object) -> str:
    """Return the `reason` of an error or its class if it differs from the one of pydra's base class."""
    pydras = next((one for one in error_type.__mro__ if one.__module__ == PydraError.__module__), None)
    own = inspect.getattr_static(holder, "reason", "") if pydras is not None else ""
    return _clip(own, MAX_REASON) if isinstance(own, str) and own != getattr(pydras, "reason", "") else ""


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in an exception group, or the error itself."""
    for one in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _leaves(one)
    if not isinstance(error, BaseExceptionGroup):
        yield error


def _strip_internal_frames(error: BaseException) -> TracebackType | None:
    """Return the traceback from the backend's own first frame on, without the frames that called it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(INTERNAL_PATHS):
        frame = frame.tb_next
    return frame if frame is not None or isinstance(error, SyntaxError) else error.__traceback__


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - a vendor's __str__ may do anything; part of the call boundary
        return f"(its message cannot be read: {type(broken).__name__})"


def _clip_all(problems: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_clip(str(problem), MAX_MESSAGE) for problem in problems[:MAX_PROBLEMS])


def _clip(text: str, limit: int, *, keep_end: bool = False) -> str:
    """Cut the text to `limit` characters, and make it encodable as UTF-8."""
    text = encodable(text)
    return f"...{text[3 - limit :]}" if keep_end and len(text) > limit else cut(text, limit)
