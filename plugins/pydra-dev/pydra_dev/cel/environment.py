"""Compiles and evaluates the CEL selectors of DeviceClasses and claims, with Google's CEL for Python. Pure.

An expression is compiled in one environment and evaluated in another. The first declares the types of Kubernetes,
so that `device.capacity["d"].memory > 3` is a type error as in kube-apiserver. The second has the functions'
implementations, for which quantities and versions are maps (see `functions`): the library cannot have values of
a type of ours. Between the two, looking up an unknown domain is made to give an empty map.
Source: `cel/compile.go` of k8s.io/dynamic-resource-allocation, Kubernetes 1.36.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec
from cel_expr_python import cel

from pydra_dev.api import schema
from pydra_dev.api.quantity import parse_quantity
from pydra_dev.cel.checked_expr import CheckedTree, add_default_domains, build_tree, describe_type, parse_tree, walk
from pydra_dev.cel.functions import DECLARATIONS, QUANTITY, TAGS, build_quantity, build_semver

_LIBRARIES = """
extensions:
- {name: bindings}
- {name: lists}
- {name: optional}
- {name: sets}
- {name: strings, version: 2}
- {name: two-var-comprehensions}
"""
_FIELDS = frozenset({"driver", "allowMultipleAllocations", "attributes", "capacity"})
_CAPACITY = f"map(string, map(string, {QUANTITY}))"


class CelFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """What expressions may read, by the feature gates of the cluster."""

    lists: bool = False
    """Attributes may be lists (DRAListTypeAttributes)."""
    shares: bool = True
    """A device has `allowMultipleAllocations` (DRAConsumableCapacity)."""


DEFAULT_CEL = CelFeatures()


class CompileError(Exception):
    """The expression is not one that kube-apiserver would store; the message says why, in its sense."""


class EvaluationError(Exception):
    """The expression cannot be evaluated for this device."""


class Selector(msgspec.Struct, frozen=True):
    """A compiled selector."""

    program: cel.Expression

    def matches(self, device: cel.Activation) -> bool:
        """Whether the device is selected; raises EvaluationError."""
        result = self.program.eval(device)
        value = result.value()
        if isinstance(value, bool):
            return value
        if result.type() == cel.Type.ERROR:
            raise EvaluationError(_explain(str(value)))
        raise EvaluationError(f"CEL result of type {result.type().name().lower()} could not be converted to bool")


def build_variables(driver: str, device: schema.Device) -> cel.Activation:
    """What an expression sees of a device; raises EvaluationError for an attribute without a known value."""
    attributes: dict[str, dict[str, Any]] = {}
    capacity: dict[str, dict[str, Any]] = {}
    for name, attribute in device.attributes.items():
        _place(attributes, driver, name, _read_attribute(name, attribute))
    for name, amount in device.capacity.items():
        _place(capacity, driver, name, build_quantity(parse_quantity(amount.value)))
    values = {
        "driver": driver,
        "attributes": attributes,
        "capacity": capacity,
        "allowMultipleAllocations": bool(device.allow_multiple_allocations),
    }
    data = {"device": values, **{f"device.{name}": value for name, value in values.items()}}
    return _runtime().Activation(data)


def _place(domains: dict[str, dict[str, Any]], driver: str, name: str, value: object) -> None:
    domain, slash, identifier = name.rpartition("/")
    domains.setdefault(domain if slash else driver, {})[identifier] = value


def _read_attribute(name: str, attribute: schema.Attribute) -> object:
    if attribute.version is not None:
        return build_semver(attribute.version)
    if attribute.versions is not None:
        return [build_semver(version) for version in attribute.versions]
    values = (attribute.int_, attribute.bool_, attribute.string, attribute.ints, attribute.bools, attribute.strings)
    value = next((value for value in values if value is not None), None)
    if value is None:
        raise EvaluationError(f"attribute {name}: unsupported attribute value")
    return list(value) if isinstance(value, tuple) else value


@lru_cache(maxsize=1024)
def compile_selector(expression: str, features: CelFeatures = DEFAULT_CEL) -> Selector:
    """A selector to evaluate; raises CompileError."""
    lists = features.lists
    try:
        checked = _checker(features).compile(expression)
    except RuntimeError as error:
        raise CompileError(f"compilation failed: {_explain(str(error))}") from error
    tree = parse_tree(checked.serialize())
    _check_tree(tree, _FIELDS if features.shares else _FIELDS - {"allowMultipleAllocations"})
    result = describe_type(tree, tree.root)
    if result not in {"bool", "any", *(["dyn"] if lists else [])}:
        raise CompileError(f"must evaluate to bool or the unknown type, not {result}")
    value = "dyn" if lists else "any"
    outer = (f"map(string, map(string, {value}))", _CAPACITY)
    add_default_domains(tree, outer)
    return Selector(_runtime().deserialize(build_tree(tree)))


def _check_tree(tree: CheckedTree, fields: frozenset[str]) -> None:
    """What kube-apiserver refuses and the library does not; raises CompileError."""
    for node in walk(tree.root):
        if (select := node.select) is not None and select.name not in fields:
            operand = select.operand and select.operand.identifier
            if operand and operand.name == "device":
                raise CompileError(f"compilation failed: ERROR: <input>: undefined field {select.name!r}")
        if node.list is not None:
            _check_list([describe_type(tree, one) for one in node.list.elements])
        if node.call is not None and node.call.function in {"matches", "find", "findAll"}:
            *_, pattern = (*filter(None, [node.call.target]), *node.call.arguments)[:2]
            if pattern.constant is not None and pattern.constant.text is not None:
                _check_pattern(pattern.constant.text)


def _check_list(types: Sequence[str]) -> None:
    known = [kind for kind in types if kind not in {"dyn", "any"}]
    other = next((kind for kind in known if kind != known[0]), None)
    if other is not None:
        raise CompileError(f"compilation failed: ERROR: <input>: expected type {known[0]!r} but found {other!r}")


def _check_pattern(pattern: str) -> None:
    result = _runtime().compile(f"''.matches({json.dumps(pattern)})").eval(data={})
    if result.type() == cel.Type.ERROR:
        raise CompileError(f"compilation failed: ERROR: <input>: {_explain(str(result.value()))}")


@lru_cache(maxsize=4)
def _checker(features: CelFeatures) -> cel.Env:
    lists = features.lists
    types = {
        "device": cel.Type("map<string, dyn>"),
        "device.driver": cel.Type("string"),
        "device.capacity": cel.Type(f"map<string, map<string, {QUANTITY}>>"),
    }
    if features.shares:
        types["device.allowMultipleAllocations"] = cel.Type("bool")
    # The type `any` has no name in Python; it is what forbids macros on attributes where these are no lists.
    attributes = f"""
