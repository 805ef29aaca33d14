"""Decodes API server responses and tolerates malformed objects.

Objects carry bytes that other drivers and tenants wrote, and Kubernetes stores more than a strict JSON decoder accepts:
opaque parameters with invalid UTF-8, with unpaired surrogates, nested thousands of levels deep. The strict decoder
runs first. Only if it refuses a body, the bytes are repaired, a list is split into its items, and what still cannot be
decoded is left out and named, so one unreadable object does not affect the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from pydra.kube.api_resources import NODES, RESOURCE_SLICES, JsonObject, WatchEvent, WatchEventType

_NOT_STRICT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_EVENT_TYPES = {kind.value: kind for kind in WatchEventType}
_ESCAPES = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole surrogate pair
    r"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"  # an unpaired surrogate
    r"|\\.",
    re.DOTALL,
)
_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_NAMES = {
    key: re.compile(rb'"metadata"\s*:\s*\{[^{}]*?"%s"\s*:\s*"([^"\\]+)"' % key) for key in (b"namespace", b"name")
}


class NotJson(ValueError):
    """The bytes are not a JSON document of the Kubernetes API; a proxy may have answered instead."""


class Undecodable(ValueError):
    """The object is JSON but cannot be used: nested too deeply, or not a Kubernetes object."""


class TooLarge(ValueError):
    """The body is longer than the limit, and was not read to its end."""


def decode_document(body: bytes) -> JsonObject:
    """Decode a JSON object, such as `/version`. Raises NotJson, Undecodable."""
    try:
        document = msgspec.json.decode(body)
    except _NOT_STRICT:
        document = _decode_repaired(body)
    if type(document) is not dict:
        raise NotJson(f"a JSON {type(document).__name__} in place of an object")
    return document


def decode_object(body: bytes, kind: str = "") -> JsonObject:
    """Decode a Kubernetes object: its `metadata` is an object, and what the agent reads of its kind has its shape.

    Raises NotJson, Undecodable.
    """
    try:
        document = msgspec.json.decode(body)
    except _NOT_STRICT:
        document = _decode_repaired(body)
    found = _check(document)
    if kind in _SINGLE:
        _check_shape(found, _SINGLE[kind])
    return found


def decode_page(body: bytes) -> tuple[JsonObject, list[JsonObject], list[str]]:
    """Decode a page of a list: its metadata, its items, and the name and reason of each unreadable item left out.

    Raises NotJson.
    """
    try:
        page = decode_document(body)
        items = page.get("items")
    except Undecodable:
        envelope, items = _cut_items(body)
        try:
            page = decode_document(envelope)
        except Undecodable as error:
            raise NotJson(str(error)) from error
    metadata = page.get("metadata")
    if type(metadata) is not dict or not isinstance(items, list | None):
        raise NotJson("it is not a list of Kubernetes objects")
    kept: list[JsonObject] = []
    left_out: list[str] = []
    kind = str(page.get("kind")).removesuffix("List")
    for number, item in enumerate(items or ()):
        try:
            found = decode_object(item) if isinstance(item, bytes) else _check(item)
            _check_shape(found, _LISTED.get(kind, _Object))
            kept.append(found)
        except (NotJson, Undecodable) as error:
            left_out.append(f"{_find_name(item) or f'item {number}'} ({error})")
    return metadata, kept, left_out


def decode_table(body: bytes) -> tuple[JsonObject, list[JsonObject], list[str]]:
    """Decode a page of a list as a table: its metadata, and its rows as columns by name. Raises NotJson."""
    try:
        table = msgspec.convert(decode_document(body), _Table)
    except (msgspec.ValidationError, Undecodable) as error:
        raise NotJson(f"it is not a table: {error}") from error
    names = [column.name for column in table.columnDefinitions]
    return table.metadata, [dict(zip(names, row.cells, strict=False)) for row in table.rows or ()], []


def decode_event(line: bytes) -> WatchEvent:
    """Decode one line of a watch. The object of an ERROR event is a Status.

    Raises Undecodable, with the object's name if there is one, for a line that can be skipped, and NotJson for one that
    is not from the stream of a watch.
    """
    try:
        event = decode_document(line)
        kind, found = _EVENT_TYPES.get(event.get("type", "")), event.get("object")
        if kind is WatchEventType.ERROR and type(found) is dict:
            return WatchEvent(kind, found)
        if kind is None:
            raise Undecodable(f"its type {event.get('type')!r} is not a type of a watch event")
        checked = _check(found)
        if kind is not WatchEventType.BOOKMARK:
            _check_shape(checked, _LISTED.get(str(checked.get("kind")), _Object))
        return WatchEvent(kind, checked)
    except (NotJson, Undecodable, TypeError) as error:
        if not line.startswith(b"{"):
            raise NotJson(str(error)) from error
        raise Undecodable(f"{_find_name(line) or 'an event'} ({error})") from error


def _check(found: object) -> JsonObject:
    if type(found) is not dict:
        raise NotJson(f"a JSON {type(found).__name__} in place of an object")
    if type(found.get("metadata")) is not dict:
        raise Undecodable("it is not a Kubernetes object: metadata is missing, or not an object")
    return found


def _check_shape(found: JsonObject, shape: type[msgspec.Struct]) -> None:
    """Check what the agent reads of an object. Raises Undecodable."""
    try:
        msgspec.convert(found, shape)
    except msgspec.ValidationError as error:
        raise Undecodable(f"its shape is not that of the API: {error}") from error


class _Metadata(msgspec.Struct, frozen=True):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815
    namespace: str | None = None
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: dict[str, Any] = {}


class _NamedByServer(_Metadata, frozen=True, kw_only=True):
    uid: str


class _StoredMetadata(_NamedByServer, frozen=True, kw_only=True):
    resourceVersion: str  # noqa: N815


class _Node(msgspec.Struct, frozen=True):
    metadata: _NamedByServer


class _Pool(msgspec.Struct, frozen=True):
    name: str
    generation: int
    resourceSliceCount: int  # noqa: N815


class _Taint(msgspec.Struct, frozen=True):
    key: str
    effect: str
    value: str | None = None
    timeAdded: str | None = None  # noqa: N815


class _Device(msgspec.Struct, frozen=True):
    name: str
    taints: list[_Taint] | None = None
    attributes: dict[str, dict[str, Any]] | None = None
    capacity: dict[str, dict[str, Any]] | None = None
    consumesCounters: list[dict[str, Any]] | None = None  # noqa: N815


class _Spec(msgspec.Struct, frozen=True):
    driver: str
    pool: _Pool
    devices: list[_Device] | None = None
    sharedCounters: list[dict[str, Any]] | None = None  # noqa: N815


class _WrittenSlice(msgspec.Struct, frozen=True):
    metadata: _NamedByServer  # a dry run has no version
    spec: _Spec


class _ResourceSlice(msgspec.Struct, frozen=True):
    metadata: _StoredMetadata
    spec: _Spec


class _Column(msgspec.Struct, frozen=True):
    name: str


class _Row(msgspec.Struct, frozen=True):
    cells: list[Any]


class _Table(msgspec.Struct, frozen=True):
    metadata: dict[str, Any]
    columnDefinitions: list[_Column]  # noqa: N815
    rows: list[_Row] | None = None


_LISTED: dict[str, type[msgspec.Struct]] = {RESOURCE_SLICES.kind: _ResourceSlice}
_SINGLE: dict[str, type[msgspec.Struct]] = {RESOURCE_SLICES.kind: _WrittenSlice, NODES.kind: _Node}


def _decode_repaired(body: bytes) -> Any:
    """Decode with U+FFFD in place of invalid UTF-8 and unpaired surrogates."""
    text = _ESCAPES.sub(lambda found: "\\ufffd" if found[1] else found[0], body.decode(errors="replace"))
    try:
        return msgspec.json.decode(text)
    except RecursionError as error:
        raise Undecodable("it is nested too deep") from error
    except _NOT_STRICT as error:
        if "out of range" in str(error):  # JSON allows 1e999
            raise Undecodable("it has a number that is out of range") from error
        raise NotJson(str(error)) from error


def _cut_items(body: bytes) -> tuple[bytes, list[bytes]]:
    """Split a list from its items, which are found by the brackets: they are the only array directly in a list."""
    spans = list(_find_items(body))
    if not spans:
        return body, []
    return body[: spans[0][0]] + body[spans[-1][1] :], [body[start:end] for start, end in spans]


def _find_items(body: bytes) -> Iterator[tuple[int, int]]:
    depth = start = 0
    in_items = False
    for token in _STRUCTURE.finditer(body):
        match token[0]:
            case b"{" | b"[" as opening:
                if depth == 1:
                    in_items = opening == b"["
                elif depth == 2:
                    start = token.start()
                depth += 1
            case b"}" | b"]":
                depth -= 1
                if depth == 2 and in_items:
                    yield start, token.end()


def _find_name(item: object) -> str:
    """Find namespace and name of an object that cannot be decoded, for a message; empty if there are none."""
    if not isinstance(item, bytes):
        return ""
    return "/".join(found[1].decode(errors="replace") for pattern in _NAMES.values() if (found := pattern.search(item)))


class LineTooLong(ValueError):
    """A line is longer than the limit; the stream cannot be read further."""


class LineSplitter:
    """Splits a stream of bytes into lines: feed it chunks, get complete, non-empty lines without their newline.

    Takes linear time, even for a line that comes in many chunks.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes; raises LineTooLong."""
        head, newline, rest = chunk.partition(b"\n")
        self._keep(head)
        if not newline:
            return []
        lines = [self._take()]
        *whole, tail = rest.split(b"\n")
        if any(len(line) > self._limit for line in whole):
            raise LineTooLong(f"a line of more than {self._limit} bytes")
        lines += whole
        self._keep(tail)
        return [line for line in lines if line.strip()]

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            raise LineTooLong(f"a line of more than {self._limit} bytes")
        self._parts.append(part)

    def _take(self) -> bytes:
        line = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return line
