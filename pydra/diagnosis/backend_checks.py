"""Has each backend examine the node, if it can: `examine` of the contract."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from pydra.backends.backend_settings import read_settings
from pydra.backends.child.loading import LoadError, load_object
from pydra.backends.discovery import UNNAMED, BackendSource, find_backend, is_target, variable_prefix
from pydra.claim import HeldClaim
from pydra.diagnosis.checkpoint_records import find_drivers, read_records
from pydra.diagnosis.findings import Finding, Level
from pydra.errors import PydraError, SettingsError
from pydra.settings import Settings

_SUBJECT = "backend"


def judge_backends(settings: Settings, environ: Mapping[str, str]) -> Sequence[Finding]:
    """Return backends that cannot be loaded here, and what the others find wrong. Blocks."""
    named = [name for name in settings.backends if name != UNNAMED]
    with redirect_stdout(sys.stderr):  # what a backend prints is not part of the output
        return [finding for name in named for finding in _judge(name, settings, environ)]


def _judge(name: str, settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    try:
        source = find_backend(name)
        if is_target(name) and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        backend = load_object(source.target)
    except (SettingsError, LoadError) as error:
        yield Finding(subject=_SUBJECT, level=Level.PROBLEM, found=str(error))
        return
    examine = getattr(backend, "examine", None)
    if examine is None:
        return
    try:
        own = _read_own_settings(backend, source, settings, environ)
        problems = _collect(examine(own, _read_held(backend, name, settings)))
    except PydraError as error:
        yield Finding(subject=_SUBJECT, level=Level.UNKNOWN, found=f"{name}: {error}")
    except Exception as error:  # noqa: BLE001 - the backend's own code may fail in any way
        found = f"{name} cannot examine the node: {type(error).__name__}: {error}"
        yield Finding(subject=_SUBJECT, level=Level.UNKNOWN, found=found, advice="report it to the backend's author")
    else:
        for problem in problems:
            yield Finding(subject=_SUBJECT, level=Level.PROBLEM, found=f"{name}: {problem}")
        if not problems:
            yield Finding(subject=_SUBJECT, level=Level.OK, found=f"{name} finds nothing wrong on the node")


def _collect(problems: Iterable[Any]) -> list[str]:
    return [str(problem) for problem in problems]


def _read_own_settings(backend: Any, source: BackendSource, settings: Settings, environ: Mapping[str, str]) -> Any:
    settings_type = getattr(backend, "SETTINGS_TYPE", None)
    if settings_type is None:
        return None
    values = settings.backend_settings.get(source.configured_name, {})
    prefix = f"{variable_prefix(source.name)}_"
    return read_settings(settings_type, source.name, prefix, environ, values)


def _read_held(backend: Any, name: str, settings: Settings) -> tuple[HeldClaim, ...]:
    driver = settings.drivers.get(name, "") or str(getattr(backend, "DRIVER", ""))
    known = driver in find_drivers(settings)
    return tuple(one.held for one in read_records(settings, driver=driver)) if known else ()
