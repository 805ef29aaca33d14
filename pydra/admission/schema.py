"""Loads a backend's config types, and exports them as JSON Schema (2020-12).

Importing a backend's module needs neither hardware nor a process: the contract forbids side effects at import. The
schema is the one that msgspec generates, with additions: apiVersion and kind, and that unknown fields are refused.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra.backends.child.loading import LoadError, load_object
from pydra.backends.config import ConfigCheck, ConfigTypes, find_check
from pydra.backends.discovery import find_backend, is_target
from pydra.backends.settings import read_settings
from pydra.backends.validation import find_object_violations
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
    if is_target(name) and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        with redirect_stdout(sys.stderr):  # what it prints is not part of the output
            backend = load_object(source.target)
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


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def build_schema(backend: KnownBackend, *, kind: str = "") -> dict[str, Any]:
    """Return the schema of one kind (`GpuConfig`, or with its apiVersion before it), or of any of the backend's kinds.

    Raises:
        SettingsError: the backend has no such kind, or several, or none at all.
        BackendError: a type has no JSON Schema.
    """
    chosen = _choose(backend, kind)
    try:
        roots, definitions = msgspec.json.schema_components(
            [backend.types[one] for one in chosen], ref_template="#/$defs/{name}"
        )
    except TypeError as error:
        raise BackendError(backend.name, f"its configs have no JSON Schema: {error}") from error
    closed: dict[str, Any] = {name: _close(one) for name, one in sorted(definitions.items())}
    tops = [_head(one, root, closed) for one, root in zip(chosen, roots, strict=True)]
    inner = _still_used(tops, closed)
    top = tops[0] if len(tops) == 1 else {"title": f"Configs of {backend.driver or backend.name}", "oneOf": tops}
    return {"$schema": DIALECT, **top, **({"$defs": inner} if inner else {})}


def _choose(backend: KnownBackend, kind: str) -> list[str]:
    kinds = sorted(backend.types)
    found = [one for one in kinds if not kind or kind in (one, one.rpartition("/")[2])]
    listed = ", ".join(kinds) or "none, it takes no configuration"
    if not found:
        wanted = f"no config of kind {kind}" if kind else "no config"
        raise SettingsError([f"backend {backend.name} has {wanted}; its kinds: {listed}"])
    if kind and len(found) > 1:
        raise SettingsError([f"backend {backend.name} has {kind} in several versions, name one: {', '.join(found)}"])
    return found


def _close(schema: Any) -> Any:
    """Objects with fields take no others, whatever the type says: pydra's own decoding refuses them."""
    if isinstance(schema, list):
        return [_close(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {key: _close_keyword(key, value) for key, value in schema.items()}
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _close_keyword(key: str, value: Any) -> Any:
    match key:
        case "default" | "const" | "enum":
            return value
        case "properties":  # named by the author, perhaps like a keyword
            return {name: _close(one) for name, one in value.items()}
        case "description":
            return inspect.cleandoc(value)
        case _:
            return _close(value)


def _head(kind: str, root: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object of one kind, with its apiVersion and kind before its own fields."""
    body = definitions[root["$ref"].rpartition("/")[2]]
    api_version, _, word = kind.rpartition("/")
    header = {"apiVersion": {"const": api_version}, "kind": {"const": word}}
    properties = {**header, **{name: one for name, one in body.get("properties", {}).items() if name not in header}}
    required = [*header, *(name for name in body.get("required", ()) if name not in header)]
    return {**body, "properties": properties, "required": required}


def _still_used(tops: list[dict[str, Any]], definitions: Mapping[str, Any]) -> dict[str, Any]:
    used: dict[str, Any] = {}
    waiting = [name for top in tops for name in _references(top)]
    while waiting:
        name = waiting.pop()
        if name not in used:
            used[name] = definitions[name]
            waiting += _references(used[name])
    return dict(sorted(used.items()))


def _references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [name for one in schema for name in _references(one)]
    if not isinstance(schema, Mapping):
        return []
    own = [schema["$ref"].rpartition("/")[2]] if isinstance(schema.get("$ref"), str) else []
    return own + [name for one in schema.values() for name in _references(one)]
