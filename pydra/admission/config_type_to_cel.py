"""Translates the types of configs to CEL: the checks of a ValidatingAdmissionPolicy.

A check finds the same problems, with the same texts, as `pydra.backends.type_mismatches`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

import msgspec
from msgspec import inspect as mi

from pydra.admission.cel_builder import (
    NOTHING,
    Path,
    choose,
    for_each,
    gather,
    let,
    literal,
    member,
    problem,
    quote,
    show,
    show_text,
    translate_pattern,
)
from pydra.backends.type_mismatches import EXAMPLES, LEAVES, describe, is_quantity_type

Object = mi.StructType | mi.TypedDictType | mi.DataclassType
_OBJECTS = (mi.StructType, mi.TypedDictType, mi.DataclassType)
_KINDS = ("null", "bool", "int", "double", "string", "list", "map")
_NUMBERS_AND_TEXT = ("int", "double", "string")


class Value(msgspec.Struct, frozen=True):
    """A value of a config: the expression that names it, its place for users, and its place for `unchecked`."""

    name: str
    path: Path
    where: str
    text: str = ""
    """An expression that shows it; empty: it is shown from the name. An object shows all of its fields at once, since
    the expression for that is long, and the time to compile an expression grows with the square of its length."""

    def found(self, allowed: str) -> str:
        """Return the problem that this was found, and something else is allowed."""
        return problem(self.path.then(": found ").then_cel(self.text or show(self.name)).then(f", allowed: {allowed}"))

    def item(self, name: str, index: str) -> Value:
        """Return an entry of the list, which has this name."""
        return Value(name, self.path.then("[").then_cel(f"string({index})").then("]"), f"{self.where}[]")


class Checks:
    """Writes checks. `unchecked`: what they leave out, as `Kind.field: why`, each once and in order."""

    def __init__(self) -> None:
        self.unchecked: list[str] = []
        self._numbers = count(1)
        self._within: list[type] = []

    def check(self, wanted: mi.Type, value: Value) -> str:
        """Return the check of the value."""
        if isinstance(wanted, mi.Metadata):
            return self._annotated(wanted, value, self.check)
        if isinstance(wanted, mi.UnionType):
            return self._union(wanted, value)
        if isinstance(wanted, mi.AnyType | mi.RawType):
            return NOTHING
        kinds = self._kinds(wanted, value.where)
        if kinds is None:
            return NOTHING
        test = " || ".join(_test(kind, value.name) for kind in kinds)
        test = f"({test})" if len(kinds) > 1 else test
        if not isinstance(wanted, (*_OBJECTS, mi.CollectionType, mi.TupleType, mi.DictType)):
            conditions = [test, *self._conditions(wanted, value)]
            return choose(" && ".join(conditions), NOTHING, value.found(describe(wanted)))
        return choose(test, self._fit(wanted, value), value.found(describe(wanted)))

    def parts(self, wanted: Object, value: Value, header: tuple[str, ...]) -> Iterator[str]:
        """Yield the check of an object's fields in parts: one for each that is an object or a list, one for the rest.

        `header` are fields that the object may have beside its own.
        """
        self._within.append(wanted.cls)
        simple = tuple(field for field in wanted.fields if not _has_parts(field.type))
        own = (self._unknown(wanted, value, header), *self._tag(wanted, value))
        yield gather([*own, self._members(simple, value)])
        yield from (self._members((field,), value) for field in wanted.fields if field not in simple)
        self._within.pop()

    def fields(self, wanted: Object, value: Value) -> str:
        """Return the check of an object's fields."""
        if wanted.cls in self._within:
            self._leave(value.where, f"it is a {wanted.cls.__name__} within itself, to any depth")
            return NOTHING
        self._within.append(wanted.cls)
        own = (self._unknown(wanted, value), *self._tag(wanted, value))
        check = gather([*own, self._members(wanted.fields, value)])
        self._within.pop()
        return check

    def _unknown(self, wanted: Object, value: Value, header: tuple[str, ...] = ()) -> str:
        if hasattr(wanted.cls, "__post_init__"):
            self._leave(value.where, "rules between its fields, which the backend has in code")
        names = _names(wanted)
        known = ", ".join(map(quote, sorted({*names, *header})))
        key = f"k{next(self._numbers)}"
        allowed = ", ".join(sorted(names)) or "no fields"
        said = problem(member(value.path, key).then(f": unknown field, allowed: {allowed}"))
        return f'{value.name}.map({key}, !({key} in [{known}]), {said}).join("")'

    def _members(self, fields: tuple[mi.Field, ...], value: Value) -> str:
        """Return the check of these fields of an object; their values are shown at once if they are several."""
        shown = f"s{next(self._numbers)}"
        by_name = len(fields) == 1 and _has_parts(fields[0].type)
        check = gather([*self._each(fields, value, "" if by_name else shown)])
        listed = ", ".join(quote(field.encode_name) for field in fields)
        texts = f"{value.name}.transformMap(k, v, k in [{listed}], {show('v')})"
        return let(shown, texts, check) if f"{shown}[" in check else check

    def _each(self, fields: tuple[mi.Field, ...], value: Value, shown: str) -> Iterator[str]:
        for field in fields:
            name = quote(field.encode_name)
            path, where = value.path.then(f".{field.encode_name}"), f"{value.where}.{field.encode_name}"
            found, short = f"{value.name}[{name}]", f"v{next(self._numbers)}"
            text = f"{shown}[{name}]" if shown else ""
            if _has_parts(field.type):
                check = let(short, found, self.check(field.type, Value(short, path, where, text)))
            else:
                check = self.check(field.type, Value(found, path, where, text))
            absent = problem(path.then(f": missing, allowed: {describe(field.type)}")) if field.required else NOTHING
            if check != NOTHING or absent != NOTHING:
                yield choose(f"{name} in {value.name}", check, absent)

    def _tag(self, wanted: Object, value: Value) -> Iterator[str]:
        if not isinstance(wanted, mi.StructType) or wanted.tag_field is None:
            return
        name = quote(wanted.tag_field)
        tag = Value(f"{value.name}[{name}]", value.path.then(f".{wanted.tag_field}"), value.where)
        fits = f"!({name} in {value.name}) || {tag.name} == null || {tag.name} == {literal(wanted.tag)}"
        yield choose(fits, NOTHING, tag.found(literal(wanted.tag)))

    def _leave(self, where: str, why: str) -> None:
        note = f"{where}: {why}"
        if note not in self.unchecked:
            self.unchecked.append(note)

    def _annotated(self, wanted: mi.Metadata, value: Value, check: Callable[[mi.Type, Value], str]) -> str:
        if not is_quantity_type(wanted):
            return check(wanted.type, value)
        fits = f"type({value.name}) == int || type({value.name}) == string && isQuantity({value.name})"
        return choose(f"!({fits})", value.found(EXAMPLES), NOTHING)

    def _union(self, wanted: mi.UnionType, value: Value) -> str:
        """Build the check for a union: the members of the value's JSON kind decide; with objects, their tag."""
        if isinstance(wanted.types[-1], mi.NoneType) and len(wanted.types) == 2 and not _has_parts(wanted):
            check = self.check(wanted.types[0], value)
            return choose(f"{value.name} == null", NOTHING, check) if check != NOTHING else NOTHING
        by_kind: dict[str, list[mi.Type]] = {}
        for one in wanted.types:
            kinds = _KINDS if isinstance(_bare(one), mi.AnyType | mi.RawType) else self._kinds(one, value.where)
            for kind in kinds or _KINDS:
                by_kind.setdefault(kind, []).append(one)
        wrong = value.found(describe(wanted))
        chain = wrong
        for kind, members in reversed(list(by_kind.items())):
            tagged = [one for one in map(_bare, members) if isinstance(one, mi.StructType)]
            if kind == "map" and len(tagged) > 1:
                fits = self._tagged(tagged, value)
            else:
                fits = _any_of([self._fit(one, value) for one in members], wrong)
            chain = choose(_test(kind, value.name), fits, chain)
        return chain

    def _tagged(self, objects: list[mi.StructType], value: Value) -> str:
        name = quote(str(objects[0].tag_field))
        tag = Value(f"{value.name}[{name}]", value.path.then(f".{objects[0].tag_field}"), value.where)
        allowed = ", ".join(sorted(literal(one.tag) for one in objects))
        chain = tag.found(allowed)
        for one in reversed(objects):
            chain = choose(f"{tag.name} == {literal(one.tag)}", self.fields(one, value), chain)
        absent = problem(tag.path.then(f": missing, allowed: {allowed}"))
        return choose(f"!({name} in {value.name})", absent, chain)

    def _fit(self, wanted: mi.Type, value: Value) -> str:
        """Return the check of a value that is of one of the type's JSON kinds."""
        match wanted:
            case mi.Metadata():
                return self._annotated(wanted, value, self._fit)
            case mi.StructType(array_like=True):
                return NOTHING
            case mi.StructType() | mi.TypedDictType() | mi.DataclassType():
                return self.fields(wanted, value)
            case mi.CollectionType():
                index, item = f"i{next(self._numbers)}", f"v{next(self._numbers)}"
                check = self.check(wanted.item_type, value.item(item, index))
                return self._sized(wanted, value, for_each(value.name, f"{index}, {item}", check))
            case mi.TupleType(item_types=items):
                each = gather([*self._positions(items, value)])
                return choose(f"size({value.name}) == {len(items)}", each, value.found(describe(wanted)))
            case mi.DictType():
                key, item = f"k{next(self._numbers)}", f"v{next(self._numbers)}"
                named = value.path.then(" key ").then_cel(show_text(key))
                checks = [
                    self.check(wanted.key_type, Value(key, named, f"{value.where} keys")),
                    self.check(wanted.value_type, Value(item, member(value.path, key), f"{value.where}.*")),
                ]
                return self._sized(wanted, value, for_each(value.name, f"{key}, {item}", gather(checks)))
            case _:
                conditions = [*self._conditions(wanted, value)]
                wrong = value.found(describe(wanted))
                return choose(" && ".join(conditions), NOTHING, wrong) if conditions else NOTHING

    def _positions(self, items: tuple[mi.Type, ...], value: Value) -> Iterator[str]:
        for index, one in enumerate(items):
            short = f"v{next(self._numbers)}"
            inner = Value(short, value.path.then(f"[{index}]"), f"{value.where}[{index}]")
            yield let(short, f"{value.name}[{index}]", self.check(one, inner))

    def _sized(self, wanted: mi.CollectionType | mi.DictType, value: Value, each: str) -> str:
        conditions = [*_lengths(wanted, value.name)]
        return choose(" && ".join(conditions), each, value.found(describe(wanted))) if conditions else each

    def _conditions(self, wanted: mi.Type, value: Value) -> Iterator[str]:
        match wanted:
            case mi.EnumType() | mi.LiteralType():
                values = _values(wanted)
                if all(isinstance(one, str) for one in values):
                    yield f"{value.name} in [{', '.join(map(literal, values))}]"
                else:  # to `in`, 1 is 1.0
                    tests = (f"{_test(_kind_of(one), value.name)} && {value.name} == {literal(one)}" for one in values)
                    yield f"({' || '.join(tests)})"
            case mi.StrType():
                yield from _lengths(wanted, value.name)
                if wanted.pattern is not None:
                    yield from self._matches(wanted.pattern, value)
            case mi.IntType() | mi.FloatType():
                yield from self._bounds(wanted, value)

    def _matches(self, pattern: str, value: Value) -> Iterator[str]:
        translated = translate_pattern(pattern)
        if translated is None:
            self._leave(value.where, f"the pattern {pattern}, which CEL's regular expressions do not have")
        else:
            yield f"{value.name}.matches({quote(translated)})"

    def _bounds(self, wanted: mi.IntType | mi.FloatType, value: Value) -> Iterator[str]:
        signs = ((">", wanted.gt), (">=", wanted.ge), ("<", wanted.lt), ("<=", wanted.le))
        yield from (f"{value.name} {sign} {literal(bound)}" for sign, bound in signs if bound is not None)
        if wanted.multiple_of is None:
            return
        if isinstance(wanted, mi.IntType):
            yield f"{value.name} % {literal(wanted.multiple_of)} == 0"
        else:
            self._leave(value.where, f"a multiple of {wanted.multiple_of}")

    def _kinds(self, wanted: mi.Type, where: str) -> tuple[str, ...] | None:
        """Return the JSON kinds of values that a type may have; None for those that CEL cannot inspect."""
        wanted = _bare(wanted)
        kinds = _KINDS_OF.get(type(wanted))
        match wanted:
            case mi.StructType(array_like=True):
                kinds = None
                self._leave(where, "a list whose positions are fields")
            case mi.UnionType(types=types):
                kinds = tuple(dict.fromkeys(kind for one in types for kind in self._kinds(one, where) or _KINDS))
            case mi.EnumType() | mi.LiteralType():
                kinds = tuple(dict.fromkeys(_kind_of(one) for one in _values(wanted)))
            case mi.CollectionType():
                kinds = ("list",)
            case _ if type(wanted) in LEAVES:
                kinds = _NUMBERS_AND_TEXT if isinstance(wanted, mi.DecimalType) else ("string",)
                self._leave(where, f"that it is a {describe(wanted).removeprefix('a ')}")
            case _ if kinds is None:
                self._leave(where, "a type of its own")
        return kinds


