"""Loads a backend's driver name, its config types and the check of its settings.

Importing a backend's module needs neither hardware nor a process: the contract forbids side effects at import.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra.backends.backend_settings import read_settings
from pydra.backends.claim_config import ConfigCheck, ConfigTypes, find_check
from pydra.backends.contract_validation import find_object_violations
from pydra.backends.discovery import LoadError, find_backend, load_backend
from pydra.errors import BackendError, ContractError, SettingsError
from pydra.settings import find_backend_problems


class KnownBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A backend as far as admission knows it: its driver's name in the API, if it has one, and its kinds of config.

    `check` is that of its settings, if they are known.
    """

    name: str
    driver: str = ""
    types: ConfigTypes
    check: ConfigCheck | None = None


def read_backend(name: str, *, driver: str = "", settings: Mapping[str, Any] | None = None) -> KnownBackend:
    """Return the backend with its driver's name, or the one given here, and the check of its `settings`, if given.

    Raises:
        SettingsError: it is not installed, or has no driver name and was given none, or the given one is not a name;
            the settings are not valid.
        BackendError: it cannot be imported, or breaks the contract.
    """
    if driver and (problems := tuple(find_backend_problems([name], {name: driver}))):
        raise SettingsError(problems)
    known = read_types(name, settings=settings)
    if not (driver or known.driver):
        problem = "names no driver: say which it serves, as in --driver gpu.example.com"
        raise SettingsError([f"backend {known.name} {problem}"])
    return replace(known, driver=driver or known.driver)


def read_types(name: str, *, settings: Mapping[str, Any] | None = None) -> KnownBackend:
    """Import an installed backend, or `module:attribute` from where the caller stands, and read its types.

    Raises:
        SettingsError: it is not installed, or the settings are not valid.
        BackendError: it cannot be imported, or breaks the contract.
    """
    source = find_backend(name)
    try:
        with redirect_stdout(sys.stderr):  # what it prints is not part of the output
            backend = load_backend(name, source)
    except LoadError as error:
        raise BackendError(source.name, str(error), details=error.fault.traceback) from error
    if violations := find_object_violations(backend):
        raise ContractError(source.name, violations)
    types = dict(getattr(backend, "CONFIG_TYPES", {}))
    check = None if settings is None else _read_check(backend, source.name, settings)
    return KnownBackend(name=source.name, driver=getattr(backend, "DRIVER", ""), types=types, check=check)


def _read_check(backend: Any, name: str, values: Mapping[str, Any]) -> ConfigCheck | None:
    settings_type = getattr(backend, "SETTINGS_TYPE", None)
    if settings_type is None:
        raise SettingsError([f"backendSettings.{name}: this backend takes no settings"])
    return find_check(backend, read_settings(settings_type, name, "", {}, values))


def read_backends(
    names: Iterable[str], drivers: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]] = {}
) -> tuple[KnownBackend, ...]:
    """Return all backends, with the driver names in `drivers` instead of their own, and the checks of their settings.

    Raises:
        SettingsError: some are not installed, or two of them serve one driver; all problems at once.
        BackendError: the first that cannot be read.
    """
    problems: list[str] = []
    known: list[KnownBackend] = []
    for name in names:
        try:
            known.append(read_backend(name, driver=drivers.get(name, ""), settings=settings.get(name)))
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
