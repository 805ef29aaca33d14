"""What Kubernetes adds to CEL for DRA selectors: quantities, versions, regular expressions, lists, networks. Pure.

The library's values cannot be Python objects, so a quantity and a version travel as maps of one entry, whose key is
the type's name: `{"kubernetes.Quantity": 42949672960}`, `{"kubernetes.Semver": "1.2.3"}`. Equal values are equal
maps. What an expression may do with them follows from the declared types: `environment` compiles against those.
Source: `pkg/cel/library` of k8s.io/apiserver, Kubernetes 1.36.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec

from pydra_dev.api.quantity import parse_quantity
from pydra_dev.cel import network
from pydra_dev.cel.network import CIDR, IP

QUANTITY, SEMVER = "kubernetes.Quantity", "kubernetes.Semver"
TAGS = frozenset({QUANTITY, SEMVER, IP, CIDR})
"""Types whose values are maps."""
_MAX_INT = 2**63 - 1

Value: TypeAlias = Any
"""A value as the library gives it to a function: bool, int, float, str, list or dict."""
Tagged: TypeAlias = Mapping[str, int | str]


class Declaration(msgspec.Struct, frozen=True):
    """One overload: `text` is `name(types) result`, or `type.name(types) result` for a member."""

    text: str
    run: Callable[..., Value]


def build_quantity(amount: Fraction) -> Tagged:
    """A quantity as CEL sees it."""
    if amount.denominator == 1 and abs(amount.numerator) <= _MAX_INT:
        return {QUANTITY: amount.numerator}
    return {QUANTITY: str(amount)}


def build_semver(text: str) -> Tagged:
    """A semantic version as CEL sees it, without its build metadata; raises ValueError."""
    read_order(text)
    return {SEMVER: text.partition("+")[0]}


_Order: TypeAlias = tuple[tuple[int, ...], bool, tuple[tuple[bool, int, str], ...]]
_NUMBER = r"(0|[1-9]\d*)"
_SEMVER = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", re.ASCII)


@lru_cache(maxsize=4096)
def read_order(text: str) -> _Order:
    """A version as something that compares: a release is later than its pre-releases. Raises ValueError."""
    match = _SEMVER.fullmatch(text)
    parts = match[4].split(".") if match is not None and match[4] else []
    if match is None or not all(parts) or any(part.isdecimal() and part[0] == "0" != part for part in parts):
        raise ValueError(f"{text!r} is not a semantic version")
    order = tuple((not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts)
    return tuple(int(match[group]) for group in (1, 2, 3)), not parts, order


def _amount(value: Tagged) -> Fraction:
    return Fraction(value[QUANTITY])


def _pair(one: Tagged, other: Tagged) -> tuple[Any, Any]:
    """Both as values that compare; raises TypeError when they are not of one kind."""
    if set(one) == set(other) == {QUANTITY}:
        return _amount(one), _amount(other)
    if set(one) == set(other) == {SEMVER}:
        return read_order(str(one[SEMVER])), read_order(str(other[SEMVER]))
    raise TypeError("no such overload")


def _compare(one: Tagged, other: Tagged) -> int:
    left, right = _pair(one, other)
    return bool(left > right) - bool(left < right)


def _holds(parse: Callable[..., object]) -> Callable[..., bool]:
    def check(*arguments: Value) -> bool:
        try:
            parse(*arguments)
        except ValueError:
            return False
        return True

    return check


def _quantity(text: str) -> Tagged:
    return build_quantity(parse_quantity(text))


def _semver(text: str, normalize: bool = False) -> Tagged:
    return build_semver(_normalize(text) if normalize else text)


def _normalize(text: str) -> str:
    """`v1.02` to `1.2.0`: no leading v, no leading zeros, three numbers."""
    parts = text.removeprefix("v").split(".", 2)
    parts = [re.sub(r"^0+(?=\d)", "", part) for part in parts]
    if len(parts) < 3 and re.search("[+-]", parts[-1]):
        raise ValueError(f"{text!r}: a short version cannot contain pre-release or build metadata")
    return ".".join([*parts, "0", "0"][: max(3, len(parts))])


def _add(one: Tagged, other: Tagged | int, sign: int = 1) -> Tagged:
    return build_quantity(_amount(one) + sign * (other if isinstance(other, int) else _amount(other)))


def _as_integer(value: Tagged) -> int:
    amount = value[QUANTITY]
    if not isinstance(amount, int):
        raise ValueError("cannot convert value to integer")
    return amount


def _part(index: int) -> Callable[[Tagged], int]:
    return lambda value: read_order(str(value[SEMVER]))[0][index]


def _find(text: str, pattern: str) -> str:
    match = _pattern(pattern).search(text)
    return match[0] if match else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    found = [match[0] for match in _pattern(pattern).finditer(text)]
    return found if limit < 0 else found[:limit]


@lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.ASCII)
    except re.error as error:
        raise ValueError(f"illegal regex: {error}") from error


def _keys(values: Sequence[Value]) -> list[Any]:
    """What to compare the values of a list by."""
    tagged = [value if isinstance(value, dict) else None for value in values]
    return [
        value if tag is None else _amount(tag) if QUANTITY in tag else read_order(str(tag[SEMVER]))
        for value, tag in zip(values, tagged, strict=True)
    ]


def _is_sorted(values: list[Value]) -> bool:
    keys = _keys(values)
    return all(one <= other for one, other in pairwise(keys))


def _extreme(choose: Callable[..., int], name: str) -> Callable[[list[Value]], Value]:
    def run(values: list[Value]) -> Value:
        if not values:
            raise ValueError(f"{name} called on empty list")
        keys = _keys(values)
        return values[choose(range(len(values)), key=keys.__getitem__)]

    return run


def _index_of(values: list[Value], wanted: Value) -> int:
    return next((index for index, value in enumerate(values) if _same(value, wanted)), -1)


def _last_index_of(values: list[Value], wanted: Value) -> int:
    return next((index for index in reversed(range(len(values))) if _same(values[index], wanted)), -1)


def _same(one: Value, other: Value) -> bool:
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def _includes(value: Value, wanted: Value) -> bool:
    if isinstance(value, list) and len(value) > MAX_ATTRIBUTE_VALUES:
        raise ValueError(f"'includes' function cannot be applied to lists longer than {MAX_ATTRIBUTE_VALUES} values")
    return any(_same(one, wanted) for one in value) if isinstance(value, list) else _same(value, wanted)


MAX_ATTRIBUTE_VALUES = 48
_COMPARISONS: Sequence[tuple[str, Callable[[Tagged, Tagged], Value], str]] = (
    ("isGreaterThan", lambda one, other: _compare(one, other) > 0, "bool"),
    ("isLessThan", lambda one, other: _compare(one, other) < 0, "bool"),
    ("compareTo", _compare, "int"),
)
_ORDERED = ("int", "double", "bool", "string")

DECLARATIONS: Sequence[Declaration] = (
    Declaration(f"quantity(string) {QUANTITY}", _quantity),
    Declaration("isQuantity(string) bool", _holds(_quantity)),
    Declaration(f"semver(string) {SEMVER}", _semver),
    Declaration(f"semver(string, bool) {SEMVER}", _semver),
    Declaration("isSemver(string) bool", _holds(_semver)),
    Declaration("isSemver(string, bool) bool", _holds(_semver)),
    *(
        Declaration(f"{type_}.{name}({type_}) {result}", run)
        for name, run, result in _COMPARISONS
        for type_ in (QUANTITY, SEMVER)
    ),
    Declaration(f"{QUANTITY}.add({QUANTITY}) {QUANTITY}", _add),
    Declaration(f"{QUANTITY}.add(int) {QUANTITY}", _add),
    Declaration(f"{QUANTITY}.sub({QUANTITY}) {QUANTITY}", lambda one, other: _add(one, other, -1)),
    Declaration(f"{QUANTITY}.sub(int) {QUANTITY}", lambda one, other: _add(one, -other)),
    Declaration(f"sign({QUANTITY}) int", lambda one: (_amount(one) > 0) - (_amount(one) < 0)),
    Declaration(f"{QUANTITY}.asInteger() int", _as_integer),
    Declaration(f"{QUANTITY}.isInteger() bool", lambda one: isinstance(one[QUANTITY], int)),
    Declaration(f"{QUANTITY}.asApproximateFloat() double", lambda one: float(_amount(one))),
    Declaration(f"{SEMVER}.major() int", _part(0)),
    Declaration(f"{SEMVER}.minor() int", _part(1)),
    Declaration(f"{SEMVER}.patch() int", _part(2)),
    Declaration(f"ip(string) {IP}", network.build_ip),
    Declaration("isIP(string) bool", _holds(network.build_ip)),
    Declaration("ip.isCanonical(string) bool", network.is_canonical),
    Declaration(f"{IP}.family() int", lambda one: network.parse_ip(one[IP]).version),
    Declaration(f"{IP}.isUnspecified() bool", lambda one: network.parse_ip(one[IP]).is_unspecified),
    Declaration(f"{IP}.isLoopback() bool", lambda one: network.parse_ip(one[IP]).is_loopback),
    Declaration(f"{IP}.isLinkLocalMulticast() bool", network.is_link_local_multicast),
    Declaration(f"{IP}.isLinkLocalUnicast() bool", network.is_link_local_unicast),
    Declaration(f"{IP}.isGlobalUnicast() bool", network.is_global_unicast),
    Declaration(f"cidr(string) {CIDR}", network.build_cidr),
    Declaration("isCIDR(string) bool", _holds(network.build_cidr)),
    *(Declaration(f"{CIDR}.containsIP({one}) bool", network.contains_ip) for one in (IP, "string")),
    *(Declaration(f"{CIDR}.containsCIDR({one}) bool", network.contains_cidr) for one in (CIDR, "string")),
    Declaration(f"{CIDR}.ip() {IP}", lambda one: network.build_ip(one[CIDR].partition("/")[0])),
    Declaration(f"{CIDR}.masked() {CIDR}", network.mask),
    Declaration(f"{CIDR}.prefixLength() int", lambda one: int(one[CIDR].partition("/")[2])),
    Declaration("string.find(string) string", _find),
    Declaration("string.findAll(string) list", _find_all),
    Declaration("string.findAll(string, int) list", _find_all),
    Declaration("list.isSorted() bool", _is_sorted),
    *(Declaration(f"list<{one}>.sum() {one}", sum) for one in ("int", "double")),
    *(Declaration(f"list<{one}>.min() {one}", _extreme(min, "min")) for one in _ORDERED),
    *(Declaration(f"list<{one}>.max() {one}", _extreme(max, "max")) for one in _ORDERED),
    Declaration("dyn.includes(dyn) bool", _includes),
    Declaration("list.indexOf(dyn) int", _index_of),
    Declaration("list.lastIndexOf(dyn) int", _last_index_of),
    # Numbers of different types compare by value; their equality is a type error, as in Kubernetes.
    *(
        Declaration(f"_{mark}_({one}, {other}) bool", bool)
        for mark in ("<", "<=", ">", ">=")
        for one, other in (("int", "double"), ("double", "int"))
    ),
)
"""Every overload that the library does not have itself; those of operators only declare what it evaluates anyway."""
