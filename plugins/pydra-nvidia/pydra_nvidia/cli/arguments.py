"""Arguments that several commands have, and the node that they mean."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from pydra_nvidia.machine_access import MachineAccess, find_machine
from pydra_nvidia.settings import PREFIX


def add_node_arguments(parser: argparse.ArgumentParser) -> None:
    """Which node: this one, or a simulated one."""
    parser.add_argument(
        "--scenario",
        metavar="FILE",
        help=f"a simulated machine instead of this one: a file, or a name ({PREFIX}SCENARIO)",
    )
    parser.add_argument(
        "--state", metavar="DIR", help=f"where the backend, or the simulated machine, keeps its state ({PREFIX}STATE)"
    )


def machine_of(parsed: argparse.Namespace, environ: Mapping[str, str]) -> MachineAccess:
    """The node that the arguments and variables mean; raises SettingsError, ScenarioError."""
    given = {f"{PREFIX}SCENARIO": parsed.scenario, f"{PREFIX}STATE": parsed.state}
    return find_machine({**environ, **{name: value for name, value in given.items() if value}})


def minor(text: str) -> int:
    """A GPU by its minor number: `3` or `gpu-3`."""
    number = re.fullmatch(r"(?:gpu-)?(\d{1,6})", text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a GPU: give its minor number, as 3 or gpu-3")
    return int(number[1])
