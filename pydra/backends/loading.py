"""Imports the object that `module:attribute` names, and says what is wrong when it cannot.

Nothing happens at the import of a backend, says the contract, so that its types can be read without its hardware.
"""

from __future__ import annotations

import importlib
from typing import Any

from pydra.backends.faults import Fault, FaultKind, build_fault


class Unloadable(Exception):
    """There is no such module, or its own code fails; `fault` says which, with the traceback where there is one."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__("; ".join(fault.problems))


def load_object(target: str) -> Any:
    """The object that `module:attribute` names; the module itself for `module:`. Raises Unloadable."""
    module, _, attribute = target.partition(":")
    try:
        loaded: Any = importlib.import_module(module)
        for name in filter(None, attribute.split(".")):
            loaded = getattr(loaded, name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):  # another one, that it needs
            raise _failed(target, error) from error
        problem = f"there is no module {error.name} on the module path; is it installed, or in PYTHONPATH?"
        raise Unloadable(Fault(kind=FaultKind.CONTRACT, problems=(problem,))) from error
    except BaseException as error:  # the call boundary, for the module's own code
        raise _failed(target, error) from error
    return loaded


def _failed(target: str, error: BaseException) -> Unloadable:
    fault = build_fault(error)
    problem = f"{target} cannot be loaded: {fault.message}"
    return Unloadable(Fault(kind=FaultKind.CONTRACT, problems=(problem,), traceback=fault.traceback))
