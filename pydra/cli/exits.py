"""Startup checks, SIGTERM handling and error output for both commands."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import metadata

from pydra.errors import SettingsError

DISTRIBUTION = "pydra-dra"


def refuse_foreign_pydra() -> None:
    """Two projects install a package called `pydra`; together in one environment, each breaks the other.

    Raises:
        SettingsError: the distribution `pydra` (a dataflow engine) is installed beside this one.
    """
    try:
        foreign = metadata.version("pydra")
    except metadata.PackageNotFoundError:
        return
    raise SettingsError(
        [
            f"the distribution 'pydra' {foreign}, another project, is installed in this environment and shares the "
            f"import name with {DISTRIBUTION}; use an environment of its own: "
            f"pip uninstall pydra && pip install --force-reinstall {DISTRIBUTION}"
        ]
    )


def heed_sigterm() -> None:
    """End at SIGTERM, with exit code 0, until the start has come so far that it listens by itself.

    In a container this is process 1, from which Linux keeps every signal that has no handler: a pod that is deleted
    while it starts would run on until it is killed, and leave its sockets behind. Nothing is to be put in order yet,
    and an exception may be lost in an import or in a callback: so at once. Backends end when their channel closes.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


def complain(program: str, problems: Sequence[str], *, code: int) -> int:
    """One line for each problem on stderr; returns the exit code."""
    for problem in problems:
        print(f"{program}: {problem}", file=sys.stderr)
    if code == 2:
        print(f"{program}: see {program} --help", file=sys.stderr)
    return code
