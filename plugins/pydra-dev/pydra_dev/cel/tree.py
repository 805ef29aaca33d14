"""A checked CEL expression as a tree: read from what the library serializes, and written back. Pure.

The library compiles and evaluates, but shows neither the tree nor its types except in this form: `cel.expr.CheckedExpr`
(https://github.com/google/cel-spec/tree/master/proto/cel/expr) inside a `google.protobuf.Any`. What is not in the
tree (positions, references to declarations) is kept as it was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

CONSTANT, IDENTIFIER, SELECT, CALL, LIST, MAP = range(3, 9)
"""The kinds of a node: the field numbers of `cel.expr.Expr`."""

_Fields: TypeAlias = list[tuple[int, int | bytes]]
"""A protobuf message: field numbers with a varint or bytes (fixed64 values keep their eight bytes as an int)."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `name` is an identifier, a selected field, a function or a comprehension's accumulator.

    Children: the operand; the target (of a member call) and the arguments; elements; keys and values in turn;
    range, initial value, condition, step and result. `rest` is what else the message has, as it was read.
    """

    id: int
    kind: int
    name: str = ""
    children: tuple[Node, ...] = ()
    member: bool = False
    test: bool = False
    variables: tuple[str, str] = ("", "")
    rest: bytes = b""
    entries: tuple[bytes, ...] = ()


class CheckedTree(msgspec.Struct, frozen=True, kw_only=True):
    """An expression's root, and the types of its nodes by id, as text: `int`, `list(string)`, `map(string, dyn)`."""

    root: Node
    types: Mapping[int, str]
    rest: bytes


def parse_tree(serialized: bytes) -> CheckedTree:
    """The tree of a serialized expression."""
    checked = _only(_read(serialized), 2)
    fields = _read(checked)
    types = {}
    for entry in _all(fields, 3):
        pair = _read(entry)
        types[_number(pair, 1)] = _describe_type(_only(pair, 2))
    rest = _write([(number, value) for number, value in fields if number != 4])
    return CheckedTree(root=_parse_node(_only(fields, 4)), types=types, rest=rest)


def build_tree(tree: CheckedTree) -> bytes:
    """The serialized form of a tree."""
    checked = tree.rest + _write([(4, _build_node(tree.root))])
    return _write([(1, b"type.googleapis.com/cel.expr.CheckedExpr"), (2, checked)])


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, parents first."""
    yield node
    for child in node.children:
        yield from walk(child)


def read_constant(node: Node) -> bool | int | float | str | bytes | None:
    """A constant's value; durations and timestamps, which have no literals, are None."""
    ((number, value),) = _read(node.rest)
    if number == 2:
        return bool(value)
    if number == 6 and isinstance(value, bytes):
        return value.decode()
    if number in {3, 4} and isinstance(value, int):
        return value
    return value if number == 7 else None


def with_default_domains(tree: CheckedTree, outer: frozenset[str]) -> CheckedTree:
    """The tree in which a map of one of the `outer` types gives an empty map for a key that it lacks.

    `m[k]` becomes `k in m ? m[k] : {}`; `m.k`, `m[?k]` and `m.?k` likewise, and `has(m.k)` is true.
    """
    ids = iter(range(max(node.id for node in walk(tree.root)) + 1, 1 << 30))

    def rewrite(node: Node) -> Node:
        node = replace(node, children=tuple(rewrite(child) for child in node.children))
        operand = node.children[0] if node.children else None
        if operand is None or tree.types.get(operand.id) not in outer:
            return node
        if node.kind == SELECT:
            key = _string(next(ids), node.name)
            return _boolean(node.id, value=True) if node.test else default(node, key, operand)
        if node.kind == CALL and node.name == "_[_]":
            return default(node, node.children[1], operand)
        if node.kind == CALL and node.name in {"_[?_]", "_?._"}:
            key = node.children[1]
            found = Node(id=next(ids), kind=CALL, name="_[_]", children=(operand, key))
            target = Node(id=next(ids), kind=IDENTIFIER, name="optional")
            return Node(id=node.id, kind=CALL, name="of", member=True, children=(target, default(found, key, operand)))
        return node

    def default(node: Node, key: Node, operand: Node) -> Node:
        present = Node(id=next(ids), kind=CALL, name="@in", children=(key, operand))
        empty = Node(id=next(ids), kind=MAP)
        return Node(id=next(ids), kind=CALL, name="_?_:_", children=(present, node, empty))

    return replace(tree, root=rewrite(tree.root))


def _string(id_: int, text: str) -> Node:
    return Node(id=id_, kind=CONSTANT, rest=_write([(6, text.encode())]))


def _boolean(id_: int, *, value: bool) -> Node:
    return Node(id=id_, kind=CONSTANT, rest=_write([(2, int(value))]))


