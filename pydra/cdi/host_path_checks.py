"""Checks that device nodes and mounts exist on the host.

A runtime refuses a container whose device node is missing, minutes after the claim was reported as prepared. So the
paths are checked before success is reported, each time. What a backend marked `optional` is left out if the host lacks
it. Runtimes do not follow a link to a device node, such as those in /dev/disk/by-id (`deviceInfoFromPath` of CDI's Go
library), so they get the node that it leads to.
"""

from __future__ import annotations

import errno
import posixpath
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import lstat, readlink
from time import monotonic
from typing import NamedTuple, TypeAlias

import anyio.to_thread
from msgspec.structs import replace

from pydra.cdi.edits import BIND_TYPES, ContainerEdits, DeviceNode
from pydra.claim import PreparedDevice
from pydra.errors import ClaimError, HostPathMissing

_MAX_LINKS = 40
_COARSENESS = 0.01
"""Seconds by which an event loop's clock may be ahead of the time."""
# A runtime finds no node of type u on the host: it calls all of these c.
_FORMATS = {
    "": {stat.S_IFBLK, stat.S_IFCHR, stat.S_IFIFO},
    "b": {stat.S_IFBLK},
    "c": {stat.S_IFCHR},
    "p": {stat.S_IFIFO},
}


class HostFile(NamedTuple):
    """A file of the host: its mode, and its path without links."""

    mode: int
    path: str


Found: TypeAlias = Mapping[str, HostFile | str]
"""For each path what the host has there, or the reason why there is nothing."""


_asked: dict[object, tuple[Sequence[str], float]] = {}
"""What threads are looking up at this moment, and since when: a path on a dead mount holds its thread for good."""


async def resolve(
    prepared: Sequence[PreparedDevice],
    *,
    root: str = "/",
    deadline: float = 10.0,
    look_up: Callable[[Sequence[str], str], Found] | None = None,
) -> tuple[PreparedDevice, ...]:
    """Return the devices as runtimes get them: without absent optional edits, and with device nodes in place of links.

    `root` is where the host's root directory is seen (an agent in a container); links that point to
    absolute paths are followed below it. `deadline` in seconds. Nodes in /dev are looked up at once,
    without awaiting; for everything else `look_up` asks the file system, in a thread.

    Raises:
        HostPathMissing: a path that is not optional is not there, or is not a device node; all of them.
        ClaimError: the host's file system did not answer within the deadline.
    """
    found, left = _look_up_devices(prepared, root)
    if left:
        found = {**found, **await _look_up_in_thread(sorted(left), root, deadline, look_up or _look_up)}
    return drop_absent(prepared, found)


def drop_absent(prepared: Sequence[PreparedDevice], found: Found) -> tuple[PreparedDevice, ...]:
    """Return the devices without the optional edits that were not found, and with device nodes in place of links.

    Raises:
        HostPathMissing: something that is not optional was not found, or is of the wrong kind.
    """
    missing: list[str] = []
    present: list[PreparedDevice] = []
    for device in prepared:
        changes: dict[object, DeviceNode | None] = {}
        for node in device.edits.device_nodes:
            if not _needs_host(node):
                continue
            path = node.host_path or node.path
            there = found[path]
            if isinstance(there, HostFile) and stat.S_IFMT(there.mode) in _FORMATS.get(node.type, ()):
                if there.path != path:
                    changes[node] = replace(node, host_path=there.path)
                continue
            changes[node] = None
            if not node.optional:
                problem = _describe_node_problem(node, there)
                missing.append(f"{problem}, which device {device.device} (request {device.request}) needs")
        for mount in device.edits.mounts:
            reason = found[mount.host_path] if mount.type in BIND_TYPES else None
            if not isinstance(reason, str):
                continue
            changes[mount] = None
            if not mount.optional:
                problem = f"the node has no {mount.host_path} ({reason})"
                missing.append(f"{problem}, which device {device.device} (request {device.request}) needs")
        present.append(replace(device, edits=_change(device.edits, changes)) if changes else device)
    if missing:
        raise HostPathMissing(*missing)
    return tuple(present)


def _needs_host(node: DeviceNode) -> bool:
    # With type and major given, the runtime makes the node itself and never looks at the host. It takes 0 for absent.
    return node.optional or not (node.type and node.major)


