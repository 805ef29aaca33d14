"""Maps HTTP statuses and connection failures to `KubeError` subclasses."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import msgspec

from pydra.errors import Conflict, Gone, Invalid, KubeError, NotFound, Unavailable, Unreadable
from pydra.kube.api_resources import JsonObject, Resource
from pydra.kube.lean_imports import aiohttp
from pydra.kube.tolerant_decoding import LineTooLong, NotJson, TooLarge, Undecodable, decode_document

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
_OF_ADMISSION = ("admission webhook", "being terminated", "exceeded quota")
"""In the message of a 403 that no RBAC rule is the reason for."""
NO_SUCH_API = "404 page not found"
"""What API servers up to 1.37 answer, as any server in Go, where no resource is served: a CRD was deleted, say."""
MESSAGE_LIMIT = 2000
LINE_LIMIT = 200
RETRY_AFTER_LIMIT = 30.0
"""Seconds. A gateway that asks for hours must not keep an agent from noticing that the API server is back."""

_WORDS = {"get": "read", "update": "replace"}
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the API's Status that errors use; `non_kubernetes_body` is the first line of any other body.

    `name` is that of the object that the answer is about.
    """

    message: str = ""
    reason: str = ""
    code: int = 0
    name: str = ""
    non_kubernetes_body: str = ""


def error_class(status: int) -> type[KubeError]:
    """Return the class for an HTTP status; 0 means no answer."""
    if status >= 500 or status == 0:
        return Unavailable
    return ERROR_BY_STATUS.get(status, KubeError)


def parse_status(body: bytes) -> Status:
    """Read the Status in the body of a refusal, whatever that body is."""
    try:
        return read_status(decode_document(body))
    except (NotJson, Undecodable):
        return Status(non_kubernetes_body=first_line(body))


def read_status(document: JsonObject) -> Status:
    """Read the Status in a decoded document; fields of a wrong type count as absent."""
    message, reason, code = (document.get(key) for key in ("message", "reason", "code"))
    details = document.get("details")
    name = details.get("name") if isinstance(details, dict) else None
    return Status(
        message=message if isinstance(message, str) else "",
        reason=reason if isinstance(reason, str) else "",
        code=code if isinstance(code, int) else 0,
        name=name if isinstance(name, str) else "",
    )


def first_line(body: bytes) -> str:
    """Return the shortened first line of a body that is not from the API server."""
    lines = body[:MESSAGE_LIMIT].decode(errors="replace").strip().splitlines()
    return lines[0][:LINE_LIMIT] if lines else ""


def describe(verb: str, resource: Resource | None, path: str) -> str:
    """Describe a request: `read ResourceClaim ns/name`, `list resourceslices.resource.k8s.io`, `read /version`."""
    word = _WORDS.get(verb, verb)
    if resource is None:
        return f"{word} {path}"
    parts = path.partition("?")[0].partition(f"/{resource.version}/")[2].split("/")
    namespace = unquote(parts[1]) if parts[0] == "namespaces" and len(parts) > 2 else ""
    name = "/".join(parts[3:] if namespace else parts[1:])
    if not name:
        return f"{word} {resource}" + (f" in namespace {namespace}" if namespace else "")
    return f"{word} {resource.kind} {f'{namespace}/' if namespace else ''}{unquote(name)}"


def build_error(doing: str, status: int, answer: Status, *, retry_after: str = "") -> KubeError:
    """Build the error for an answer other than success; `doing` describes the request."""
    phrase = answer.reason or _PHRASES.get(status, "")
    text = f"cannot {doing}: the API server answered {status} {phrase}".rstrip()
    if answer.message:
        text += f": {answer.message[:MESSAGE_LIMIT]}"
    if status == 404 and answer.non_kubernetes_body == NO_SUCH_API:
        text += f": it serves no such API, or a proxy has answered: {NO_SUCH_API}"
    elif answer.non_kubernetes_body:
        text += f", and the body is not from the Kubernetes API (is there a proxy?): {answer.non_kubernetes_body}"
    if status in ADVICE_BY_STATUS and not any(words in answer.message for words in _OF_ADMISSION):
        text += f" ({ADVICE_BY_STATUS[status]})"
    kind = error_class(status)
    if issubclass(kind, Unavailable):
        seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
        return kind(text, status=status, cause=answer.reason, retry_after=min(seconds, RETRY_AFTER_LIMIT))
    if kind is NotFound:
        return NotFound(
            text, status=status, cause=answer.reason, is_of_object=answer.reason == "NotFound" and bool(answer.name)
        )
    return kind(text, status=status, cause=answer.reason)


def build_unanswered(doing: str, server: str, error: BaseException, *, seconds: float, trust: str) -> KubeError:
    """Build the error for a request without a usable answer: refused, reset, timed out, TLS failed, undecodable.

    `seconds` is its deadline; `trust` names the certificate files that were used, for a TLS error.
    """
    if isinstance(error, Undecodable):
        return Unreadable(f"cannot {doing}: {error}", cause="Unreadable")
    cause = type(error).__name__
    if isinstance(error, NotJson | TooLarge | LineTooLong):
        text = f"the answer of {server} is not from the Kubernetes API (is there a proxy?): {error}"
        if not isinstance(error, NotJson):
            text = f"the answer of {server} is too large: {error}"
    elif (tls := find_tls_error(error)) is not None:
        text = f"TLS with {server} failed: {tls} ({trust})"
        cause = "TLS"
    elif isinstance(error, TimeoutError) and not error.errno:  # with an errno, TCP gave the connection up
        text = f"timed out after {seconds:g} s waiting for {server}"
        cause = "Timeout"
    elif isinstance(error, aiohttp.ClientHttpProxyError):
        proxy = error.request_info.real_url.with_user(None)  # without the password
        text = f"the proxy {proxy} answered {error.status} {error.message} when asked for {server}"
        cause = "Proxy"
    elif isinstance(error, aiohttp.ClientProxyConnectionError):
        text = f"no answer from the proxy {error.host}:{error.port}: {_explain(error)}"
        cause = "Proxy"
    else:
        text = f"no answer from {server}: {_explain(error)}"
        if isinstance(error, aiohttp.ServerDisconnectedError) and "client certificate" in trust:
            text += f"; it may refuse the client certificate ({trust})"
    return Unavailable(f"cannot {doing}: {text}", cause=cause)


def find_tls_error(error: BaseException) -> str | None:
    """Return the TLS error, if that is the cause: one of the two sides refuses a certificate."""
    causes = list(_causes(error))
    for one in causes:
        if message := getattr(one, "verify_message", ""):
            return f"certificate verify failed: {message}"
    for one in causes:
        if isinstance(one, ssl.SSLError) and (reason := getattr(one, "reason", None)):
            return str(reason).replace("_", " ").lower()
        if isinstance(one, OSError) and "[SSL: " in str(one):  # aiohttp keeps the text and not the type
            return str(one).partition("[SSL: ")[2].partition("]")[0].replace("_", " ").lower()
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(5):
        if error is None:
            return
        yield error
        error = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error.__cause__


def _explain(error: BaseException) -> str:
    inner: Any = getattr(error, "os_error", error)
    if isinstance(inner, OSError) and inner.errno:
        return os.strerror(inner.errno) if inner.errno > 0 else str(inner.strerror)
    return str(inner) or type(inner).__name__
