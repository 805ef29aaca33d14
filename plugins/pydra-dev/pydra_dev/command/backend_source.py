"""The source of a backend, without importing it here: what its module declares, its files, and their changes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import anyio
import msgspec

from pydra.backends.discovery import extend_module_path, find_backend, is_target, locate_file
from pydra_dev.api.errors import JsonObject

_READ_DECLARATIONS = """
import json, sys
from pydra.backends.child.loading import load_object
found = load_object(sys.argv[1])
settings = getattr(getattr(found, "SETTINGS_TYPE", None), "__struct_fields__", ())
json.dump({"classes": dict(getattr(found, "DEVICE_CLASSES", {})), "settings": settings}, sys.__stdout__)
"""


class Declarations(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend's module declares: DEVICE_CLASSES, and the names of its settings."""

    classes: dict[str, JsonObject] = {}
    settings: tuple[str, ...] = ()


async def read_declarations(backend: str) -> Declarations | None:
    """The declarations of a backend, read in a process of its own; None if it cannot be loaded, as the agent says."""
    target, directory = locate_file(backend)
    environ = extend_module_path(os.environ, [directory] if is_target(target) else [])
    command = [sys.executable, "-c", _READ_DECLARATIONS, find_backend(target).target]
    done = await anyio.run_process(command, env=environ, check=False, stderr=subprocess.DEVNULL)
    try:
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Declarations) if done.returncode == 0 else None
    except (msgspec.DecodeError, IndexError):  # it printed something else
        return None


def find_sources(backend: str) -> tuple[str, ...]:
    """The file or the directory that a backend is loaded from, without importing it; empty if that is not known."""
    target, directory = locate_file(backend)
    places = [directory or os.getcwd()] if is_target(target) else []
    top = find_backend(target).target.partition(":")[0].partition(".")[0]
    before = list(sys.path)
    sys.path[:0] = places
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    finally:
        sys.path[:] = before
    if spec is None:
        return ()
    return tuple(spec.submodule_search_locations or ()) or ((spec.origin,) if spec.origin else ())


WATCHED = (".py", ".yaml", ".yml", ".json", ".so")
POLL_INTERVAL = 0.2
"""Seconds between two looks at the files."""


async def wait_for_change(places: Sequence[str]) -> str:
    """The first file in these places that is new, changed or gone."""
    before = _read_versions(places)
    while True:
        await anyio.sleep(POLL_INTERVAL)
        now = _read_versions(places)
        for path in sorted(before.keys() | now.keys()):
            if before.get(path) != now.get(path):
                return path


def _read_versions(places: Sequence[str]) -> dict[str, tuple[int, int]]:
    paths = [path for place in places for path in _walk(place)]
    found = {}
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        found[path] = status.st_mtime_ns, status.st_size
    return found


def _walk(place: str) -> Iterator[str]:
    if not os.path.isdir(place):
        yield place
        return
    for directory, _, names in os.walk(place):
        yield from (f"{directory}/{name}" for name in names if name.endswith(WATCHED))
