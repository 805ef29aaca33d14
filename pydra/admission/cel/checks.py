"""From a type to the CEL that finds what does not fit it: the rules and the words of `pydra.backends.mismatches`.

Pure. What CEL cannot tell is left to the webhook and to the node, and noted in `Checks.unchecked`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from msgspec import inspect as mi

from pydra.admission.cel.patterns import translate_pattern
from pydra.admission.cel.text import (
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
)
from pydra.backends.quantities import EXAMPLES, is_quantity_type
from pydra.backends.wording import LEAVES, describe

Object = mi.StructType | mi.TypedDictType | mi.DataclassType
_OBJECTS = (mi.StructType, mi.TypedDictType, mi.DataclassType)
_KINDS = ("null", "bool", "int", "double", "string", "list", "map")
_NUMBERS_AND_TEXT = ("int", "double", "string")


class Checks:
    """Writes checks. `unchecked`: what they leave out, as `Kind.field: why`, each once and in order."""

    def __init__(self) -> None:
        self.unchecked: list[str] = []
        self._names = count(1)
        self._within: list[type] = []

    def check(self, wanted: mi.Type, value: str, path: Path, where: str) -> str:
        """The check of the value that the expression `value` names. `where` is its place, for `unchecked`."""
        if isinstance(wanted, mi.Metadata):
            return self._annotated(wanted, value, path, where)
        if isinstance(wanted, mi.UnionType):
            return self._union(wanted, value, path, where)
        if isinstance(wanted, mi.AnyType | mi.RawType):
            return NOTHING
        kinds = self._kinds(wanted, where)
        if kinds is None:
            return NOTHING
        test = " || ".join(_test(kind, value) for kind in kinds)
        test = f"({test})" if len(kinds) > 1 else test
        if not isinstance(wanted, (*_OBJECTS, mi.CollectionType, mi.TupleType, mi.DictType)):
            conditions = [test, *self._conditions(wanted, value, where)]
            return choose(" && ".join(conditions), NOTHING, _found(wanted, value, path))
        return choose(test, self._fit(wanted, value, path, where), _found(wanted, value, path))

    def fields(self, wanted: Object, value: str, path: Path, where: str, *, header: tuple[str, ...] = ()) -> str:
        """The check of an object's fields; those of `header` are known beside its own."""
        if wanted.cls in self._within:
            self._leave(where, f"it is a {wanted.cls.__name__} within itself, to any depth")
            return NOTHING
        if hasattr(wanted.cls, "__post_init__"):
            self._leave(where, "rules between its fields, which the backend has in code")
        tag = getattr(wanted, "tag_field", None)
        names = [field.encode_name for field in wanted.fields] + ([tag] if tag else [])
        self._within.append(wanted.cls)
        try:
            known = ", ".join(map(quote, sorted({*names, *header})))
            key = f"k{next(self._names)}"
            said = problem(
                member(path, key).then(f": unknown field, allowed: {', '.join(sorted(names)) or 'no fields'}")
            )
            unknown = f'{value}.map({key}, !({key} in [{known}]), {said}).join("")'
            return gather([unknown, *self._tag(wanted, value, path), *self._each(wanted, value, path, where)])
        finally:
            self._within.pop()

    def _each(self, wanted: Object, value: str, path: Path, where: str) -> Iterator[str]:
        for field in wanted.fields:
            inner = path.then(f".{field.encode_name}")
            name, short = quote(field.encode_name), f"v{next(self._names)}"
            check = self.check(field.type, short, inner, f"{where}.{field.encode_name}")
            check = let(short, f"{value}[{name}]", check)
            absent = problem(inner.then(f": missing, allowed: {describe(field.type)}")) if field.required else NOTHING
            if check != NOTHING or absent != NOTHING:
                yield choose(f"{name} in {value}", check, absent)

    def _tag(self, wanted: Object, value: str, path: Path) -> Iterator[str]:
        if not isinstance(wanted, mi.StructType) or wanted.tag_field is None:
            return
        name = quote(wanted.tag_field)
        said = f": found {{}}, allowed: {literal(wanted.tag)}"
        inner = path.then(f".{wanted.tag_field}")
        wrong = problem(inner.then(": found ").then_cel(show(f"{value}[{name}]")).then(said.partition("{}")[2]))
        fits = f"!({name} in {value}) || {value}[{name}] == null || {value}[{name}] == {literal(wanted.tag)}"
        yield choose(fits, NOTHING, wrong)

    def _leave(self, where: str, why: str) -> None:
        note = f"{where}: {why}"
        if note not in self.unchecked:
            self.unchecked.append(note)

    def _annotated(self, wanted: mi.Metadata, value: str, path: Path, where: str) -> str:
        check = self.check(wanted.type, value, path, where)
        if not is_quantity_type(wanted):
            return check
        wrong = problem(path.then(": found ").then_cel(show(value)).then(f", allowed: {EXAMPLES}"))
        return gather([check, choose(f"type({value}) == string && !isQuantity({value})", wrong, NOTHING)])

    def _union(self, wanted: mi.UnionType, value: str, path: Path, where: str) -> str:
        """Those of the value's JSON kind decide: one of them, or any of several numbers; with objects, their tag."""
        by_kind: dict[str, list[mi.Type]] = {}
        for one in wanted.types:
            kinds = _KINDS if isinstance(_bare(one), mi.AnyType | mi.RawType) else self._kinds(one, where)
            for kind in kinds or _KINDS:
                by_kind.setdefault(kind, []).append(one)
        chain = _found(wanted, value, path)
        for kind, members in reversed(list(by_kind.items())):
            tagged = [one for one in map(_bare, members) if isinstance(one, mi.StructType)]
            if kind == "map" and len(tagged) > 1:
                fits = self._tagged(tagged, value, path, where)
            else:
                checks = [self._fit_any(one, value, path, where) for one in members]
                fits = _any_of(checks, _found(wanted, value, path))
            chain = choose(_test(kind, value), fits, chain)
        return chain

    def _tagged(self, objects: list[mi.StructType], value: str, path: Path, where: str) -> str:
        tag = str(objects[0].tag_field)
        field, inner = f"{value}[{quote(tag)}]", path.then(f".{tag}")
        allowed = ", ".join(sorted(literal(one.tag) for one in objects))
        chain = problem(inner.then(": found ").then_cel(show(field)).then(f", allowed: {allowed}"))
        for one in reversed(objects):
            chain = choose(f"{field} == {literal(one.tag)}", self.fields(one, value, path, where), chain)
        return choose(f"!({quote(tag)} in {value})", problem(inner.then(f": missing, allowed: {allowed}")), chain)

    def _fit_any(self, wanted: mi.Type, value: str, path: Path, where: str) -> str:
        if isinstance(wanted, mi.Metadata):
            return self._annotated(wanted, value, path, where)
        return self._fit(wanted, value, path, where)

    def _fit(self, wanted: mi.Type, value: str, path: Path, where: str) -> str:
        """The check of a value that is of one of the type's JSON kinds."""
        match wanted:
            case mi.StructType(array_like=True):
                return NOTHING
            case mi.StructType() | mi.TypedDictType() | mi.DataclassType():
                return self.fields(wanted, value, path, where)
            case mi.CollectionType():
                index, item = f"i{next(self._names)}", f"v{next(self._names)}"
                inner = path.then("[").then_cel(f"string({index})").then("]")
                each = for_each(value, f"{index}, {item}", self.check(wanted.item_type, item, inner, f"{where}[]"))
                return self._sized(wanted, value, path, each)
            case mi.TupleType(item_types=items):
                each = gather([*self._positions(items, value, path, where)])
                return choose(f"size({value}) == {len(items)}", each, _found(wanted, value, path))
            case mi.DictType():
                key, item = f"k{next(self._names)}", f"v{next(self._names)}"
                named = path.then(" key ").then_cel(show_text(key))
                checks = [
                    self.check(wanted.key_type, key, named, f"{where} keys"),
                    self.check(wanted.value_type, item, member(path, key), f"{where}.*"),
                ]
                return self._sized(wanted, value, path, for_each(value, f"{key}, {item}", gather(checks)))
            case _:
                conditions = [*self._conditions(wanted, value, where)]
                return choose(" && ".join(conditions), NOTHING, _found(wanted, value, path)) if conditions else NOTHING

    def _positions(self, items: tuple[mi.Type, ...], value: str, path: Path, where: str) -> Iterator[str]:
        for index, one in enumerate(items):
            short = f"v{next(self._names)}"
            check = self.check(one, short, path.then(f"[{index}]"), f"{where}[{index}]")
            yield let(short, f"{value}[{index}]", check)

    def _sized(self, wanted: mi.CollectionType | mi.DictType, value: str, path: Path, each: str) -> str:
        conditions = [*_lengths(wanted, value)]
        return choose(" && ".join(conditions), each, _found(wanted, value, path)) if conditions else each

    def _conditions(self, wanted: mi.Type, value: str, where: str) -> Iterator[str]:
        match wanted:
            case mi.EnumType() | mi.LiteralType():
                values = _values(wanted)
                if all(isinstance(one, str) for one in values):
                    yield f"{value} in [{', '.join(map(literal, values))}]"
                else:  # to `in`, 1 is 1.0
                    tests = (f"{_test(_kind_of(one), value)} && {value} == {literal(one)}" for one in values)
                    yield f"({' || '.join(tests)})"
            case mi.StrType():
                yield from _lengths(wanted, value)
                if wanted.pattern is not None:
                    yield from self._matches(wanted.pattern, value, where)
            case mi.IntType() | mi.FloatType():
                yield from self._bounds(wanted, value, where)

    def _matches(self, pattern: str, value: str, where: str) -> Iterator[str]:
        translated = translate_pattern(pattern)
        if translated is None:
            self._leave(where, f"the pattern {pattern}, which CEL's regular expressions do not have")
        else:
            yield f"{value}.matches({quote(translated)})"

    def _bounds(self, wanted: mi.IntType | mi.FloatType, value: str, where: str) -> Iterator[str]:
        signs = ((">", wanted.gt), (">=", wanted.ge), ("<", wanted.lt), ("<=", wanted.le))
        yield from (f"{value} {sign} {literal(bound)}" for sign, bound in signs if bound is not None)
        if wanted.multiple_of is None:
            return
        if isinstance(wanted, mi.IntType):
            yield f"{value} % {literal(wanted.multiple_of)} == 0"
        else:
            self._leave(where, f"a multiple of {wanted.multiple_of}")

    def _kinds(self, wanted: mi.Type, where: str) -> tuple[str, ...] | None:
        """The JSON kinds of values that a type may have; None for those that CEL cannot look into."""
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