variables:
- name: device.attributes
  type_name: map
  params:
  - type_name: string
  - {{type_name: map, params: [{{type_name: string}}, {{type_name: {"dyn" if lists else "any"}}}]}}
"""
    declared = dict(_functions(runtime=False))
    if not lists:
        del declared["includes"]
    # Overloads of functions that the library has already are merged into those; only an extension can do that.
    merged = cel.CelExtension("kubernetes", [one for name, one in declared.items() if name in _MERGED])
    return cel.NewEnv(
        config=cel.NewEnvConfigFromYaml(_LIBRARIES + attributes),
        variables=types,
        extensions=[merged],
        functions=[one for name, one in declared.items() if name not in _MERGED],
    )


@lru_cache(maxsize=1)
def _runtime() -> cel.Env:
    functions = cel.CelExtension("kubernetes", list(_functions(runtime=True).values()))
    return cel.NewEnv(config=cel.NewEnvConfigFromYaml(_LIBRARIES), extensions=[functions])


_MERGED = frozenset({"indexOf", "lastIndexOf", "_<_", "_<=_", "_>_", "_>=_"})
_DECLARATION = re.compile(r"(?:(?P<target>[\w.]+(?:<\w+>)?)\.)?(?P<name>[\w<>=]+)\((?P<types>.*)\) (?P<result>[\w.]+)")


def _functions(*, runtime: bool) -> Mapping[str, cel.FunctionDecl]:
    """The functions of Kubernetes by name: their types for the compiler, or their implementations."""
    overloads: dict[str, dict[str, cel.Overload]] = {}
    for declaration in DECLARATIONS:
        match = _DECLARATION.fullmatch(declaration.text)
        assert match is not None, declaration.text
        if runtime and match["name"].startswith("_"):
            continue
        is_namespace = match["target"] == "ip"  # no type
        name = f"{match['target']}.{match['name']}" if is_namespace else match["name"]
        target = [match["target"]] if match["target"] and not is_namespace else []
        names = [*target, *(match["types"].split(", ") if match["types"] else [])]
        # At run time there are only kinds: a map is a quantity or a version, a list is a list of anything.
        kinds = ["map" if one in TAGS else one.partition("<")[0] for one in names]
        key = ", ".join(kinds if runtime else names)
        overload = partial(
            cel.Overload,
            f"{name} {key} {bool(target)}",
            return_type=cel.Type("dyn" if runtime else match["result"]),
            parameters=[cel.Type(one) for one in (kinds if runtime else names)],
            is_member=bool(target),
        )
        own = overloads.setdefault(name, {})
        own.setdefault(key, overload(impl=declaration.run) if runtime else overload())
    return {name: cel.FunctionDecl(name, list(by_types.values())) for name, by_types in overloads.items()}


_UNDECLARED = re.compile(
    r"(?P<line><input>:\d+:)(?P<column>\d+): undeclared reference to '(?P<name>\w+)(?P<path>(?:\.\w+)+)'"
    r"(?P<code>[^\n]*\n \| [^\n]*\n \| )\.*\^"
)


def _find_name(error: re.Match[str]) -> str:
    """The error for the first name of a path, and its place; the library names the path, and the place of its end."""
    column = int(error["column"]) - len(error["name"] + error["path"].rpartition(".")[0])
    where = f"{error['line']}{column}: undeclared reference to '{error['name']}'"
    return f"{where}{error['code']}{'.' * (column - 1)}^"


def _explain(text: str) -> str:
    """An error of the library in the words of cel-go, which is what kube-apiserver and kube-scheduler use."""
    text = _UNDECLARED.sub(_find_name, text)
    text = re.sub(r"\bdivide by zero", "division by zero", text)
    text = re.sub(r"^[A-Z_]+: |(?: \[[A-Z_]+\])$", "", text)
    text = re.sub(r'Key not found in map : "?([^"]*)"?', r"no such key: \1", text)
    text = re.sub(r"No matching overloads found : ", "no such overload: ", text)
    # Of what an attribute can be, only a version is a map for the library.
    return re.sub(r"(?<=[(, ])map(?=[,)])", "semver", text) if text.startswith("no such overload") else text
