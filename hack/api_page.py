"""What docs/api.md, the reference of `pydra` and `pydra.testing`, has from docstrings and texts below fields."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from itertools import chain, pairwise
from typing import Any, Protocol

import msgspec

import pydra
import pydra.devices
import pydra.testing

SECTIONS = ("Coroutines", "Devices", "Claims", "Container edits", "Measurements", "Errors", "Functions", "Testing")
"""Those of docs/api.md, in its order."""


def api_parts() -> list[list[str]]:
    """The lines of each section."""
    sections: dict[str, list[str]] = {title: [] for title in SECTIONS}
    for name in pydra.__all__:
        value = getattr(pydra, name)
        sections[section_of(name, value)] += ("", *describe(name, value))
    for name in pydra.testing.__all__:
        sections["Testing"] += ("", *describe(name, getattr(pydra.testing, name)))
    return list(sections.values())


def section_of(name: str, value: Any) -> str:
    if inspect.isclass(value) and issubclass(value, pydra.PydraError):
        return "Errors"
    if name in vars(pydra.devices):
        return "Measurements" if name == "Sample" else "Devices"
    if not inspect.isclass(value):
        return "Functions"
    if issubclass(value, Protocol):
        return "Coroutines"
    return "Container edits" if value.__module__ == "pydra.cdi.edits" else "Claims"


def describe(name: str, value: Any) -> Iterator[str]:
    """The part of the page about one name."""
    yield from (f"### `{name}`", "")
    if name in (aliases := read_texts(ast.parse(inspect.getsource(pydra.devices)).body)):
        yield aliases[name]
        return
    if not inspect.isclass(value):
        yield from signature(parse(value))
        yield doc(value)
        return
    tree = parse(value)
    if issubclass(value, pydra.PydraError):
        yield from signature(tree)
    yield doc(value)
    if issubclass(value, pydra.PydraError):
        again = "a later call may succeed" if value.retryable else "trying again cannot help"
        yield from ("", f"Reason `{value.reason}`; {again}.")
    yield from members(value, tree)
    for one in tree.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and not one.name.startswith("_"):
            yield from ("", f"#### `{name}.{one.name}`", "")
            found = inspect.getattr_static(value, one.name)
            if not isinstance(found, property):
                yield from signature(one)
            yield doc(found)


def members(kind: type, tree: ast.ClassDef) -> Iterator[str]:
    """The table of fields of a value, or of members of an enumeration."""
    if not issubclass(kind, Enum | msgspec.Struct):
        return
    told = texts_below(kind)
    if issubclass(kind, Enum):
        yield from ("", "| member | value | |", "|---|---|---|")
        yield from (f"| `{one.name}` | `{one.value}` | {told[one.name]} |" for one in kind)
    else:
        yield from ("", "| field | type | default | |", "|---|---|---|---|")
        for one in tree.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                default = f"`{default_text(one.value)}`" if one.value else "required"
                written = ast.unparse(one.annotation).replace(" | ", " or ")
                yield f"| `{one.target.id}` | `{written}` | {default} | {told[one.target.id]} |"


def signature(node: ast.AST) -> Iterator[str]:
    """A block of code with how it is called."""
    match node:
        case ast.ClassDef(name=name, body=body):
            made = [one for one in body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
            arguments = made[0].args if made else ast.arguments([], [ast.arg("message")], None, [], [], None, [])
            head, result = f"{name}(", ")"
        case ast.FunctionDef(name=name, args=arguments, returns=returns):
            head, result = f"{name}(", ")" + (f" -> {ast.unparse(returns)}" if returns else "")
        case ast.AsyncFunctionDef(name=name, args=arguments, returns=returns):
            head, result = f"async {name}(", ")" + (f" -> {ast.unparse(returns)}" if returns else "")
    parts = list(list_arguments(arguments))
    line = f"{head}{', '.join(parts)}{result}"
    if len(line) > 100:
        line = "\n".join([head, *(f"    {part}," for part in parts), result])
    yield from ("```python", line, "```", "")


def list_arguments(arguments: ast.arguments) -> Iterator[str]:
    """Each argument with its type and default, without `self`."""
    given = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(given) - len(arguments.defaults))
    yield from (
        with_default(one, default)
        for one, default in zip(given, [*missing, *arguments.defaults], strict=True)
        if one.arg != "self"
    )
    if arguments.vararg:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    yield from map(with_default, arguments.kwonlyargs, arguments.kw_defaults)


def with_default(argument: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return ast.unparse(argument)
    return f"{ast.unparse(argument)} = {'...' if isinstance(default, ast.Lambda) else default_text(default)}"


def default_text(value: ast.expr) -> str:
    """A default as a caller would write it."""
    written = ast.unparse(value)
    return {"HEALTHY": "Health()", "_NO_ATTRIBUTES": "{}"}.get(written, written)


def doc(value: Any) -> str:
    """The docstring: a paragraph stays one, lists and code keep their lines."""
    text = inspect.getdoc(value) or ""
    text = re.sub(r"Raises:\n +(\w+): ", r"Raises `\1`: ", text)
    return re.sub(r"(?<=\S)\n(?=[^\s-])", " ", text)


def parse(value: Any) -> Any:
    """The statement that defines a class or a function."""
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(value)))).body[0]


def texts_below(kind: type) -> dict[str, str]:
    """The string that stands below each field, or member, of a class and those that it extends; each must have one."""
    bodies = [parse(one).body for one in reversed(kind.__mro__) if one.__module__.startswith("pydra")]
    texts = {name: text for body in bodies for name, text in read_texts(body).items()}
    for one in chain.from_iterable(bodies):
        if (name := assigned(one)) and name not in texts:
            raise ValueError(f"{kind.__name__}.{name} has no text below it")
    return texts


def read_texts(body: list[ast.stmt]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for one, below in pairwise(body):
        match below:
            case ast.Expr(value=ast.Constant(value=str(text))) if name := assigned(one):
                texts[name] = " ".join(text.split())
    return texts


def assigned(statement: ast.stmt) -> str:
    """The name that the statement gives a type or a value; empty when it gives none."""
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return ""
