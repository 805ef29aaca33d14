"""The command `pydra-compute-domain`: the controller of a cluster, and the daemon in each pod of its DaemonSets."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from enum import Enum
from typing import TypeVar

from pydra import SettingsError, __version__
from pydra.controllers import LogFormat, LogLevel, configure_logs
from pydra_nvidia.compute_domain.controller import command as controller
from pydra_nvidia.compute_domain.daemon import command as daemon

E = TypeVar("E", bound=Enum)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the parts; return the exit code."""
    parser = argparse.ArgumentParser(prog="pydra-compute-domain", description=__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=__version__)
    parts = parser.add_subparsers(dest="part", required=True)
    controller.add_arguments(parts.add_parser("controller", help="make what ComputeDomains need"), os.environ)
    daemon.add_arguments(parts.add_parser("daemon", help="run nvidia-imex on one node"), os.environ)
    given = parser.parse_args(arguments)
    try:
        level = _parse(LogLevel, "logLevel", given.log_level)
        configure_logs(level=level, form=_parse(LogFormat, "logFormat", given.log_format), file="")
        return controller.run(given) if given.part == "controller" else daemon.run(given)
    except SettingsError as error:
        sys.stderr.write("".join(f"pydra-compute-domain: {problem}\n" for problem in error.problems))
        return 2


def _parse(kind: type[E], name: str, text: str) -> E:
    try:
        return kind(text)
    except ValueError as error:
        allowed = ", ".join(str(one.value) for one in kind)
        raise SettingsError([f'{name}: found "{text}", allowed: {allowed}']) from error


if __name__ == "__main__":
    sys.exit(main())
