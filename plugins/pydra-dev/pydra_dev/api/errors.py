"""The API server's refusals: one exception, whose body is a `Status` object as a real server writes it.

Pure, but for `attempt`, which logs them. Source of the words: apimachinery `pkg/api/errors`, apiserver
`pkg/registry/rest` (Kubernetes 1.36).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec

from pydra_dev.api.kinds import Kind

JsonObject: TypeAlias = dict[str, Any]
log = logging.getLogger(__name__)


class FieldError(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with one field.

    `reason` is the cause's machine-readable word, `label` the human one; `value` is shown as
    JSON unless the kind of error hides it (`show` false).
    """

    field: str
    reason: str
    label: str
    detail: str = ""
    value: Any = None
    show: bool = True

    @property
    def body(self) -> str:
        """The message without the field's path."""
        shown = json.dumps(self.value, ensure_ascii=False, separators=(",", ":"))
        text = f"{self.label}: {shown}" if self.show else self.label
        return f"{text}: {self.detail}" if self.detail else text

    def __str__(self) -> str:
        return f"{self.field}: {self.body}"


def required(field: str, detail: str = "") -> FieldError:
    """A field that must be set is not."""
    return FieldError(field=field, reason="FieldValueRequired", label="Required value", detail=detail, show=False)


def invalid(field: str, value: Any, detail: str) -> FieldError:
    """A value that breaks the field's format or bounds."""
    return FieldError(field=field, reason="FieldValueInvalid", label="Invalid value", detail=detail, value=value)


def duplicate(field: str, value: Any) -> FieldError:
    """A value that must be unique appears again."""
    return FieldError(field=field, reason="FieldValueDuplicate", label="Duplicate value", value=value)


def unknown(field: str, value: Any, detail: str = "") -> FieldError:
    """A reference to something that is not there."""
    return FieldError(field=field, reason="FieldValueNotFound", label="Not found", value=value, detail=detail)


def unsupported(field: str, value: Any, supported: Sequence[str]) -> FieldError:
    """A word that is not one of the field's words."""
    detail = "supported values: " + ", ".join(json.dumps(word) for word in sorted(supported))
    return FieldError(
        field=field, reason="FieldValueNotSupported", label="Unsupported value", detail=detail, value=value
    )


def forbidden(field: str, detail: str) -> FieldError:
    """A well-formed value that is not allowed here and now."""
    return FieldError(field=field, reason="FieldValueForbidden", label="Forbidden", detail=detail, show=False)


def too_long(field: str, limit: int) -> FieldError:
    """A string of more than `limit` bytes."""
    detail = f"may not be more than {limit} bytes"
    return FieldError(field=field, reason="FieldValueTooLong", label="Too long", detail=detail, show=False)


def too_many(field: str, count: int, limit: int) -> FieldError:
    """A list or map of more than `limit` items."""
    detail = f"must have at most {limit} items"
    return FieldError(field=field, reason="FieldValueTooMany", label="Too many", detail=detail, value=count)


class StatusError(Exception):
    """A request that the API server refuses; `build_status` gives the body it answers with."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: JsonObject | None = None,
        retry_after: int | None = None,
        continue_token: str = "",
    ) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.retry_after = retry_after
        self.continue_token = continue_token
        super().__init__(message)

    def build_status(self) -> JsonObject:
        """The `Status` object for the response's body or for a watch's ERROR event."""
        metadata = {"continue": self.continue_token} if self.continue_token else {}
        body: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure"}
        body["message"] = self.message
        if self.reason:
            body["reason"] = self.reason
        details = dict(self.details or {})
        if self.retry_after is not None:
            details["retryAfterSeconds"] = self.retry_after
        if details:
            body["details"] = details
        body["code"] = self.code
        return body


def _details(kind: Kind, name: str) -> JsonObject:
    found = {"name": name, "group": kind.group, "kind": kind.plural}
    return {key: value for key, value in found.items() if value}


def not_found(kind: Kind, name: str) -> StatusError:
    """404: no object of this name."""
    return StatusError(404, "NotFound", f'{kind.resource} "{name}" not found', details=_details(kind, name))


def already_exists(kind: Kind, name: str) -> StatusError:
    """409: an object of this name is there."""
    message = f'{kind.resource} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, details=_details(kind, name))


def conflict(
    kind: Kind,
    name: str,
    why: str = "the object has been modified; please apply your changes to the latest version and try again",
) -> StatusError:
    """409: the writer's picture of the object is out of date."""
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}'
    return StatusError(409, "Conflict", message, details=_details(kind, name))


def invalid_object(kind: Kind, name: str, errors: Sequence[FieldError]) -> StatusError:
    """422: the object breaks the API's rules; all the causes at once, each once."""
    distinct = tuple({str(error): error for error in errors}.values())
    texts = [str(error) for error in distinct]
    listed = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    qualified = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    causes = [{"reason": e.reason, "message": e.body, "field": e.field} for e in distinct]
    details = {"name": name, "group": kind.group, "kind": kind.kind, "causes": causes}
    details = {key: value for key, value in details.items() if value}
    return StatusError(422, "Invalid", f'{qualified} "{name}" is invalid: {listed}', details=details)


def bad_request(message: str) -> StatusError:
    """400: the request itself makes no sense."""
    return StatusError(400, "BadRequest", message)


def forbidden_request(kind: Kind, name: str, why: str) -> StatusError:
    """403: the request is understood and not allowed."""
    message = f'{kind.resource} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", message, details=_details(kind, name))


def internal_error(message: str) -> StatusError:
    """500 without a reason: what a real server makes of mistakes that it does not expect here."""
    return StatusError(500, "", message)


def no_resource() -> StatusError:
    """404: the group and version are served, the resource is not."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", details={})


def expired(message: str, *, continue_token: str = "") -> StatusError:
    """410: the resource version asked for is no longer kept."""
    return StatusError(410, "Expired", message, continue_token=continue_token)


def method_not_allowed() -> StatusError:
    """405: the resource has no such verb."""
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, details={})


def unsupported_media_type(found: str, supported: Sequence[str]) -> StatusError:
    """415: the body is in a format that this server does not take here."""
    message = (
        "the body of the request was in an unknown format - accepted media types include: "
        f"{', '.join(supported)} (found {found or 'none'})"
    )
    return StatusError(415, "UnsupportedMediaType", message)


def unauthorized() -> StatusError:
    """401: no token, or not the right one."""
    message = "Unauthorized: the server's address in the kubeconfig has the token, and works without a header, too"
    return StatusError(401, "Unauthorized", message)


def too_large_version(asked: int, current: int) -> StatusError:
    """504: a read at a resource version that has not happened yet."""
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return StatusError(504, "Timeout", message, details={"causes": causes, "retryAfterSeconds": 1})


@contextmanager
def attempt(what: str) -> Iterator[None]:
    """Log what the API refuses inside the block: the next turn sees the object as it is then."""
    try:
        yield
    except StatusError as error:
        log.warning("could not %s: %s", what, error)
