"""Whether the host has what the edits take from it: every device node, every mounted path.

A runtime refuses a container whose device node is missing, minutes after the kubelet was told that
all is well. So it is looked up before success is reported, and never remembered. What a backend
marked `optional` is left out when the host lacks it. Reads; writes nothing.
"""

from __future__ import annotations

import errno
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from os import lstat, readlink, stat_result
from time import monotonic
from typing import TypeAlias

import anyio.to_thread
from msgspec.structs import replace

from pydra.cdi.edits import ContainerEdits, DeviceNode
from pydra.cdi.validate import is_bind
from pydra.claim import PreparedDevice
from pydra.errors import ClaimError, HostPathMissing

_MAX_LINKS = 40
_COARSENESS = 0.01
"""Seconds by which an event loop's clock may be ahead of the time."""
_MODES = {"b": stat.S_ISBLK, "c": stat.S_ISCHR, "u": stat.S_ISCHR, "p": stat.S_ISFIFO}

Found: TypeAlias = Mapping[str, int | str]
"""Of each path the host's file mode, or the reason why there is none."""


_asked: dict[object, tuple[Sequence[str], float]] = {}
"""What threads are looking up at this moment, and since when: paths on a dead mount hold their thread for good."""


async def read_present(
    prepared: Sequence[PreparedDevice],
    *,
    root: str = "/",
    deadline: float = 10.0,
    look_up: Callable[[Sequence[str], str], Found] | None = None,
) -> tuple[PreparedDevice, ...]:
    """The same devices, without the optional edits that the host lacks.

    `root` is where the host's root directory is seen (an agent in a container); links that point to
    absolute paths are followed below it. `deadline` in seconds. `look_up` asks the file system, in a thread.

    Raises:
        HostPathMissing: a path that is not optional is not there, or is no device node; all of them.
        ClaimError: the host's file system did not answer within the deadline.
    """
    wanted = {path for device in prepared for path in _host_paths(device.edits)}
    found: Found = _look_up_devices(wanted, root)
    if paths := sorted(wanted - found.keys()):
        work = partial(_look_up_noted, look_up or _look_up, paths, root, monotonic())
        try:
            with anyio.fail_after(0 if _is_stuck(paths, deadline) else deadline):
                # Abandoned when late: a thread that a dead network mount holds cannot be stopped.
                found = {**found, **await anyio.to_thread.run_sync(work, abandon_on_cancel=True)}
        except TimeoutError as error:
            raise ClaimError(
                f"the node did not say within {deadline:g} s whether it has {', '.join(paths[:3])}"
                f"{' and more' if len(paths) > 3 else ''}; a mounted file system may hang"
            ) from error
    return plan_present(prepared, found)


def plan_present(prepared: Sequence[PreparedDevice], found: Found) -> tuple[PreparedDevice, ...]:
    """The devices without the optional edits that were not found. Pure.

    Raises:
        HostPathMissing: something that is not optional was not found, or is of the wrong kind.
    """
    missing = [
        f"{problem}, which device {device.device} (request {device.request}) needs"
        for device in prepared
        for problem in _missing(device.edits, found)
    ]
    if missing:
        raise HostPathMissing(*missing)
    return tuple(replace(device, edits=_without_absent(device.edits, found)) for device in prepared)


def _host_paths(edits: ContainerEdits) -> Iterator[str]:
    for node in edits.device_nodes:
        if _needs_host(node):
            yield node.host_path or node.path
    for mount in edits.mounts:
        if is_bind(mount):
            yield mount.host_path


def _needs_host(node: DeviceNode) -> bool:
    # With type and major given, the runtime makes the node itself and never looks at the host.
    return node.optional or not (node.type and node.major is not None)


def _missing(edits: ContainerEdits, found: Found) -> Iterator[str]:
    for node in edits.device_nodes:
        if _needs_host(node) and not node.optional:
            yield from _node_problem(node, found)
    for mount in edits.mounts:
        mode = found.get(mount.host_path)
        if isinstance(mode, str) and not mount.optional:
            yield f"the node has no {mount.host_path} ({mode})"


def _node_problem(node: DeviceNode, found: Found) -> Iterator[str]:
    path = node.host_path or node.path
    mode = found.get(path, "not looked up")
    if isinstance(mode, str):
        yield f"the node has no device node {path} ({mode})"
    elif not any(is_kind(mode) for is_kind in _MODES.values()):
        yield f"{path} on the node is no device node"
    elif (is_kind := _MODES.get(node.type)) is not None and not is_kind(mode):
        yield f"{path} on the node is a device node of another type than {node.type!r}"


def _without_absent(edits: ContainerEdits, found: Found) -> ContainerEdits:
    nodes = tuple(node for node in edits.device_nodes if not node.optional or not any(_node_problem(node, found)))
    mounts = tuple(
        mount for mount in edits.mounts if not mount.optional or not isinstance(found.get(mount.host_path), str)
    )
    return replace(edits, device_nodes=nodes, mounts=mounts)


def _look_up_devices(paths: Iterable[str], root: str) -> dict[str, int | str]:
    """The nodes that are plainly there: /dev is the kernel's own file system and answers at once, without a thread."""
    return {path: mode for path in paths if path.startswith("/dev/") and (mode := _plain_mode(root, path)) is not None}


def _plain_mode(root: str, path: str) -> int | None:
    """The mode of what lies there; None for what takes a closer look: a link, which may lead anywhere, or an error."""
    here, mode = root.rstrip("/"), None
    for part in path.split("/")[1:]:
        here = f"{here}/{part}"
        try:
            mode = lstat(here).st_mode
        except (OSError, ValueError):
            return None
        if part in ("", ".", "..") or stat.S_ISLNK(mode):
            return None
    return mode


def _is_stuck(paths: Sequence[str], deadline: float) -> bool:
    """Whether an earlier look at these has not come back in time: another would hold one more thread."""
    return any(
        asked == paths and monotonic() - since >= deadline - _COARSENESS for asked, since in tuple(_asked.values())
    )


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
    found: dict[str, int | str] = {}
    for path in paths:
        try:
            found[path] = _stat_below(root, path).st_mode
        except OSError as error:
            found[path] = (error.strerror or str(error)).lower()
        except ValueError as error:  # a NUL byte in the path
            found[path] = str(error)
    return found


def _stat_below(root: str, path: str) -> stat_result:
    """What `stat` would say of the path, were `root` the root directory: no link leads out of it.

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
    return status
