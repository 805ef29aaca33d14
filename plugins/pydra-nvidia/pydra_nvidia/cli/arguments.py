"""Arguments that several commands have, and the node that they mean."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pydra import SettingsError
from pydra_nvidia.machine_access import MachineAccess, find_machine
from pydra_nvidia.settings import PREFIX, parse_settings


class _AgentSettings(msgspec.Struct, rename="camel"):
    """What the command reads of the agent's settings file."""

    backend_settings: dict[str, dict[str, Any]] = {}


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
    """The node that arguments, variables and the agent's settings file mean; raises SettingsError, ScenarioError."""
    given = {f"{PREFIX}SCENARIO": parsed.scenario, f"{PREFIX}STATE": parsed.state}
    variables = {**environ, **{name: value for name, value in given.items() if value}}
    return find_machine(variables, parse_settings(variables, _read_agent_settings(environ.get("PYDRA_CONFIG", ""))))


def _read_agent_settings(path: str) -> Mapping[str, Any]:
    """What the agent's settings file has for this backend, which is where the chart puts its settings."""
    try:
        agent = msgspec.yaml.decode(Path(path).read_bytes(), type=_AgentSettings | None) if path else None
    except msgspec.MsgspecError as error:
        raise SettingsError([f"{path}: {error}"]) from error
    return agent.backend_settings.get("nvidia", {}) if agent is not None else {}


def minor(text: str) -> int:
    """A GPU by its minor number: `3` or `gpu-3`."""
    number = re.fullmatch(r"(?:gpu-)?(\d{1,6})", text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a GPU: give its minor number, as 3 or gpu-3")
    return int(number[1])
