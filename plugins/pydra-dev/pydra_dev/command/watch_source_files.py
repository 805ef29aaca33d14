"""Finds the source files of a backend, without importing it here, and waits until one changes."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence

import anyio

from pydra.backends.discovery import find_backend, is_target, locate_file


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
