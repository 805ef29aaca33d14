"""The files by which the driver's programs are started: each is a script for the interpreter that this process has.

They are `simulation.programs`, for the machine whose state and scenario they name. A launcher is a program for the
shell in its second line, and for Python in the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import pydra_nvidia
from pydra_nvidia.simulation.tree.files import Files, program

_PROGRAMS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "programs")
_PACKAGE = os.path.dirname(os.path.dirname(pydra_nvidia.__file__))


def launcher(module: str, facts: Mapping[str, object]) -> str:
    """The script that runs `main(facts)` of a module in `simulation.programs`.

    The module is found by its directory: what needs nothing else of this package does not load it.
    """
    return program(
        "#!/bin/sh\n"
        f'"exec" \'{sys.executable}\' \'-I\' "$0" "$@"\n'
        "import sys\n"
        f"sys.path.insert(0, {_PROGRAMS!r})\n"
        f"sys.path.append({_PACKAGE!r})\n"
        f"import {module}\n"
        f"sys.exit({module}.main({dict(facts)!r}))\n"
    )


def driver_programs(folder: str, facts: Mapping[str, object]) -> Files:
    """Those that the driver brings, in the `folder`."""
    return {
        f"{folder}/nvidia-smi": launcher("nvidia_smi", facts),
        f"{folder}/nvidia-cuda-mps-control": launcher("mps_control", facts),
    }


def hook_path(named: str) -> str:
    """Where the hook is on the simulated host; empty if the real one, `PYDRA_HOST_ROOT`, could not run a launcher.

    The container runtime runs hooks on the host, while an agent in a container has its own Python and this package.
    """
    host = os.environ.get("PYDRA_HOST_ROOT", "/")
    needed = (sys.executable, _PROGRAMS)
    return named if all(os.path.lexists(os.path.join(host, one.lstrip("/"))) for one in needed) else ""


def hook_program(path: str) -> Files:
    """The container toolkit's hook, at the host's `path`; none when that is empty."""
    return {path.strip("/"): launcher("cdi_hook", {})} if path else {}
