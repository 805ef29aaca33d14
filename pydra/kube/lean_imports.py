"""Imports of aiohttp and kubernetes-asyncio that take less memory and time than the plain ones.

- `aiohttp` builds two TLS contexts at import and reads all certificate authorities of the machine into each, for an
  agent that trusts the cluster's authority only. Here each context reads them at its first connection. That saves
  1.7 MiB of RSS and 40 to 100 ms of CPU (Python 3.11, aiohttp 3.14).
- `kubernetes_asyncio` imports its 770 models with any of its submodules (60 MiB, 0.5 s). Its kubeconfig loader uses
  none of them and is imported below empty packages, as are single models, whose descriptions `pydra dev` shows. A pod's
  service account needs nothing of the package.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import ssl
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any


class LazySSLContext(ssl.SSLContext):
    """A context that trusts the system's authorities, and reads them at its first connection."""

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Load the authorities first; asyncio and uvloop connect only through this method."""
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]
        self.set_default_verify_paths()
        return self.wrap_bio(*args, **kwargs)


def _load_lazily(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # for a proxy with TLS, as for the API server
    context.__class__ = LazySSLContext


if "aiohttp" not in sys.modules:
    # Shadows the method of the C class for the moment of the import.
    ssl.SSLContext.set_default_verify_paths = _load_lazily  # type: ignore[assignment]
    try:
        import aiohttp
    finally:
        del ssl.SSLContext.set_default_verify_paths
else:
    import aiohttp

__all__ = ["LazySSLContext", "aiohttp", "import_kubeconfig_loader", "import_models"]


@cache
def import_kubeconfig_loader() -> Any:
    """Import the module `kubernetes_asyncio.config.kube_config` without the models of the package."""
    with _empty_packages():
        return importlib.import_module("kubernetes_asyncio.config.kube_config")


def import_models(roots: Iterable[str]) -> Mapping[str, Any]:
    """Import models of `kubernetes_asyncio`, and all to which their fields lead; return them by name.

    A root that it does not have is left out.
    """
    found: dict[str, Any] = {}
    with _empty_packages() as place:
        names = [name.removesuffix(".py") for name in os.listdir(f"{place}/client/models")]
        modules = {name.replace("_", ""): name for name in names}
        wanted = [root.lower() for root in roots if root.lower() in modules]
        while wanted:
            module = importlib.import_module(f"kubernetes_asyncio.client.models.{modules[wanted.pop()]}")
            model = next(one for one in vars(module).values() if hasattr(one, "openapi_types"))
            found[model.__name__] = model
            named = [name for kind in model.openapi_types.values() for name in re.findall(r"\w+", kind)]
            wanted += [name.lower() for name in named if name not in found and name.lower() in modules]
    return found


@contextmanager
def _empty_packages() -> Iterator[str]:
    """Let modules of kubernetes_asyncio be imported below packages that import nothing; yield its directory."""
    spec = importlib.util.find_spec("kubernetes_asyncio")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'kubernetes_asyncio'", name="kubernetes_asyncio")
    [root] = spec.submodule_search_locations
    if "kubernetes_asyncio" in sys.modules:
        yield root
        return
    for package in ("", ".client", ".client.models", ".config"):
        stand_in: Any = ModuleType(f"kubernetes_asyncio{package}")
        stand_in.__path__ = [f"{root}/{package[1:].replace('.', '/')}"]
        stand_in.ApiClient = stand_in.Configuration = object  # named by the loader for its own `load_...` functions
        sys.modules[stand_in.__name__] = stand_in
    try:
        yield root
    finally:  # other importers of the package get the whole of it
        for loaded in [one for one in sys.modules if one.partition(".")[0] == "kubernetes_asyncio"]:
            del sys.modules[loaded]