def _describe_node_problem(node: DeviceNode, there: HostFile | str) -> str:
    path = node.host_path or node.path
    if isinstance(there, str):
        return f"the node has no device node {path} ({there})"
    if stat.S_IFMT(there.mode) not in _FORMATS[""]:
        return f"{path} on the node is not a device node"
    return f"{path} on the node is a device node of another type than {node.type!r}"


def _change(edits: ContainerEdits, changes: Mapping[object, DeviceNode | None]) -> ContainerEdits:
    """Put other nodes in the place of some, and leave those out, and mounts, for which there is none."""
    nodes = (changes.get(node, node) for node in edits.device_nodes)
    return replace(
        edits,
        device_nodes=tuple(node for node in nodes if node is not None),
        mounts=tuple(mount for mount in edits.mounts if mount not in changes),
    )


def _look_up_devices(prepared: Sequence[PreparedDevice], root: str) -> tuple[dict[str, HostFile | str], set[str]]:
    """Return the nodes that exist, and the paths that need a lookup in a thread.

    /dev is the kernel's own file system and answers at once. A link in it may lead anywhere.
    """
    found: dict[str, HostFile | str] = {}
    left: set[str] = set()
    base = root.rstrip("/")
    for device in prepared:
        for node in device.edits.device_nodes:
            if not _needs_host(node):
                continue
            path = node.host_path or node.path
            left.add(path)
            if not path.startswith("/dev/"):
                continue
            here, mode = base, 0
            for part in path.split("/")[1:]:
                here = f"{here}/{part}"
                try:
                    mode = lstat(here).st_mode
                except (OSError, ValueError):
                    break
                if part in ("", ".", "..") or stat.S_ISLNK(mode):
                    break
            else:
                found[path] = HostFile(mode, path)
        for mount in device.edits.mounts:
            if mount.type in BIND_TYPES:
                left.add(mount.host_path)
    return found, left - found.keys()


async def _look_up_in_thread(
    paths: Sequence[str], root: str, deadline: float, look_up: Callable[[Sequence[str], str], Found]
) -> Found:
    is_stuck = any(
        asked == paths and monotonic() - since >= deadline - _COARSENESS for asked, since in tuple(_asked.values())
    )
    try:
        # No second thread for paths that already hold one. A thread that is late is abandoned: it cannot be stopped.
        with anyio.fail_after(0 if is_stuck else deadline):
            work = partial(_look_up_noted, look_up, paths, root, monotonic())
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    except TimeoutError as error:
        raise ClaimError(
            f"timed out after {deadline:g} s looking up {', '.join(paths[:3])}{' and more' if len(paths) > 3 else ''} "
            "on the node; a mounted file system may hang"
        ) from error


def _look_up_noted(
    look_up: Callable[[Sequence[str], str], Found], paths: Sequence[str], root: str, since: float
) -> Found:
    token = object()
    _asked[token] = (paths, since)
    try:
        return look_up(paths, root)
    finally:
        del _asked[token]


def _look_up(paths: Iterable[str], root: str) -> Found:
    found: dict[str, HostFile | str] = {}
    for path in paths:
        try:
            found[path] = _stat_below(root, path)
        except OSError as error:
            found[path] = (error.strerror or str(error)).lower()
        except ValueError as error:  # a NUL byte in the path
            found[path] = str(error)
    return found


def _stat_below(root: str, path: str) -> HostFile:
    """Look the path up as if `root` were the root directory: no link leads out of it.

    Raises:
        OSError: as `stat` raises it.
    """
    done, left, links = "/", [part for part in path.split("/") if part not in ("", ".")], 0
    status = lstat(root)
    while left:
        part = left.pop(0)
        if part == "..":
            done = posixpath.dirname(done)
            status = lstat(root + done)
            continue
        here = posixpath.join(done, part)
        status = lstat(root.rstrip("/") + here)
        if not stat.S_ISLNK(status.st_mode):
            done = here
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, "too many links", path)
        target = readlink(root.rstrip("/") + here)
        done = "/" if target.startswith("/") else done
        left = [part for part in target.split("/") if part not in ("", ".")] + left
    return HostFile(status.st_mode, done)
