"""The worst-case cost of a CEL selector, as kube-apiserver estimates it before it stores one. Pure.

A unit is about 50 ns; a selector may cost 1,000,000. Sizes of a device's strings and maps are their limits in the API.
Only upper bounds are followed. Source: cel-go `checker/cost.go`; `pkg/cel/library/cost.go` of k8s.io/apiserver;
`cel/compile.go` of k8s.io/dynamic-resource-allocation, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import TypeAlias

import msgspec

from pydra_dev.cel.tree import (
    CALL,
    COMPREHENSION,
    CONSTANT,
    IDENTIFIER,
    LIST,
    MAP,
    SELECT,
    CheckedTree,
    Node,
    read_constant,
)

MAX_COST = 1_000_000
UNKNOWN = 2**64 - 1
_LIST, _MAP = 10, 30
_TRAVERSAL, _REGEX = 0.1, 0.25


class Size(msgspec.Struct, frozen=True):
    """How long a string, list or map can be, and its keys and values; 1 for a number or boolean."""

    most: int = UNKNOWN
    key: Size | None = None
    value: Size | None = None


_ONE = Size(1)
_VALUE = Size(64)
_NAMES = Size(32, Size(32), _VALUE)
DEVICE = {
    "driver": Size(63),
    "allowMultipleAllocations": _ONE,
    "attributes": Size(32, Size(63), _NAMES),
    "capacity": Size(32, Size(63), _NAMES),
}

_Locals = Mapping[str, Size]


def estimate_cost(tree: CheckedTree) -> int:
    """The most that one evaluation can cost."""
    return min(UNKNOWN, _Estimator(tree.types).estimate(tree.root, {})[0])


class _Estimator:
    def __init__(self, types: Mapping[int, str]) -> None:
        self._types = types

    def estimate(self, node: Node, local: _Locals) -> tuple[int, Size]:
        """The cost of a node with all below it, and the size of its value."""
        match node.kind:
            case int(kind) if kind == CONSTANT:
                value = read_constant(node)
                return 0, Size(len(value)) if isinstance(value, (str, bytes)) else _ONE
            case int(kind) if kind == IDENTIFIER:
                # `device.driver` is declared as one name, and costs what the selection of a field does.
                head, _, field = node.name.partition(".")
                return (2, DEVICE[field]) if head == "device" and field else (1, local.get(node.name, Size()))
            case int(kind) if kind == SELECT:
                return self._select(node, local)
            case int(kind) if kind == CALL:
                return self._call(node, local)
            case int(kind) if kind == COMPREHENSION:
                return self._comprehension(node, local)
            case int(kind) if kind in {LIST, MAP}:
                return self._literal(node, local)
            case _:
                return 1, Size()

    def _select(self, node: Node, local: _Locals) -> tuple[int, Size]:
        (operand,) = node.children
        if operand.kind == IDENTIFIER and operand.name == "device":
            return 2, DEVICE.get(node.name, Size())
        cost, size = self.estimate(operand, local)
        kind = self._types.get(operand.id, "dyn")
        return cost + (kind.startswith("map(") and not node.test), size.value or Size()

    def _literal(self, node: Node, local: _Locals) -> tuple[int, Size]:
        parts = [self.estimate(child, local) for child in node.children]
        cost = sum(cost for cost, _ in parts)
        sizes = [size for _, size in parts]
        if node.kind == LIST:
            return cost + _LIST, Size(len(sizes), _ONE, _union(sizes))
        return cost + _MAP, Size(len(sizes) // 2, _union(sizes[::2]), _union(sizes[1::2]))

    def _comprehension(self, node: Node, local: _Locals) -> tuple[int, Size]:
        over, first, condition, step, result = node.children
        range_cost, range_size = self.estimate(over, local)
        first_cost, first_size = self.estimate(first, local)
        inside = {**local, node.name: first_size}
        if over.kind == LIST and not over.children:  # cel.bind
            cost, size = self.estimate(result, inside)
            return range_cost + first_cost + cost, size
        is_list = self._types.get(over.id, "").startswith("list(") or over.kind == LIST
        one, two = node.variables
        item = range_size.value if is_list else range_size.key
        loop = {**inside, one: (range_size.key if two else item) or Size()}
        if two:
            loop[two] = range_size.value or Size()
        each = self.estimate(condition, loop)[0] + self.estimate(step, loop)[0]
        cost = range_cost + first_cost + self.estimate(result, inside)[0] + range_size.most * each
        return cost, first_size if first.kind == CONSTANT else Size(range_size.most)

    def _call(self, node: Node, local: _Locals) -> tuple[int, Size]:
        parts = [self.estimate(child, local) for child in node.children]
        costs, sizes = [cost for cost, _ in parts], [size for _, size in parts]
        if node.name == "_?_:_":
            return costs[0] + max(costs[1:]), _union(sizes[1:])
        if node.name in {"_&&_", "_||_"}:
            return sum(costs), _ONE
        kinds = [self._types.get(child.id, "dyn") for child in node.children]
        own, size = _function_cost(node.name, sizes, kinds)
        return sum(costs) + own, size


def _union(sizes: Sequence[Size]) -> Size:
    if not sizes:
        return Size(0)
    keys, values = [size.key for size in sizes], [size.value for size in sizes]
    return Size(
        max(size.most for size in sizes),
        _union([key for key in keys if key is not None]) if None not in keys else None,
        _union([value for value in values if value is not None]) if None not in values else None,
    )


def _share(size: int, factor: float) -> int:
    return min(UNKNOWN, ceil(size * factor))


_Sizes: TypeAlias = Sequence[Size]
_Kinds: TypeAlias = Sequence[str]
_Cost: TypeAlias = Callable[[_Sizes, _Kinds], tuple[int, Size]]
"""What a call itself costs, and the size of its result, by sizes and types of the target (if any) and the arguments."""


def _function_cost(name: str, sizes: _Sizes, kinds: _Kinds) -> tuple[int, Size]:
    known = _FUNCTIONS.get(name)
    return known(sizes, kinds) if known is not None else (1, Size())


def _traverse(which: int, times: int = 1, *, keeps: bool = False) -> _Cost:
    """Reading one of the strings, once or more; `keeps`: the result is no longer than it."""
    return lambda sizes, _: (
        _share(sizes[which].most, times * _TRAVERSAL),
        Size(sizes[which].most) if keeps else Size(),
    )


def _search_cost(sizes: _Sizes, _kinds: _Kinds) -> tuple[int, Size]:
    text, pattern = sizes[0].most, sizes[1].most
    return _share(min(UNKNOWN, text + 1), _TRAVERSAL) * _share(pattern, _REGEX), sizes[0]


def _contains_cost(sizes: _Sizes, _kinds: _Kinds) -> tuple[int, Size]:
    return _share(sizes[0].most, _TRAVERSAL) * _share(sizes[1].most, _TRAVERSAL), _ONE


def _add_cost(sizes: _Sizes, kinds: _Kinds) -> tuple[int, Size]:
    total = min(UNKNOWN, sizes[0].most + sizes[1].most)
    return _share(total, _TRAVERSAL) if kinds[0] in {"string", "bytes"} else 1, Size(total)


def _join_cost(sizes: _Sizes, _kinds: _Kinds) -> tuple[int, Size]:
    # Nothing bounds the strings of a list in the estimate, be they literals.
    total = UNKNOWN if sizes[0].most else 0
    return _share(total, _TRAVERSAL), Size(total)


def _set_cost(factor: int) -> _Cost:
    return lambda sizes, _: (1 + factor * sizes[0].most * sizes[1].most, _ONE)


def _rebuild_cost(sizes: _Sizes, _kinds: _Kinds) -> tuple[int, Size]:
    return 1 + _LIST + sizes[0].most, Size(sizes[0].most)


def _sort_cost(sizes: _Sizes, kinds: _Kinds) -> tuple[int, Size]:
    pairs = min(UNKNOWN, sizes[-1].most ** 2)
    factor = 2 + _TRAVERSAL if kinds[-1] in {"list(string)", "list(bytes)"} else 2
    return 1 + _LIST + _share(pairs, factor), Size(pairs)


def _equal_cost(sizes: _Sizes, kinds: _Kinds) -> tuple[int, Size]:
    if kinds[0].startswith(("kubernetes.", "net.")):
        return 1, _ONE
    return _share(min(size.most for size in sizes), _TRAVERSAL), _ONE


def _order_cost(sizes: _Sizes, kinds: _Kinds) -> tuple[int, Size]:
    by_length = _share(min(size.most for size in sizes), _TRAVERSAL)
    if "string" in kinds or "bytes" in kinds:
        return by_length, _ONE
    return max(1, by_length) if set(kinds) <= {"dyn", "any"} else 1, _ONE


def _list_cost(sizes: _Sizes, kinds: _Kinds) -> tuple[int, Size]:
    size, kind = sizes[0], kinds[0]
    if not kind.startswith("list("):
        return _share(size.most, _TRAVERSAL), _ONE
    each = 1 + (_share(UNKNOWN, _TRAVERSAL) if kind in {"list(string)", "list(bytes)"} else 0)
    return size.most * each, _ONE


_FUNCTIONS: Mapping[str, _Cost] = {
    "_[_]": lambda sizes, _: (1, sizes[0].value or Size()),
    "@in": lambda sizes, kinds: (1 if kinds[1].startswith("map(") else sizes[1].most, _ONE),
    "_+_": _add_cost,
    "join": _join_cost,
    "contains": _contains_cost,
    "includes": lambda _sizes, _kinds: (48, _ONE),
    **dict.fromkeys(("_==_", "_!=_"), _equal_cost),
    **dict.fromkeys(("_<_", "_<=_", "_>_", "_>=_"), _order_cost),
    **dict.fromkeys(("quantity", "isQuantity", "semver", "isSemver", "url", "isURL"), _traverse(0)),
    **dict.fromkeys(("isIP", "ip.isCanonical", "cidr", "isCIDR"), _traverse(0)),
    "ip": lambda sizes, kinds: (1, Size()) if kinds[0] == "net.CIDR" else _traverse(0)(sizes, kinds),
    **dict.fromkeys(("startsWith", "endsWith"), _traverse(1)),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _traverse(0, keeps=True)),
    "replace": _traverse(0, 2),
    "split": _traverse(0, 2, keeps=True),
    **dict.fromkeys(("matches", "find", "findAll"), _search_cost),
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _list_cost),
    **dict.fromkeys(("sets.contains", "sets.intersects"), _set_cost(1)),
    "sets.equivalent": _set_cost(2),
    **dict.fromkeys(("slice", "reverse", "flatten", "lists.range"), _rebuild_cost),
    **dict.fromkeys(("distinct", "sort", "@sortByAssociatedKeys"), _sort_cost),
}
"""Every other function costs 1, and its result may be as long as it likes."""
