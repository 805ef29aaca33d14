"""Imports kubernetes_asyncio without its 770 models: what a program does not name is not loaded.

The package's own `__init__` files import every model and API class (60 MiB, 0.5 s of CPU), and so
does any submodule's import. Here the packages are put into `sys.modules` as modules that know where
their names live, read from the text of those files, and import them when they are asked for. urllib3,
which kubernetes_asyncio imports for one function that builds a header, waits in the same way (1 MiB, 15 ms).
Set PYDRA_EAGER_KUBERNETES_IMPORT=1 to import the package as it is.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ROOT = "kubernetes_asyncio"
EAGER_SWITCH = "PYDRA_EAGER_KUBERNETES_IMPORT"
_PACKAGES = ("", ".client", ".client.models", ".client.api", ".config")


def parse_exports(source: str) -> dict[str, tuple[str, str]]:
    """Where each name of an `__init__` file comes from: name to (module, attribute there; empty for the module).

    What the file itself defines has an empty module.
    """
    exports: dict[str, tuple[str, str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            exports.update({alias.asname or alias.name: (node.module, alias.name) for alias in node.names})
        elif isinstance(node, ast.Import):
            exports.update({alias.asname: (alias.name, "") for alias in node.names if alias.asname})
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            exports[node.name] = ("", node.name)
    return exports


class LazyPackage(ModuleType):
    """A package that imports what it exports at the first use of each name."""

    def __init__(self, spec: ModuleSpec, origin: str) -> None:
        super().__init__(spec.name)
        self.__spec__ = spec
        self.__file__ = origin
        self.__path__ = list(spec.submodule_search_locations or ())
        self._origin = origin
        self._exports: Mapping[str, tuple[str, str]] | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return _parse_version(self._read())
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module, attribute = self._find(name)
        if not module:
            return self._run()[name]
        loaded: Any = importlib.import_module(module)
        value = getattr(loaded, attribute) if attribute else loaded
        setattr(self, name, value)
        return value

    def _find(self, name: str) -> tuple[str, str]:
        if plain := re.search(rf"^from (\S+) import {re.escape(name)}$", self._read(), re.MULTILINE):
            return plain[1], name  # almost every line; parsing the whole file takes 12 ms
        if self._exports is None:
            self._exports = parse_exports(self._read())
        if name not in self._exports:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return self._exports[name]

    def _read(self) -> str:
        with open(self._origin, encoding="utf-8") as file:
            return file.read()

    def _run(self) -> dict[str, Any]:
        """Run the file as it is, for what it defines itself."""
        exec(compile(self._read(), self._origin, "exec"), self.__dict__)  # noqa: S102 - the installed package's own
        return self.__dict__


class LateModule(ModuleType):
    """Stands for a module, and imports it when something of it is used. Not for `sys.modules`: it is no package."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(self.__name__), name)


def install() -> bool:
    """Put the lazy packages in place; False when the package is loaded already, or the switch says eager."""
    if ROOT in sys.modules or os.environ.get(EAGER_SWITCH, "") not in ("", "0"):
        return False
    for suffix in _PACKAGES:
        name = ROOT + suffix
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            _uninstall()
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        package = sys.modules[name] = LazyPackage(spec, spec.origin)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, package)
    _import_configuration()
    return True


def _import_configuration() -> None:
    """Import it with a stand-in for urllib3, which nobody but this module sees."""
    if "urllib3" not in sys.modules:
        sys.modules["urllib3"] = LateModule("urllib3")
        try:
            importlib.import_module(f"{ROOT}.client.configuration")
        finally:
            del sys.modules["urllib3"]


def _uninstall() -> None:
    for suffix in _PACKAGES:
        sys.modules.pop(ROOT + suffix, None)


def _parse_version(source: str) -> str:
    _, found, rest = source.partition('__version__ = "')
    return rest.partition('"')[0] if found else ""
