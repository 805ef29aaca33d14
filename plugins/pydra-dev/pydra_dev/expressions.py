"""The part of CEL that the first-fit allocator evaluates; everything else is refused by name. Pure.

Understood: `device.driver`, `device.attributes["domain"].name` (or `["name"]`), `device.capacity[...]`,
`device.allowMultipleAllocations`; strings, numbers, booleans, lists; `== != < <= > >= in ! && ||` and
parentheses; `startsWith endsWith contains matches` on strings; `quantity()`, `semver()` and on both
`compareTo isGreaterThan isLessThan`. As in Kubernetes, an unknown domain is empty, an unknown name in
it is an error, and names without a domain lie in the driver's.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

import msgspec

from pydra_dev import schema
from pydra_dev.quantity import parse_quantity

Node: TypeAlias = Callable[[Mapping[str, Any]], Any]
"""A compiled expression: variables to value."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<name>[A-Za-z_]\w*)|(?P<mark>==|!=|<=|>=|&&|\|\||[-<>!()\[\],.?:+*/%]))"""
)
_COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class UnsupportedExpressionError(Exception):
    """The expression uses something of CEL that this evaluator does not support, or is not CEL."""


class EvaluationError(Exception):
    """The expression cannot be evaluated for this device."""


class QuantityValue(msgspec.Struct, frozen=True, order=True):
    """A quantity to compare with others."""

    amount: Fraction


class Semver(msgspec.Struct, frozen=True, order=True):
    """A version to compare with others; a release is later than its pre-releases."""

    numbers: tuple[int, int, int]
    release: bool
    prerelease: tuple[tuple[bool, int, str], ...]


class Domains(dict[str, Mapping[str, Any]]):
    """Values by domain and name; a domain that nobody has is empty."""

    def __missing__(self, domain: str) -> Mapping[str, Any]:
        return {}


def compile_expression(text: str) -> Callable[[str, schema.Device], bool]:
    """A function of a driver's name and a device; raises UnsupportedExpressionError.

    The function raises EvaluationError when the device lacks what the expression reads, or when
    the result is not a boolean.
    """
    node = _Parser(text).parse()

    def evaluate(driver: str, device: schema.Device) -> bool:
        result = node({"device": build_variables(driver, device)})
        if not isinstance(result, bool):
            raise EvaluationError(f"the result is {result!r}, not a boolean")
        return result

    return evaluate


def build_variables(driver: str, device: schema.Device) -> Mapping[str, Any]:
    """What `device` is to an expression."""
    attributes, capacity = Domains(), Domains()
    for name, attribute in device.attributes.items():
        _place(attributes, driver, name, read_attribute(attribute))
    for name, amount in device.capacity.items():
        _place(capacity, driver, name, QuantityValue(parse_quantity(amount.value)))
    return {
        "driver": driver,
        "attributes": attributes,
        "capacity": capacity,
        "allowMultipleAllocations": bool(device.allow_multiple_allocations),
    }


def _place(domains: Domains, driver: str, name: str, value: Any) -> None:
    domain, slash, identifier = name.rpartition("/")
    members = domains.setdefault(domain if slash else driver, {})
    assert isinstance(members, dict)
    members[identifier] = value


def read_attribute(attribute: schema.Attribute) -> Any:
    """The attribute's value, a version as a Semver."""
    if attribute.version is not None:
        return parse_semver(attribute.version)
    if attribute.versions is not None:
        return [parse_semver(version) for version in attribute.versions]
    values = (attribute.int_, attribute.bool_, attribute.string, attribute.ints, attribute.bools, attribute.strings)
    value = next(value for value in values if value is not None)
    return list(value) if isinstance(value, tuple) else value


def parse_semver(text: str) -> Semver:
    """`1.2.3-rc.1+build` to something that compares; raises EvaluationError."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", text)
    if match is None:
        raise EvaluationError(f"{text!r} is not a semantic version")
    parts = match[4].split(".") if match[4] else []
    order = tuple((not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts)
    return Semver((int(match[1]), int(match[2]), int(match[3])), not parts, order)


class _Parser:
    """Recursive descent over the tokens, one method per level of precedence."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _split(text)
        self._at = 0

    def parse(self) -> Node:
        node = self._or()
        if self._at < len(self._tokens):
            raise self._unsupported(self._tokens[self._at])
        return node

    def _unsupported(self, what: str) -> UnsupportedExpressionError:
        return UnsupportedExpressionError(f"cannot evaluate {what!r} in the CEL expression {self._text!r}")

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            raise self._unsupported(found or "the end")

    def _or(self) -> Node:
        node = self._and()
        while self._peek() == "||":
            self._next()
            node = _short_circuit(node, self._and(), stop=True)
        return node

    def _and(self) -> Node:
        node = self._relation()
        while self._peek() == "&&":
            self._next()
            node = _short_circuit(node, self._relation(), stop=False)
        return node

    def _relation(self) -> Node:
        node = self._unary()
        while (mark := self._peek()) in {"==", "!=", "in", *_COMPARE}:
            self._next()
            node = _relate(mark, node, self._unary())
        return node

    def _unary(self) -> Node:
        if self._peek() == "!":
            self._next()
            return _negate(self._unary())
        if self._peek() == "-":
            self._next()
            inner = self._unary()
            return lambda variables: -_require(inner(variables), (int, float))
        return self._postfix(self._primary())

    def _postfix(self, node: Node) -> Node:
        while self._peek() in {".", "["}:
            if self._next() == "[":
                node = _index(node, self._or())
                self._expect("]")
                continue
            name = self._next()
            if not name.isidentifier():
                raise self._unsupported(f".{name}")
            node = self._method(node, name) if self._peek() == "(" else _index(node, _constant(name))
        return node

    def _method(self, node: Node, name: str) -> Node:
        if name not in {*_STRING_METHODS, "compareTo", "isGreaterThan", "isLessThan"}:
            raise self._unsupported(f"{name}()")
        self._next()
        argument = self._or()
        self._expect(")")
        return _call_method(name, node, argument)

    def _primary(self) -> Node:
        word = self._next()
        if word == "(":
            node = self._or()
            self._expect(")")
            return node
        if word == "[":
            return self._list()
        if word in {"quantity", "semver"} and self._peek() == "(":
            return self._conversion(word)
        if word == "device":
            return lambda variables: variables["device"]
        literal = _read_literal(word)
        if literal is None:
            raise self._unsupported(word or "the end")
        return _constant(literal)

    def _list(self) -> Node:
        items: list[Node] = []
        while self._peek() != "]":
            items.append(self._or())
            if self._peek() != "]":
                self._expect(",")
        self._next()
        return lambda variables: [item(variables) for item in items]

    def _conversion(self, name: str) -> Node:
        self._next()
        argument = self._or()
        self._expect(")")
        if name == "semver":
            return lambda variables: parse_semver(_require(argument(variables), str))
        return lambda variables: _read_quantity(_require(argument(variables), str))


