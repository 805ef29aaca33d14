"""Values to protobuf bytes and back, by the field numbers in their annotations. Source: protobuf's encoding, proto3.

A value lists only the fields that are used here; others are skipped without being decoded. `X | None` of a scalar is a
message with one field `value`, as NRI has for scalars that may be absent. An absent message is the empty value.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cache, lru_cache
from typing import Annotated, Any, TypeVar, cast

import msgspec

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_SMALL = 256
_FIXED = {_FIXED64: 8, _FIXED32: 4}


class Malformed(Exception):
    """Bytes that are no message of the expected type."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A message: each field is annotated with its number and has a default, which is not sent."""


class _Text(Value, frozen=True, kw_only=True):
    value: Annotated[str, 1] = ""


class _Number(Value, frozen=True, kw_only=True):
    value: Annotated[int, 1] = 0


class _Truth(Value, frozen=True, kw_only=True):
    value: Annotated[bool, 1] = False


class _Entry(Value, frozen=True, kw_only=True):
    key: Annotated[str, 1] = ""
    value: Annotated[str, 2] = ""


_WRAPPERS: Mapping[type, type[Value]] = {str: _Text, int: _Number, bool: _Truth}


class _Shape(Enum):
    SINGLE = 1
    OPTIONAL = 2
    REPEATED = 3
    MAP = 4


class _Field(msgspec.Struct, frozen=True):
    """How a field is read and written. `kind` is what is on the wire: str, bytes, bool, int or a Value."""

    name: str
    kind: type
    shape: _Shape
    default: object


V = TypeVar("V", bound=Value)


@cache
def _fields(of: type[Value]) -> Mapping[int, _Field]:
    """The fields of a type by their numbers, ascending."""
    hints = typing.get_type_hints(of, include_extras=True)
    fields: dict[int, _Field] = {}
    for field in msgspec.structs.fields(of):
        annotation, number = typing.get_args(hints[field.name])
        kind, shape = _describe(annotation)
        fields[number] = _Field(field.name, kind, shape, getattr(of(), field.name))
    return dict(sorted(fields.items()))


def _describe(annotation: Any) -> tuple[type, _Shape]:
    arguments = typing.get_args(annotation)
    match typing.get_origin(annotation):
        case None:
            return annotation, _Shape.SINGLE
        case origin if origin is tuple:
            return arguments[0], _Shape.REPEATED
        case origin if origin is Mapping:
            return _Entry, _Shape.MAP
    return _WRAPPERS[arguments[0]], _Shape.OPTIONAL


def encode(value: Value) -> bytes:
    """The bytes of a message; fields with their default values are left out."""
    out = bytearray()
    for number, field in _fields(type(value)).items():
        content = getattr(value, field.name)
        for item in _list_items(field, content) if content != field.default else ():
            _write(out, number, item)
    return bytes(out)


def _list_items(field: _Field, content: Any) -> Iterable[Any]:
    match field.shape:
        case _Shape.MAP:
            return [_Entry(key=key, value=item) for key, item in sorted(content.items())]
        case _Shape.OPTIONAL:
            return [field.kind(value=content)]
        case _Shape.REPEATED:
            return cast("Iterable[Any]", content)
    return [content]


def _write(out: bytearray, number: int, item: Any) -> None:
    if isinstance(item, int):
        _write_varint(out, number << 3 | _VARINT)
        _write_varint(out, item & 0xFFFFFFFFFFFFFFFF)
        return
    data = item.encode() if isinstance(item, str) else encode(item) if isinstance(item, Value) else item
    _write_varint(out, number << 3 | _BYTES)
    _write_varint(out, len(data))
    out += data


def _write_varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def decode(data: bytes, kind: type[V]) -> V:
    """The message of a type; the last of a field that is there twice counts.

    Raises:
        Malformed: it ends inside a field, or text is not UTF-8.
    """
    fields = _fields(kind)
    found: dict[str, Any] = {}
    for number, wire_type, content in _read_fields(data):
        field = fields.get(number)
        if field is None or (wire_type == _VARINT) != (field.kind in (int, bool)):
            continue
        value = _convert(field, content)
        if field.shape is _Shape.REPEATED:
            found.setdefault(field.name, []).append(value)
        elif field.shape is _Shape.MAP:
            found.setdefault(field.name, {})[value.key] = value.value
        else:
            found[field.name] = value.value if field.shape is _Shape.OPTIONAL else value
    return kind(**{name: tuple(value) if type(value) is list else value for name, value in found.items()})


@lru_cache(maxsize=1024)
def _decode_small(data: bytes, kind: type[V]) -> V:
    """The same for what thousands of containers have alike: their mounts, namespaces and devices."""
    return decode(data, kind)


def _read_fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and content (int or bytes) of each field that has one of the two types used here."""
    position = 0
    while position < len(data):
        if data[position] < 0x80:  # most are
            tag, position = data[position], position + 1
        else:
            tag, position = _read_varint(data, position)
        wire_type = tag & 7
        if wire_type == _VARINT:
            content, position = _read_varint(data, position)
            yield tag >> 3, wire_type, content
            continue
        if wire_type == _BYTES and position < len(data) and data[position] < 0x80:
            length, position = data[position], position + 1
        elif wire_type == _BYTES:
            length, position = _read_varint(data, position)
        elif wire_type in _FIXED:
            length = _FIXED[wire_type]
        else:
            raise Malformed(f"field {tag >> 3} has the wire type {wire_type}, which proto3 does not have")
        if position + length > len(data):
            raise Malformed(f"field {tag >> 3} has {length} bytes, of which {len(data) - position} are there")
        if wire_type == _BYTES:
            yield tag >> 3, wire_type, data[position : position + length]
        position += length


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A number of at most 64 bits, and the position behind it."""
    number = 0
    for count, byte in enumerate(data[position : position + _LONGEST_VARINT]):
        number |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return number & 0xFFFFFFFFFFFFFFFF, position + count + 1
    raise Malformed(f"the number at byte {position} does not end")


def _convert(field: _Field, content: Any) -> Any:
    """Numbers are signed: NRI's unsigned ones stay below 2^63."""
    if field.kind is bool:
        return bool(content)
    if field.kind is int:
        return content - (1 << 64) if content >> 63 else content
    if field.kind is str:
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"{field.name} is not UTF-8: {error.reason}") from None
    if field.kind is bytes:
        return content
    kind = cast("type[Value]", field.kind)
    return _decode_small(content, kind) if len(content) <= _SMALL else decode(content, kind)
