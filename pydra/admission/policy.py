"""Generates a ValidatingAdmissionPolicy and its binding, which check a driver's opaque configs.

The policy decides like the webhook: one message has all problems, each with its path, and what was stored before
passes. Each type is translated to CEL that reports the same problems, with the same texts, as
`pydra.backends.json_type_check`; what CEL cannot check is left to the webhook and the node, and an annotation lists it.

Sources: k8s.io/api/admissionregistration/v1; a message is one line of at most 5 KiB (MaxEvaluatedMessageExpression-
SizeBytes), an expression may cost 1,000,000 and a binding 10,000,000 (k8s.io/apiserver/pkg/apis/cel/config.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, cast

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
from pydra.admission.config_types import KnownBackend
from pydra.admission.review import OPERATIONS, PLACES, build_rules
from pydra.backends.claim_config import describe_kinds
from pydra.backends.json_type_check import EXAMPLES, is_quantity_type, read_type
from pydra.backends.type_messages import LEAVES, describe

UNCHECKED = "pydra.dev/unchecked"
"""The annotation that lists what the policy leaves to the webhook, or to the node."""

_MOST_SHOWN = 1200
"""Characters of a message: within the limit even if each took four bytes."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The two objects, and what the policy cannot check."""

    policy: dict[str, Any]
    binding: dict[str, Any]
    unchecked: tuple[str, ...]


