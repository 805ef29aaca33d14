"""What a backend's process finds in its environment when it is tried without a cluster. Pure.

Its module is found where the one who tries it would find it, and simulated hardware keeps its
state in a place of its own: `PYDRA_<NAME>_STATE`, beside `PYDRA_<NAME>_SCENARIO`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping


def variable_prefix(backend: str) -> str:
    """`PYDRA_SIM` for the backend `sim`, and for `pydra_sim:`, its module: how its own variables begin."""
    module = backend.partition(":")[0].rpartition(".")[2]
    return "PYDRA_" + module.replace("-", "_").removeprefix("pydra_").upper()


def is_target(backend: str) -> bool:
    """Whether it is `module:attribute` instead of the name of an installed backend."""
    return ":" in backend


def extend_module_path(environ: Mapping[str, str], places: Iterable[str]) -> dict[str, str]:
    """The environment with these directories behind those that PYTHONPATH has; '' is the working directory."""
    path = [*filter(None, environ.get("PYTHONPATH", "").split(os.pathsep)), *(place or os.getcwd() for place in places)]
    return {**environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}