_KINDS_OF: Mapping[type[mi.Type], tuple[str, ...]] = {
    mi.NoneType: ("null",),
    mi.BoolType: ("bool",),
    mi.IntType: ("int",),
    mi.FloatType: ("int", "double"),
    mi.StrType: ("string",),
    mi.TupleType: ("list",),
    mi.DictType: ("map",),
    mi.StructType: ("map",),
    mi.TypedDictType: ("map",),
    mi.DataclassType: ("map",),
}


def _names(wanted: Object) -> list[str]:
    tag = getattr(wanted, "tag_field", None)
    return [field.encode_name for field in wanted.fields] + ([tag] if tag else [])


def _has_parts(wanted: mi.Type) -> bool:
    """Tell whether values may be objects or lists, whose checks say what the value is called many times."""
    wanted = _bare(wanted)
    if isinstance(wanted, mi.UnionType):
        return any(map(_has_parts, wanted.types))
    return isinstance(wanted, (*_OBJECTS, mi.CollectionType, mi.TupleType, mi.DictType))


def _any_of(checks: list[str], otherwise: str) -> str:
    """Build the check that succeeds if one of several does."""
    if len(checks) == 1 or NOTHING in checks:
        return NOTHING if NOTHING in checks else checks[0]
    return choose(" || ".join(f"({check}) == {NOTHING}" for check in checks), NOTHING, otherwise)


def _bare(wanted: mi.Type) -> mi.Type:
    while isinstance(wanted, mi.Metadata):
        wanted = wanted.type
    return wanted


def _test(kind: str, value: str) -> str:
    return f"{value} == null" if kind == "null" else f"type({value}) == {kind}"


def _values(wanted: mi.EnumType | mi.LiteralType) -> tuple[Any, ...]:
    if isinstance(wanted, mi.LiteralType):
        return wanted.values
    return tuple(member.value for member in wanted.cls)


def _kind_of(value: object) -> str:
    """Return the JSON kind of a value of an enum or a Literal: these have texts, integers and null."""
    return "null" if value is None else "int" if isinstance(value, int) else "string"


def _lengths(wanted: mi.StrType | mi.CollectionType | mi.DictType, value: str) -> Iterator[str]:
    if wanted.min_length is not None:
        yield f"size({value}) >= {wanted.min_length}"
    if wanted.max_length is not None:
        yield f"size({value}) <= {wanted.max_length}"
