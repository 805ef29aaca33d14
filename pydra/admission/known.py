"""The drivers whose configs are judged: each backend's own types, read by importing its module here.

The contract lets nothing happen at import, so this needs neither hardware nor a process for each backend.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout

import msgspec
from msgspec.structs import replace

from pydra.admission.verdict import Drivers
from pydra.backends.check import find_object_violations
from pydra.backends.config import ConfigTypes
from pydra.backends.discovery import find_backend
from pydra.backends.environment import is_target
from pydra.backends.loading import Unloadable, load_object
from pydra.errors import BackendError, ContractError, SettingsError
from pydra.settings import find_backend_problems


class KnownBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A backend as far as admission knows it: its driver's name in the API, if it has one, and its kinds of config."""

    name: str
    driver: str = ""
    types: ConfigTypes


def read_backend(name: str, *, driver: str = "") -> KnownBackend:
    """The backend with the driver's name that it has, or is given here.

    Raises:
        SettingsError: it is not installed, or has no driver name and was given none, or what was given is no name.
        BackendError: it cannot be imported, or breaks the contract.
    """
    if driver and (problems := tuple(find_backend_problems([name], {name: driver}))):
        raise SettingsError(problems)
    known = read_types(name)
    if not (driver or known.driver):
        problem = "names no driver: say which it serves, as in --driver gpu.example.com"
        raise SettingsError([f"backend {known.name} {problem}"])
    return replace(known, driver=driver or known.driver)


def read_types(name: str) -> KnownBackend:
    """Import an installed backend, or `module:attribute` from where the caller stands, and read its types.

    Raises:
        SettingsError: it is not installed.
        BackendError: it cannot be imported, or breaks the contract.
    """
    source = find_backend(name)
    if is_target(name) and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        with redirect_stdout(sys.stderr):  # what it prints is no part of the output of ours
            backend = load_object(source.target)
    except Unloadable as error:
        raise BackendError(source.name, str(error), details=error.fault.traceback) from error
    if violations := find_object_violations(backend):
        raise ContractError(source.name, violations)
    types = dict(getattr(backend, "CONFIG_TYPES", {}))
    return KnownBackend(name=source.name, driver=getattr(backend, "DRIVER", ""), types=types)


def read_backends(names: Iterable[str], drivers: Mapping[str, str]) -> tuple[KnownBackend, ...]:
    """All of them, under other driver names than their own where `drivers` says so, by backend.

    Raises:
        SettingsError: some are not installed, or two of them serve one driver; all problems at once.
        BackendError: the first that cannot be read.
    """
    problems: list[str] = []
    known: list[KnownBackend] = []
    for name in names:
        try:
            known.append(read_backend(name, driver=drivers.get(name, "")))
        except SettingsError as error:
            problems += error.problems
    by_driver: dict[str, str] = {}
    for one in known:
        if one.driver in by_driver:
            problems.append(f"backends {by_driver[one.driver]} and {one.name} both serve the driver {one.driver}")
        by_driver[one.driver] = one.name
    if problems:
        raise SettingsError(problems)
    return tuple(known)


def index_drivers(known: Sequence[KnownBackend]) -> Drivers:
    """The types by driver."""
    return {one.driver: one.types for one in known}
