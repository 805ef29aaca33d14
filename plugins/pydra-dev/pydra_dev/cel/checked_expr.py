"""A checked CEL expression as messages: what the library serializes, and reads back. Pure.

The library compiles and evaluates, but shows neither the tree nor its types except in this form: `cel.expr.CheckedExpr`
(https://github.com/google/cel-spec/tree/master/proto/cel/expr) inside a `google.protobuf.Any`. Fields that are not
declared here (positions, references to declarations, constants that are not texts) are kept as they were read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from itertools import count
from typing import Any

import betterproto2
from betterproto2 import TYPE_BOOL, TYPE_BYTES, TYPE_INT64, TYPE_MAP, TYPE_MESSAGE, TYPE_STRING, TYPE_UINT64, Message

# ruff: noqa: RUF009 - fields of messages are made by calls
_field = betterproto2.field


def _one(number: int) -> Any:
    """A message that may be absent."""
    return _field(number, TYPE_MESSAGE, optional=True)


def _several(number: int) -> Any:
    return _field(number, TYPE_MESSAGE, repeated=True)


@dataclass(eq=False, repr=False)
class Constant(Message):
    """A literal."""

    text: str | None = _field(6, TYPE_STRING, optional=True)
    truth: bool | None = _field(2, TYPE_BOOL, optional=True)


@dataclass(eq=False, repr=False)
class Identifier(Message):
    """A variable."""

    name: str = _field(1, TYPE_STRING)


@dataclass(eq=False, repr=False)
class Select(Message):
    """`operand.name`, or `has(operand.name)`."""

    operand: Node | None = _one(1)
    name: str = _field(2, TYPE_STRING)
    is_test: bool = _field(3, TYPE_BOOL)


@dataclass(eq=False, repr=False)
class Call(Message):
    """`function(arguments)`, or `target.function(arguments)`."""

    target: Node | None = _one(1)
    function: str = _field(2, TYPE_STRING)
    arguments: list[Node] = _several(3)


@dataclass(eq=False, repr=False)
class List(Message):
    """`[a, b]`."""

    elements: list[Node] = _several(1)


@dataclass(eq=False, repr=False)
class Entry(Message):
    """A key and a value of a map."""

    key: Node | None = _one(3)
    value: Node | None = _one(4)


@dataclass(eq=False, repr=False)
class Map(Message):
    """`{a: b}`."""

    entries: list[Entry] = _several(2)


@dataclass(eq=False, repr=False)
class Comprehension(Message):
    """What macros such as `all` become."""

    range: Node | None = _one(2)
    initial: Node | None = _one(4)
    condition: Node | None = _one(5)
    step: Node | None = _one(6)
    result: Node | None = _one(7)


@dataclass(eq=False, repr=False)
class Node(Message):
    """A part of an expression, of one of these kinds."""

    id: int = _field(2, TYPE_INT64)
    constant: Constant | None = _one(3)
    identifier: Identifier | None = _one(4)
    select: Select | None = _one(5)
    call: Call | None = _one(6)
    list: List | None = _one(7)
    map: Map | None = _one(8)
    comprehension: Comprehension | None = _one(9)


@dataclass(eq=False, repr=False)
class Types(Message):
    """The parameters of a type: of a list, the first."""

    first: Type | None = _one(1)
    second: Type | None = _one(2)


@dataclass(eq=False, repr=False)
class Abstract(Message):
    """A type that the environment declares."""

    name: str = _field(1, TYPE_STRING)
    parameters: list[Type] = _several(2)


@dataclass(eq=False, repr=False)
class Type(Message):
    """The type of a node."""

    null: int | None = _field(2, TYPE_UINT64, optional=True)
    primitive: int | None = _field(3, TYPE_UINT64, optional=True)
    well_known: int | None = _field(5, TYPE_UINT64, optional=True)
    list: Types | None = _one(6)
    map: Types | None = _one(7)
    message: str | None = _field(9, TYPE_STRING, optional=True)
    abstract: Abstract | None = _one(14)


@dataclass(eq=False, repr=False)
class CheckedTree(Message):
    """An expression's root, and the types of its nodes by id."""

    types: dict[int, Type] = _field(3, TYPE_MAP, map_meta=betterproto2.map_meta(TYPE_INT64, TYPE_MESSAGE))
    root: Node | None = _one(4)


@dataclass(eq=False, repr=False)
class _Envelope(Message):
    """`google.protobuf.Any`."""

    url: str = _field(1, TYPE_STRING)
    content: bytes = _field(2, TYPE_BYTES)


def parse_tree(serialized: bytes) -> CheckedTree:
    """The tree of a serialized expression."""
    return CheckedTree.parse(_Envelope.parse(serialized).content)


def build_tree(tree: CheckedTree) -> bytes:
    """The serialized form of a tree."""
    return bytes(_Envelope(url="type.googleapis.com/cel.expr.CheckedExpr", content=bytes(tree)))


def walk(part: Any) -> Iterator[Node]:
    """All nodes of a part of a tree, parents first."""
    if isinstance(part, Node):
        yield part
    for one in fields(part) if part is not None else ():
        value = getattr(part, one.name)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Message):
                yield from walk(inner)


_PRIMITIVES = {1: "bool", 2: "int", 3: "uint", 4: "double", 5: "string", 6: "bytes"}


def describe_type(tree: CheckedTree, node: Node | None) -> str:
    """The type of a node, as text: `int`, `list(string)`, `map(string, dyn)`."""
    return _describe(tree.types.get(node.id) if node is not None else None)


def _describe(found: Type | None) -> str:
    match found:
        case Type(primitive=int(number)):
            return _PRIMITIVES[number]
        case Type(list=Types(first=element)):
            return f"list({_describe(element)})"
        case Type(map=Types(first=key, second=value)):
            return f"map({_describe(key)}, {_describe(value)})"
        case Type(abstract=Abstract(name=name, parameters=parameters)):
            return name + (f"({', '.join(map(_describe, parameters))})" if parameters else "")
        case Type(well_known=int(number)):
            return "any" if number == 1 else "well-known"
        case Type(message=str(name)):
            return name
    return "dyn" if found is None or found.null is None else "null"


_LOOKUPS = ("_[_]", "_[?_]", "_?._")


def add_default_domains(tree: CheckedTree, outer: Collection[str]) -> None:
    """Make a map of one of the `outer` types give an empty map for a key that it lacks.

    `m[k]` becomes `k in m ? m[k] : {}`; `m.k`, `m[?k]` and `m.?k` likewise, and `has(m.k)` is true.
    """
    nodes = list(walk(tree.root))
    ids = count(max(node.id for node in nodes) + 1)

    def call(function: str, *arguments: Node) -> Node:
        return Node(id=next(ids), call=Call(function=function, arguments=list(arguments)))

    for node in reversed(nodes):  # what is below first
        select, lookup = node.select, node.call
        if select is not None and select.operand is not None:
            operand, key = select.operand, Node(id=next(ids), constant=Constant(text=select.name))
        elif lookup is not None and lookup.function in _LOOKUPS:
            operand, key = lookup.arguments
        else:
            continue
        if describe_type(tree, operand) not in outer:
            continue
        node.select = None
        if select is not None and select.is_test:
            node.constant = Constant(truth=True)
            continue
        value = call("_?_:_", call("@in", key, operand), call("_[_]", operand, key), Node(id=next(ids), map=Map()))
        node.call = value.call
        if lookup is not None and lookup.function != "_[_]":
            target = Node(id=next(ids), identifier=Identifier(name="optional"))
            node.call = Call(target=target, function="of", arguments=[value])
