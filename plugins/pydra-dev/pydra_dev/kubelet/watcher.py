"""The registry directory: which registration sockets came and went, and what is done about each.

A socket that is made anew at the same path is another one: the old plugin is deregistered first.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TypeAlias

import anyio
from anyio.abc import TaskGroup

from pydra_dev.kubelet.settings import KubeletSettings

log = logging.getLogger(__name__)

Identity: TypeAlias = tuple[int, int]
"""Inode and time of creation: what differs between two sockets at one path."""
Sockets: TypeAlias = Mapping[str, Identity]


def compare_sockets(known: Sockets, found: Sockets) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is gone and what is new, in order; a replaced socket is both."""
    gone = sorted(path for path, identity in known.items() if found.get(path) != identity)
    new = sorted(path for path, identity in found.items() if known.get(path) != identity)
    return tuple(gone), tuple(new)


def scan_sockets(directory: str) -> Sockets:
    """All sockets below the directory whose names do not begin with a dot."""
    return dict(_scan(directory))


def _scan(directory: str) -> Iterator[tuple[str, Identity]]:
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # gone since the listing
            continue
        if stat.S_ISSOCK(found.st_mode):
            yield entry.path, (found.st_ino, found.st_mtime_ns)
        elif stat.S_ISDIR(found.st_mode):
            yield from _scan(entry.path)


async def watch_registry(
    settings: KubeletSettings,
    *,
    register: Callable[[str], Awaitable[None]],
    deregister: Callable[[str], None],
) -> None:
    """Look for changes until cancelled; `register` may take its time and is cancelled when its socket goes."""
    known: Sockets = {}
    attempts: dict[str, anyio.CancelScope] = {}
    async with anyio.create_task_group() as tasks:
        while True:
            found = scan_sockets(settings.registry)
            gone, new = compare_sockets(known, found)
            for path in gone:
                attempts.pop(path).cancel()
                deregister(path)
            for path in new:
                attempts[path] = _start(tasks, register, path)
            known = found
            await anyio.sleep(settings.periods.registry_scan)


def _start(tasks: TaskGroup, register: Callable[[str], Awaitable[None]], path: str) -> anyio.CancelScope:
    scope = anyio.CancelScope()

    async def attempt() -> None:
        with scope:
            await register(path)

    tasks.start_soon(attempt, name=f"register {os.path.basename(path)}")
    return scope