def _any_of(checks: list[str], otherwise: str) -> str:
    """The check, or that one of several finds nothing."""
    if len(checks) == 1 or NOTHING in checks:
        return NOTHING if NOTHING in checks else checks[0]
    return choose(" || ".join(f"({check}) == {NOTHING}" for check in checks), NOTHING, otherwise)


def _bare(wanted: mi.Type) -> mi.Type:
    while isinstance(wanted, mi.Metadata):
        wanted = wanted.type
    return wanted


def _test(kind: str, value: str) -> str:
    return f"{value} == null" if kind == "null" else f"type({value}) == {kind}"


def _found(wanted: mi.Type, value: str, path: Path) -> str:
    return problem(path.then(": found ").then_cel(show(value)).then(f", allowed: {describe(wanted)}"))


def _values(wanted: mi.EnumType | mi.LiteralType) -> tuple[Any, ...]:
    if isinstance(wanted, mi.LiteralType):
        return wanted.values
    return tuple(member.value for member in wanted.cls)


def _kind_of(value: object) -> str:
    """The JSON kind of a value of an enum or a Literal: these have texts, integers and null."""
    return "null" if value is None else "int" if isinstance(value, int) else "string"


def _lengths(wanted: mi.StrType | mi.CollectionType | mi.DictType, value: str) -> Iterator[str]:
    if wanted.min_length is not None:
        yield f"size({value}) >= {wanted.min_length}"
    if wanted.max_length is not None:
        yield f"size({value}) <= {wanted.max_length}"
