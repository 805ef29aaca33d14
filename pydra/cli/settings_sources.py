"""Reads settings from where the user may have them: flag, then `PYDRA_*` variable, then file, then default."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydra.backends.backend_settings import service_prefixes
from pydra.backends.discovery import UNNAMED, variable_prefix
from pydra.cli.options import AGENT, Option, OptionTable, flag_of, key_of, variable_of
from pydra.errors import SettingsError
from pydra.message_text import suggest
from pydra.settings import Settings, find_value_problems, parse_settings


def read_values(
    arguments: argparse.Namespace, environ: Mapping[str, str], table: OptionTable = AGENT
) -> dict[str, Any]:
    """Merge raw settings by YAML key, the strongest source first.

    Raises:
        SettingsError: the file cannot be read or is not a YAML mapping, or a variable is unknown or malformed.
    """
    path = arguments.config or environ.get(f"{table.prefix}CONFIG")
    values = _read_file(path) if path else {}
    for option in table.options:
        variable = environ.get(variable_of(option, table))
        if variable is not None:
            values[key_of(option, table)] = _parse_text(option, variable.split(",") if option.repeated else variable)
        given = getattr(arguments, option.field, None)  # a tool of the node has flags for some settings only
        if given is not None:
            values[key_of(option, table)] = _parse_text(option, given)
    backends = values.get("backends", ())
    if isinstance(backends, list | tuple):  # anything else is refused by the settings
        unknown = _unknown_variables(environ, table, backends)
        if unknown:
            known = [variable_of(option, table) for option in table.options]
            meant = {name: suggest(name, known, prefix=table.prefix) for name in unknown}
            raise SettingsError(
                [f"{name}: no such variable{similar}; see {table.program} --help" for name, similar in meant.items()]
            )
    return values


def read_node_settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Read the agent's settings for a tool, which needs neither backends nor, where the host has its name, a node.

    Variables that the agent would refuse are left alone: they may be those of backends, which are not named here.

    Raises:
        SettingsError: as for the agent.
    """
    known = {f"{AGENT.prefix}CONFIG", *(variable_of(option) for option in AGENT.options)}
    values = read_values(arguments, {name: text for name, text in environ.items() if name in known})
    if not values.get("backends"):
        values = {
            **values,
            "backends": (UNNAMED,),
            "backendSettings": {},
            "backendProcesses": {},
            "backendOverheads": {},
        }
    return parse_settings({"nodeName": os.uname().nodename.lower(), **values})


def read_config(path: str | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the agent's settings file, from `path` or PYDRA_CONFIG; empty without one.

    Raises:
        SettingsError: the file cannot be read, or has a key or a value that the agent would refuse.
    """
    path = path or environ.get(f"{AGENT.prefix}CONFIG")
    values = _read_file(path) if path else {}
    # `--backend` may name the backends instead of the file.
    if problems := tuple(find_value_problems({"backends": ["any"], **values}, Settings, program=AGENT.program)):
        raise SettingsError([f"{path}: {problem}" for problem in problems])
    return values


def _unknown_variables(environ: Mapping[str, str], table: OptionTable, backends: Sequence[object]) -> list[str]:
    # PYDRA_SIM_SCENARIO and the like belong to the backend named in them, and are passed to its process.
    known = {variable_of(option, table) for option in table.options} | {f"{table.prefix}CONFIG"}
    theirs = (*(f"{variable_prefix(str(name))}_" for name in backends), *service_prefixes(environ))
    return sorted(
        name for name in environ if name.startswith(table.prefix) and name not in known and not name.startswith(theirs)
    )


def _parse_text(option: Option, given: Any) -> Any:
    if option.field != "drivers":
        return given
    pairs = [str(text).partition("=") for text in given if text]
    if wrong := [name + equals + driver for name, equals, driver in pairs if not (name and equals and driver)]:
        raise SettingsError([f"{flag_of(option)}: {text!r} is not NAME=DRIVER" for text in wrong])
    return {name: driver for name, _, driver in pairs}


def _read_file(path: str) -> dict[str, Any]:
    import yaml  # noqa: PLC0415 - costs memory, and only a node configured by file needs it

    try:
        document = yaml.safe_load(Path(path).read_bytes())
    except OSError as error:
        raise SettingsError([f"{path}: cannot be read: {error.strerror}"]) from error
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError) as error:
        # PyYAML raises the last four for values such as 2026-13-45, `!!bool x` and ten thousand brackets.
        raise SettingsError([f"{path}: is not valid YAML: {' '.join(str(error).split())}"]) from error
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise SettingsError([f"{path}: must be a mapping of settings"])
    return dict(document)
