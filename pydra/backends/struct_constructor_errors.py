"""Says which class and field a wrong call of a constructor is about, which msgspec's own TypeError does not say."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Mapping
from itertools import islice
from types import FrameType, ModuleType, TracebackType
from typing import Any

import msgspec

from pydra.message_text import suggest

_UNEXPECTED = re.compile(r"Unexpected keyword argument '(.*)'")
_MISSING = re.compile(r"Missing required argument '(.*)'")
_TOO_MANY = "Extra positional arguments provided"


def explain_constructor(error: BaseException) -> str:
    """Return the problem, as text; empty if the error is of something else, or the class cannot be found."""
    said = str(error) if type(error) is TypeError else ""
    unexpected, missing = _UNEXPECTED.fullmatch(said), _MISSING.fullmatch(said)
    if not unexpected and not missing and said != _TOO_MANY:
        return ""
    called = _find_called(error.__traceback__)
    if called is None:
        return ""
    fields = called.__struct_fields__  # the types of fields may have names that are known to type checkers only
    listed = ", ".join(fields) or "none"
    if unexpected:
        name = unexpected[1]
        return f"{called.__name__} has no field {name!r}{suggest(name, fields)}; its fields are {listed}"
    if missing:
        return f"{called.__name__} needs a value for {missing[1]!r}; its fields are {listed}"
    given = f"{called.__name__}({fields[0]}=...)" if fields else f"{called.__name__}()"
    return f"{called.__name__} takes fewer arguments without a name: write {given}; its fields are {listed}"


def _find_called(trace: TracebackType | None) -> type[msgspec.Struct] | None:
    """Return the Struct whose call is where the traceback ends."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    source = _read_source(trace) if trace is not None else ""
    try:
        expression = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    found = (
        _look_up(expression.func, trace.tb_frame) if trace is not None and isinstance(expression, ast.Call) else None
    )
    return found if isinstance(found, type) and issubclass(found, msgspec.Struct) else None


def _read_source(trace: TracebackType) -> str:
    """Return the text of the expression that was evaluated; empty without a source."""
    code = trace.tb_frame.f_code
    first, last, begin, end = next(islice(code.co_positions(), trace.tb_lasti // 2, None), (None,) * 4)
    lines = [line.encode() for line in linecache.getlines(code.co_filename)[(first or 1) - 1 : last]]
    if not lines:
        return ""
    lines[-1] = lines[-1][:end]  # first the end: both may be of one line
    lines[0] = lines[0][begin:]
    return b"".join(lines).decode(errors="replace")


def _look_up(expression: ast.expr, frame: FrameType) -> object:
    """Return what a name, or an attribute of a module, stands for; runs no code of the backend."""
    match expression:
        case ast.Name(id=name):
            scopes: list[Mapping[str, Any]] = [frame.f_locals, frame.f_globals]
            return next((scope[name] for scope in scopes if name in scope), None)
        case ast.Attribute(value=value, attr=name):
            owner = _look_up(value, frame)
            return vars(owner).get(name) if isinstance(owner, ModuleType) else None
        case _:
            return None