def _parse_node(data: bytes) -> Node:
    fields = _read(data)
    id_ = _number(fields, 2)
    kind, body = next(((number, value) for number, value in fields if number != 2), (CONSTANT, b""))
    assert isinstance(body, bytes)
    inner = _read(body)
    match kind:
        case 4:
            return Node(id=id_, kind=kind, name=_text(inner, 1))
        case 5:
            operand = _parse_node(_only(inner, 1))
            return Node(id=id_, kind=kind, name=_text(inner, 2), children=(operand,), test=bool(_number(inner, 3)))
        case 6:
            targets = _all(inner, 1)
            children = tuple(map(_parse_node, [*targets, *_all(inner, 3)]))
            return Node(id=id_, kind=kind, name=_text(inner, 2), children=children, member=bool(targets))
        case 7:
            rest = _write([field for field in inner if field[0] != 1])
            return Node(id=id_, kind=kind, children=tuple(map(_parse_node, _all(inner, 1))), rest=rest)
        case 8:
            entries = [_read(entry) for entry in _all(inner, 2)]
            children = tuple(_parse_node(_only(entry, part)) for entry in entries for part in (3, 4))
            kept = tuple(_write([field for field in entry if field[0] not in {3, 4}]) for entry in entries)
            return Node(id=id_, kind=kind, name=_text(inner, 1), children=children, entries=kept)
        case 9:
            return Node(
                id=id_,
                kind=kind,
                name=_text(inner, 3),
                variables=(_text(inner, 1), _text(inner, 8)),
                children=tuple(_parse_node(_only(inner, part)) for part in (2, 4, 5, 6, 7)),
            )
        case _:
            return Node(id=id_, kind=kind, rest=body)


def _build_node(node: Node) -> bytes:
    children = [_build_node(child) for child in node.children]
    match node.kind:
        case 4:
            body = _write([(1, node.name.encode())])
        case 5:
            body = _write([(1, children[0]), (2, node.name.encode()), (3, int(node.test))])
        case 6:
            target = [(1, children.pop(0))] if node.member else []
            body = _write([*target, (2, node.name.encode()), *((3, child) for child in children)])
        case 7:
            body = _write((1, child) for child in children) + node.rest
        case 8:
            pairs = zip(node.entries, children[::2], children[1::2], strict=True)
            entries = [(2, kept + _write([(3, key), (4, value)])) for kept, key, value in pairs]
            body = _write([*([(1, node.name.encode())] if node.name else []), *entries])
        case 9:
            one, two = node.variables
            parts = zip((2, 4, 5, 6, 7), children, strict=True)
            second = [(8, two.encode())] if two else []
            body = _write([(1, one.encode()), (3, node.name.encode()), *parts, *second])
        case _:
            body = node.rest
    return _write([(2, node.id), (node.kind, body)])


_PRIMITIVES = {1: "bool", 2: "int", 3: "uint", 4: "double", 5: "string", 6: "bytes"}


def _describe_type(data: bytes) -> str:
    ((number, value),) = _read(data) or [(1, b"")]
    if isinstance(value, int):
        return _PRIMITIVES.get(value, "null") if number == 3 else "any" if number == 5 and value == 1 else "well-known"
    inner = _read(value) if number in {6, 7, 14} else []
    match number:
        case 6:
            return f"list({_describe_type(_only(inner, 1))})"
        case 7:
            return f"map({_describe_type(_only(inner, 1))}, {_describe_type(_only(inner, 2))})"
        case 9:
            return value.decode()
        case 14:
            parameters = ", ".join(map(_describe_type, _all(inner, 2)))
            return _text(inner, 1) + (f"({parameters})" if parameters else "")
        case _:
            return "dyn"


def _read(data: bytes) -> _Fields:
    fields: _Fields = []
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        if tag & 7 == 2:
            length, at = _read_varint(data, at)
            fields.append((tag >> 3, data[at : at + length]))
            at += length
        elif tag & 7 == 0:
            value, at = _read_varint(data, at)
            fields.append((tag >> 3, value))
        else:  # fixed64: a double, of which only the bytes matter
            fields.append((-(tag >> 3), int.from_bytes(data[at : at + 8], "little")))
            at += 8
    return fields


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _write(fields: Iterable[tuple[int, int | bytes]]) -> bytes:
    built = bytearray()
    for number, value in fields:
        if isinstance(value, bytes):
            built += _varint(number << 3 | 2) + _varint(len(value)) + value
        elif number < 0:
            built += _varint(-number << 3 | 1) + value.to_bytes(8, "little")
        else:
            built += _varint(number << 3) + _varint(value)
    return bytes(built)


def _varint(value: int) -> bytes:
    built = bytearray()
    while value > 0x7F:
        built.append(value & 0x7F | 0x80)
        value >>= 7
    built.append(value)
    return bytes(built)


def _all(fields: _Fields, number: int) -> list[bytes]:
    return [value for found, value in fields if found == number and isinstance(value, bytes)]


def _only(fields: _Fields, number: int) -> bytes:
    return next(iter(_all(fields, number)), b"")


def _text(fields: _Fields, number: int) -> str:
    return _only(fields, number).decode()


def _number(fields: _Fields, number: int) -> int:
    return next((value for found, value in fields if found == number and isinstance(value, int)), 0)
