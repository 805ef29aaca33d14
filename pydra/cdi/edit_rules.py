"""What a container runtime refuses in edits of containers, and what would fail in the container. Pure.

Source: CDI specification 1.1.0, and the rules that its Go library enforces in every runtime. Stricter on
purpose where a container would fail later anyway: paths are absolute, and no string contains a NUL byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from pydra.cdi.edits import BIND_TYPES, ContainerEdits, DeviceNode, Hook, Mount, NetDevice

HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
NODE_TYPES = ("", "b", "c", "u", "p")
_UINT32 = 2**32 - 1
_INT64 = 2**63 - 1


def find_edit_problems(edits: ContainerEdits) -> Iterator[str]:
    """Yield every problem that makes a runtime refuse the edits, each with its place."""
    for name in edits.env:
        if not name or "=" in name:
            yield f"env: {name!r} is not a valid name of an environment variable"
    parts: tuple[tuple[str, Sequence[Any], Callable[[Any], Iterator[str]]], ...] = (
        ("deviceNodes", edits.device_nodes, _find_node_problems),
        ("mounts", edits.mounts, _find_mount_problems),
        ("hooks", edits.hooks, _find_hook_problems),
    )
    for field, items, find_problems in parts:
        for index, item in enumerate(items):
            for problem in find_problems(item):
                yield f"{field}[{index}].{problem}"
    if edits.net_devices:
        yield from _find_net_device_problems(edits.net_devices)
    if edits.intel_rdt is not None or edits.additional_gids:
        yield from _find_process_problems(edits)
    # JSON escapes a NUL byte, so nearly always this is one search; a backslash in a text may look like one.
    if b"u0000" in msgspec.json.encode(edits) and _has_nul(msgspec.to_builtins(edits)):
        yield "a text holds a NUL byte, which no path, variable or argument can"


def _find_node_problems(node: DeviceNode) -> Iterator[str]:
    if not node.path.startswith("/"):
        yield f"path: {node.path!r} must be an absolute path"
    if node.host_path and not node.host_path.startswith("/"):
        yield f"hostPath: {node.host_path!r} must be an absolute path"
    if node.type not in NODE_TYPES:
        yield f"type: {node.type!r} must be one of {', '.join(NODE_TYPES[1:])}, or empty"
    if node.permissions != "none" and node.permissions.strip("rwm"):
        yield f"permissions: {node.permissions!r} must be made of r, w and m, or be 'none'"
    for field, value, least, most in (
        ("major", node.major, -_INT64 - 1, _INT64),
        ("minor", node.minor, -_INT64 - 1, _INT64),
        ("fileMode", node.file_mode, 0, _UINT32),
        ("uid", node.uid, 0, _UINT32),
        ("gid", node.gid, 0, _UINT32),
    ):
        if value is not None and not least <= value <= most:
            yield f"{field}: {value} must be between {least} and {most}"


def _find_mount_problems(mount: Mount) -> Iterator[str]:
    if not mount.container_path.startswith("/"):
        yield f"containerPath: {mount.container_path!r} must be an absolute path"
    if mount.type in BIND_TYPES and not mount.host_path.startswith("/"):
        yield f"hostPath: {mount.host_path!r} must be an absolute path"
    elif not mount.host_path:
        yield "hostPath: must not be empty; a mount needs a source"


def _find_hook_problems(hook: Hook) -> Iterator[str]:
    if hook.hook_name not in HOOK_NAMES:
        yield f"hookName: {hook.hook_name!r} must be one of {', '.join(HOOK_NAMES)}"
    if not hook.path.startswith("/"):
        yield f"path: {hook.path!r} must be an absolute path"
    yield from (f"env: {one[:100]!r} must be NAME=VALUE" for one in hook.env if one.find("=") < 1)
    if not 0 <= hook.timeout <= _UINT32:
        yield f"timeout: {hook.timeout} must be between 0 and {_UINT32}"


def _find_net_device_problems(devices: Sequence[NetDevice]) -> Iterator[str]:
    for field, names in (
        ("hostInterfaceName", [one.host_interface_name for one in devices]),
        ("name", [one.name for one in devices]),
    ):
        yield from (f"netDevices[{index}].{field}: must not be empty" for index, one in enumerate(names) if not one)
        for one, count in Counter(names).items():
            if one and count > 1:
                yield f"netDevices: {count} entries have the {field} {one!r}"


def _find_process_problems(edits: ContainerEdits) -> Iterator[str]:
    for gid in edits.additional_gids:
        if not 0 <= gid <= _UINT32:
            yield f"additionalGids: {gid} must be between 0 and {_UINT32}"
    name = "" if edits.intel_rdt is None else edits.intel_rdt.clos_id
    if name != "/" and (len(name.encode()) >= 4096 or name in (".", "..") or "/" in name or "\n" in name):
        yield f"intelRdt.closID: {name[:100]!r} must be '/' or the name of one directory"


def _has_nul(value: object) -> bool:
    match value:
        case str():
            return "\0" in value
        case dict():
            return any(_has_nul(key) or _has_nul(item) for key, item in value.items())
        case list() | tuple():
            return any(map(_has_nul, value))
        case _:
            return False
