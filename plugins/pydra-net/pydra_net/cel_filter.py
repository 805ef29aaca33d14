"""Which devices are offered, as a CEL expression in the form of the API: what DeviceClasses and claims select by.

    device.attributes["dra.net"].type != "veth" && device.attributes["dra.net"].?mtu.orValue(0) >= 9000

No I/O. The library is Google's, as for the selectors of `pydra dev`; only what a filter needs of it is declared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cel_expr_python import cel

from pydra import Device, PydraError

_ENVIRONMENT = """
extensions:
- {name: bindings}
- {name: lists}
- {name: optional}
- {name: sets}
- {name: strings, version: 2}
- {name: two-var-comprehensions}
variables:
- {name: device, type_name: map, params: [{type_name: string}, {type_name: dyn}]}
"""
_STANDARD = "resource.kubernetes.io"


class InvalidFilter(PydraError):
    """The expression cannot be compiled, or is none of truth."""

    reason = "InvalidFilter"


class DeviceFilter:
    """A compiled expression. Raises InvalidFilter."""

    def __init__(self, expression: str) -> None:
        self._environment = cel.NewEnv(config=cel.NewEnvConfigFromYaml(_ENVIRONMENT))
        try:
            self._program = self._environment.compile(expression)
        except RuntimeError as error:
            raise InvalidFilter(f"cannot be compiled: {_explain(str(error))}") from error
        result = self._program.return_type().name()
        if result not in ("BOOL", "DYN"):
            raise InvalidFilter(f"found an expression of type {result.lower()}; it must be a bool")

    def selects(self, driver: str, device: Device) -> bool:
        """Whether the device is offered; not, if it lacks an attribute that the expression requires."""
        attributes: dict[str, dict[str, Any]] = {driver: {}, _STANDARD: {}}
        for name, value in device.attributes.items():
            domain, _, identifier = name.rpartition("/")
            attributes.setdefault(domain or driver, {})[identifier] = value
        described: Mapping[str, Any] = {
            "driver": driver,
            "attributes": attributes,
            "allowMultipleAllocations": bool(device.allow_multiple_allocations),
        }
        return self._program.eval(self._environment.Activation({"device": described})).value() is True


def _explain(text: str) -> str:
    """The first line, without the library's codes."""
    return re.sub(r"^[A-Z_]+: (?:ERROR: )?", "", text).partition("\n")[0]