def _split(text: str) -> list[str]:
    tokens, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise UnsupportedExpressionError(f"cannot read the CEL expression {text!r} at {text[at : at + 10]!r}")
        tokens.append(match[0].strip())
        at = match.end()
    return tokens


def _read_literal(word: str) -> str | float | bool | None:
    if word[:1] in {'"', "'"}:
        return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), word[1:-1])
    if word[:1].isdecimal():
        return float(word) if "." in word else int(word)
    return {"true": True, "false": False}.get(word)


def _read_quantity(text: str) -> QuantityValue:
    try:
        return QuantityValue(parse_quantity(text))
    except ValueError as error:
        raise EvaluationError(str(error)) from error


def _search(text: str, pattern: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error as error:
        raise EvaluationError(f"{pattern!r} is not a regular expression: {error}") from error


_STRING_METHODS: Mapping[str, Callable[[str, str], bool]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": str.__contains__,
    "matches": _search,
}


def _constant(value: Any) -> Node:
    return lambda _variables: value


def _require(value: Any, type_: type | tuple[type, ...]) -> Any:
    if not isinstance(value, type_) or (isinstance(value, bool) and type_ is not bool):
        raise EvaluationError(f"no such overload for {value!r}")
    return value


def _truth(node: Node, variables: Mapping[str, Any]) -> bool:
    return bool(_require(node(variables), bool))


def _negate(node: Node) -> Node:
    return lambda variables: not _truth(node, variables)


def _short_circuit(left: Node, right: Node, *, stop: bool) -> Node:
    """`||` with `stop` true, `&&` with `stop` false: one side that decides makes the other's error irrelevant."""

    def evaluate(variables: Mapping[str, Any]) -> bool:
        try:
            if _truth(left, variables) is stop:
                return stop
        except EvaluationError:
            if _truth(right, variables) is stop:
                return stop
            raise
        return _truth(right, variables)

    return evaluate


def _equal(left: Any, right: Any) -> bool:
    return _same_type(left, right) and bool(left == right)


def _same_type(left: Any, right: Any) -> bool:
    numbers = (int, float)
    if isinstance(left, bool) or isinstance(right, bool):
        return isinstance(left, bool) and isinstance(right, bool)
    return type(left) is type(right) or (isinstance(left, numbers) and isinstance(right, numbers))


def _relate(mark: str, left: Node, right: Node) -> Node:
    def evaluate(variables: Mapping[str, Any]) -> bool:
        one, other = left(variables), right(variables)
        if mark in {"==", "!="}:
            return _equal(one, other) is (mark == "==")
        if mark == "in":
            return any(_equal(one, item) for item in _require(other, (dict, list)))
        if not _same_type(one, other):
            raise EvaluationError(f"no such overload: {one!r} {mark} {other!r}")
        return bool(_COMPARE[mark](one, other))

    return evaluate


def _index(node: Node, key: Node) -> Node:
    def evaluate(variables: Mapping[str, Any]) -> Any:
        container, wanted = node(variables), key(variables)
        if isinstance(container, (Mapping, list)):
            try:
                return container[wanted]
            except (KeyError, IndexError, TypeError) as error:
                raise EvaluationError(f"no such key: {wanted}") from error
        raise EvaluationError(f"no such overload: {container!r}[{wanted!r}]")

    return evaluate


def _call_method(name: str, node: Node, argument: Node) -> Node:
    def evaluate(variables: Mapping[str, Any]) -> bool | int:
        own, other = node(variables), argument(variables)
        if name in _STRING_METHODS:
            return _STRING_METHODS[name](_require(own, str), _require(other, str))
        if type(own) is not type(other) or not isinstance(own, (QuantityValue, Semver)):
            raise EvaluationError(f"no such overload: {own!r}.{name}({other!r})")
        order: int = (own > other) - (own < other)
        return order if name == "compareTo" else (order > 0 if name == "isGreaterThan" else order < 0)

    return evaluate
