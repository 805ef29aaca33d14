"""Imports the backend object that `module:attribute` names.

The contract forbids side effects at import, so a backend's types can be read without its hardware.
"""

from __future__ import annotations

import importlib
import pkgutil
import traceback
from collections.abc import Iterable
from typing import Any

from pydra.backends.error_codec import INTERNAL_PATHS, Fault, FaultKind, build_fault
from pydra.message_text import suggest

_NAMES_IT = "what names it, such as the entry point in the group pydra.backends"


class LoadError(Exception):
    """There is no such module, or its own code fails; `fault` says which, with a traceback if there is one."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__("; ".join(fault.problems))


def load_object(target: str) -> Any:
    """Return the object that `module:attribute` names; the module itself for `module:`. Raises LoadError."""
    module, _, attribute = target.partition(":")
    try:
        loaded: Any = importlib.import_module(module)
        for name in filter(None, attribute.split(".")):
            if not hasattr(loaded, name):
                raise LoadError(_build_absence(target, module, name, dir(loaded)))
            loaded = getattr(loaded, name)
    except LoadError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):  # another one, that it needs
            raise _failed(target, error) from error
        raise LoadError(_build_absence_of_module(error.name)) from error
    except BaseException as error:  # the call boundary, for the module's own code
        raise _failed(target, error) from error
    return loaded


def _build_absence_of_module(name: str) -> Fault:
    meant = "" if "." in name else suggest(name, (one.name for one in pkgutil.iter_modules()))
    what = f"; correct {_NAMES_IT}" if meant else "; is it installed, or in PYTHONPATH?"
    problem = f"there is no module {name} on the module path{meant}{what}"
    return Fault(kind=FaultKind.CONTRACT, problems=(problem,))


def _build_absence(target: str, module: str, name: str, known: Iterable[str]) -> Fault:
    problem = f"{target} cannot be loaded: {module} has no {name}{suggest(name, known)}; correct {_NAMES_IT}"
    return Fault(kind=FaultKind.CONTRACT, problems=(problem,))


def _failed(target: str, error: BaseException) -> LoadError:
    fault = build_fault(error)
    place = _place(error)
    problem = f"{target.removesuffix(':')} cannot be loaded: {fault.message}" + (f" ({place})" if place else "")
    if isinstance(error, ModuleNotFoundError) and error.name:
        problem += f"; it needs the module {error.name}: install what provides it beside the backend"
    return LoadError(Fault(kind=FaultKind.CONTRACT, problems=(problem,), traceback=fault.traceback))


def _place(error: BaseException) -> str:
    """Return the file and line, in the backend or its imports, where the import failed; empty for a syntax error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not one.filename.startswith(INTERNAL_PATHS)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""