def build_policy(backend: KnownBackend) -> Policy:
    """Return the policy for the backend's kinds of config. Deterministic."""
    checks = Checks()
    variables = [*_places(backend), *_problem_variables(backend, checks)]
    name = f"opaque-config.{backend.driver}"
    unchecked = tuple(checks.unchecked)
    annotations = {"annotations": {UNCHECKED: "\n".join(unchecked)}} if unchecked else {}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name, **annotations},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "resourceRules": build_rules(),
            },
            "variables": [{"name": key, "expression": expression} for key, expression in variables],
            "validations": [
                {
                    "expression": f"variables.problems == {NOTHING}",
                    "message": f"the opaque config for {backend.driver} is wrong",
                    "messageExpression": _message(),
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    return Policy(policy=policy, binding=binding, unchecked=unchecked)


def _places(backend: KnownBackend) -> Iterator[tuple[str, str]]:
    """Yield the variables for the place of the configs, and for the driver's configs that are not yet stored.

    Objects are dyn: the type checker of policies knows the three kinds apart, and would warn of each other's fields.
    """
    yield "resource", "request.resource.resource"
    place = entries = stored = ""  # what was stored matters where an update can bring a config
    for resource, way in PLACES.items():
        test = f"variables.resource == {quote(resource)} ? "
        fields = ".?".join(way)
        place += f"{test}{quote('.'.join(way))}\n: "
        entries += f"{test}dyn(object).?{fields}.orValue([])\n: "
        if "UPDATE" in OPERATIONS[resource]:
            stored += f"{test}dyn(oldObject).?{fields}.orValue([])\n: "
    yield "place", f"{place}{NOTHING}"
    yield "entries", f"{entries}[]"
    yield "stored", f"oldObject == null ? []\n: {stored}[]"
    opaque = "has(entry.opaque) && has(entry.opaque.driver)"
    yield "known", f"variables.stored.map(entry, {opaque}, entry.opaque)"
    ours = f"{opaque} && entry.opaque.driver == {quote(backend.driver)} && !(entry.opaque in variables.known)"
    at = 'variables.place + "[" + string(index) + "].opaque.parameters"'
    found = f'{{"at": dyn({at}), "parameters": dyn(has(entry.opaque.parameters) ? entry.opaque.parameters : {{}})}}'
    yield "configs", f"variables.entries.transformList(index, entry,\n  {ours},\n  {found}\n)"


def _problem_variables(backend: KnownBackend, checks: Checks) -> Iterator[tuple[str, str]]:
    """Yield a variable for each kind with the problems of its configs, and one with all problems."""
    names = ["headers"]
    yield "headers", _per_config("true", _header(sorted(backend.types)))
    for index, kind in enumerate(sorted(backend.types)):
        api_version, _, word = kind.rpartition("/")
        ours = (
            f'config.parameters.?apiVersion.orValue("") == {quote(api_version)}'
            f' && config.parameters.?kind.orValue("") == {quote(word)}'
            if kind
            else '!("apiVersion" in config.parameters) && !("kind" in config.parameters)'
        )
        wanted = cast("mi.StructType", read_type(backend.types[kind]))
        name = word or wanted.cls.__name__
        check = checks.fields(wanted, "config.parameters", Path(("config.at",)), name, header=("apiVersion", "kind"))
        names.append(f"kind{index}")
        yield names[-1], _per_config(ours, check)
    yield "problems", " + ".join(f"variables.{name}" for name in names)


def _per_config(condition: str, check: str) -> str:
    body = check.replace("\n", "\n  ")
    return f'variables.configs.map(config, {condition},\n  {body}\n).join("")'


def _header(kinds: list[str]) -> str:
    """Build the check of apiVersion and kind, with the texts of `pydra.backends.claim_config`, without a suggestion."""
    at, ends = Path(("config.at",)), f", allowed (apiVersion/kind): {describe_kinds(kinds)}"
    absent = [
        choose(f"{quote(name)} in config.parameters", NOTHING, problem(at.then(f".{name}: missing{ends}")))
        for name in ("apiVersion", "kind")
    ]
    named = [kind for kind in kinds if kind]
    values = {
        "apiVersion": {kind.rpartition("/")[0] for kind in named},
        "kind": {kind.rpartition("/")[2] for kind in named},
    }
    wrong = []
    for name, known in values.items():
        listed = ", ".join(map(quote, sorted(known)))
        said = problem(at.then(f".{name}: found ").then_cel(show("v")).then(ends))
        wrong.append(let("v", f"config.parameters[{quote(name)}]", choose(f"v in [{listed}]", NOTHING, said)))
    listed = ", ".join(map(quote, named))
    said = problem(at.then(': found "').then_cel("pair").then(f'"{ends}'))
    unknown = let("found", gather(wrong), choose(f"found == {NOTHING}", said, "found"))
    both = '"%s/%s".format([config.parameters["apiVersion"], config.parameters["kind"]])'
    pair = let("pair", both, choose(f"pair in [{listed}]", NOTHING, unknown))
    check = choose('"apiVersion" in config.parameters && "kind" in config.parameters', pair, gather(absent))
    if versions := [kind[:-1] for kind in named if kind.endswith("/")]:
        listed = ", ".join(map(quote, versions))
        without = f'!("kind" in config.parameters) && config.parameters.?apiVersion.orValue("") in [{listed}]'
        check = choose(without, NOTHING, check)
    if "" not in kinds:
        return check
    return choose('!("apiVersion" in config.parameters) && !("kind" in config.parameters)', NOTHING, check)


def _message() -> str:
    """Return one line, without the separator before the first problem."""
    text = 'variables.problems.substring(2).replace("\\n", "\\\\n")'
    return choose(f"size(variables.problems) > {_MOST_SHOWN}", f'{text}.substring(0, {_MOST_SHOWN - 8}) + " ..."', text)


def write_policy(policy: Policy, *, command: str) -> str:
    """YAML of both objects, below a comment that says where it is from and what it leaves out."""
    import yaml  # noqa: PLC0415 - costs memory, and nothing else of admission needs it

    class Dumper(yaml.SafeDumper):
        """Expressions are written as they are read: over several lines."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    Dumper.add_representer(str, text)
    lines = [f"# Written by `{command}` from the types of the backend: change those, not this."]
    if policy.unchecked:
        lines += [
            "#",
            "# Not checked here, but by the webhook and on the node:",
            *(f"#  - {one}" for one in policy.unchecked),
        ]
    documents = (policy.policy, policy.binding)
    body = "---\n".join(
        yaml.dump(one, Dumper=Dumper, sort_keys=False, width=10**6, allow_unicode=True) for one in documents
    )
    return "\n".join(lines) + "\n" + body


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
        """Return the check of the value that the expression `value` names. `where` is its place, for `unchecked`."""
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
        """Return the check of an object's fields; those of `header` are known beside its own."""
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
        """Build the check for a union: the members of the value's JSON kind decide; with objects, their tag."""
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
        """Return the check of a value that is of one of the type's JSON kinds."""
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


def _found(wanted: mi.Type, value: str, path: Path) -> str:
    return problem(path.then(": found ").then_cel(show(value)).then(f", allowed: {describe(wanted)}"))


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
