"""From what went wrong with a request to one error of pydra's tree: one table, one place. Pure."""

from __future__ import annotations

import msgspec

from pydra.errors import Conflict, Gone, Invalid, KubeError, NotFound, Unavailable

ERROR_BY_STATUS: dict[int, type[KubeError]] = {
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    408: Unavailable,
    429: Unavailable,
}
"""Every status from 500 on is Unavailable too; any other is a plain KubeError."""

ADVICE_BY_STATUS: dict[int, str] = {
    401: "the credentials are not accepted; check the kubeconfig or the pod's ServiceAccount",
    403: "check the RBAC rules of this ServiceAccount",
}
MESSAGE_LIMIT = 2000


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the API's Status object that errors are made of."""

    message: str = ""
    reason: str = ""
    code: int = 0


def error_class(status: int) -> type[KubeError]:
    """The class for an HTTP status; 0 stands for no answer."""
    if status >= 500 or status == 0:
        return Unavailable
    return ERROR_BY_STATUS.get(status, KubeError)


def parse_status(payload: bytes) -> Status:
    """The Status in an answer's body; for a body that is none (a proxy's HTML page), its first line as the message."""
    try:
        return msgspec.json.decode(payload, type=Status)
    except msgspec.DecodeError:
        lines = payload[:MESSAGE_LIMIT].decode(errors="replace").strip().splitlines()
        return Status(message=lines[0] if lines else "")


def build_error(doing: str, status: int, answer: Status, *, retry_after: str = "") -> KubeError:
    """The error for an answer that is no success; `doing` says the request in words."""
    text = f"{doing}: {status} {answer.reason}".rstrip()
    if answer.message:
        text += f": {answer.message[:MESSAGE_LIMIT]}"
    if status in ADVICE_BY_STATUS:
        text += f" ({ADVICE_BY_STATUS[status]})"
    kind = error_class(status)
    if issubclass(kind, Unavailable):
        seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
        return kind(text, status=status, cause=answer.reason, retry_after=seconds)
    return kind(text, status=status, cause=answer.reason)


def build_unanswered(doing: str, server: str, error: BaseException) -> Unavailable:
    """The error for a request that got no answer: refused, reset, timed out, or not understood."""
    said = str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        said = f"no answer in time ({said})"
    return Unavailable(f"{doing}: {server} does not answer: {said}", cause=type(error).__name__)
