"""CDI's rules for a spec: names, paths, numbers, versions. Pure; every problem at once, each with its place.

Source: CDI specification 1.1.0 and the rules its Go library holds every runtime to. Stricter on
purpose where a container would fail later anyway: paths are absolute, nothing holds a NUL byte.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from pydra.cdi.document import Spec
from pydra.cdi.edits import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount
from pydra.cdi.version import KNOWN_VERSIONS, minimum_version
from pydra.dns_names import SUBDOMAIN

MAX_CLASS = 63
MAX_VENDOR = 253
MAX_ANNOTATIONS = 256 * 1024
HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
NODE_TYPES = ("", "b", "c", "u", "p")
UINT32 = 2**32 - 1
INT64 = 2**63 - 1

_KIND_PART = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_PERMISSIONS = re.compile(r"[rwm]*|none")
_ANNOTATION_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def find_problems(spec: Spec) -> tuple[str, ...]:
    """Everything that a runtime would refuse the spec for; empty when it is valid."""
    return tuple(_spec_problems(spec))


def find_edit_problems(edits: ContainerEdits) -> tuple[str, ...]:
    """What is wrong with one set of edits, wherever it stands."""
    return tuple(_edit_problems(edits))


def _spec_problems(spec: Spec) -> Iterator[str]:
    yield from _kind_problems(spec.kind)
    yield from _annotation_problems("annotations", spec.annotations)
    if not spec.devices:
        yield "devices: a spec has at least one device"
    for name, count in Counter(device.name for device in spec.devices).items():
        if count > 1:
            yield f"devices: {count} devices have the name {name!r}; names are unique in a spec"
    for index, device in enumerate(spec.devices):
        where = f"devices[{index}]"
        if not _DEVICE_NAME.fullmatch(device.name):
            yield (
                f"{where}.name: {device.name!r} must begin and end with a letter or digit, "
                "with only letters, digits and _ - . : between"
            )
        yield from _annotation_problems(f"{where}.annotations", device.annotations)
        if device.edits.is_empty:
            yield f"{where}.containerEdits: empty; a device must change something"
        yield from (f"{where}.{problem}" for problem in _edit_problems(device.edits))
    yield from _edit_problems(spec.edits)
    yield from _version_problems(spec)


def _kind_problems(kind: str) -> Iterator[str]:
    vendor, slash, name = kind.partition("/")
    if not slash:
        yield f"kind: {kind!r} is not vendor/class"
        return
    for word, part, limit in (("vendor", vendor, MAX_VENDOR), ("class", name, MAX_CLASS)):
        if not _KIND_PART.fullmatch(part):
            yield (
                f"kind: the {word} {part!r} must begin with a letter and end with a letter or digit, "
                "with only letters, digits and _ - . between"
            )
        if len(part) > limit:
            yield f"kind: the {word} has {len(part)} characters, at most {limit} are allowed"


def _version_problems(spec: Spec) -> Iterator[str]:
    declared = spec.version.removeprefix("v")
    if declared not in KNOWN_VERSIONS:
        yield f"cdiVersion: {spec.version!r} is none of {', '.join(KNOWN_VERSIONS)}"
        return
    needed = minimum_version(spec)
    if KNOWN_VERSIONS.index(declared) < KNOWN_VERSIONS.index(needed):
        yield f"cdiVersion: {spec.version!r} is too low, what the spec uses needs {needed}"


def _annotation_problems(where: str, annotations: Mapping[str, str]) -> Iterator[str]:
    for key in annotations:
        prefix, slash, name = key.rpartition("/")
        if not _ANNOTATION_NAME.fullmatch(name) or (slash and not SUBDOMAIN.fullmatch(prefix)) or len(prefix) > 253:
            yield f"{where}: {key!r} is no qualified name such as example.com/word"
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > MAX_ANNOTATIONS:
        yield f"{where}: {size} bytes, at most {MAX_ANNOTATIONS} are allowed"


def _edit_problems(edits: ContainerEdits) -> Iterator[str]:
    for name in edits.env:
        if not name or "=" in name:
            yield f"containerEdits.env: {name!r} is no name of a variable"
    for index, node in enumerate(edits.device_nodes):
        yield from (f"containerEdits.deviceNodes[{index}].{problem}" for problem in _node_problems(node))
    for index, mount in enumerate(edits.mounts):
        yield from (f"containerEdits.mounts[{index}].{problem}" for problem in _mount_problems(mount))
    for index, hook in enumerate(edits.hooks):
        yield from (f"containerEdits.hooks[{index}].{problem}" for problem in _hook_problems(hook))
    yield from _net_device_problems(edits)
    if edits.intel_rdt is not None:
        yield from _rdt_problems(edits.intel_rdt)
    for gid in edits.additional_gids:
        yield from _range_problems("containerEdits.additionalGids", gid, 0, UINT32)
    # JSON escapes a NUL byte, so most edits are done with one look; a backslash in a text may look like it.
    if b"u0000" in msgspec.json.encode(edits) and _has_nul(msgspec.to_builtins(edits)):
        yield "containerEdits: a text holds a NUL byte, which no path, variable or argument can"


def _node_problems(node: DeviceNode) -> Iterator[str]:
    yield from _path_problems("path", node.path)
    if node.host_path:
        yield from _path_problems("hostPath", node.host_path)
    if node.type not in NODE_TYPES:
        yield f"type: {node.type!r} is none of b, c, u, p"
    if not _PERMISSIONS.fullmatch(node.permissions):
        yield f"permissions: {node.permissions!r} is neither made of r, w and m nor 'none'"
    for field, value in (("major", node.major), ("minor", node.minor)):
        yield from _range_problems(field, value, -INT64 - 1, INT64)
    for field, value in (("fileMode", node.file_mode), ("uid", node.uid), ("gid", node.gid)):
        yield from _range_problems(field, value, 0, UINT32)


def _mount_problems(mount: Mount) -> Iterator[str]:
    yield from _path_problems("containerPath", mount.container_path)
    if is_bind(mount):
        yield from _path_problems("hostPath", mount.host_path)
    elif not mount.host_path:
        yield "hostPath: empty; a mount needs a source"


def _hook_problems(hook: Hook) -> Iterator[str]:
    if hook.hook_name not in HOOK_NAMES:
        yield f"hookName: {hook.hook_name!r} is none of {', '.join(HOOK_NAMES)}"
    yield from _path_problems("path", hook.path)
    for variable in hook.env:
        if variable.find("=") < 1:
            yield f"env: {variable[:100]!r} is not NAME=VALUE"
    yield from _range_problems("timeout", hook.timeout, 0, UINT32)


def _net_device_problems(edits: ContainerEdits) -> Iterator[str]:
    devices = edits.net_devices
    for index, device in enumerate(devices):
        if not device.host_interface_name:
            yield f"containerEdits.netDevices[{index}].hostInterfaceName: empty"
        if not device.name:
            yield f"containerEdits.netDevices[{index}].name: empty"
    for word, names in (
        ("hostInterfaceName", [one.host_interface_name for one in devices]),
        ("name", [one.name for one in devices]),
    ):
        for name, count in Counter(names).items():
            if name and count > 1:
                yield f"containerEdits.netDevices: {count} entries have the {word} {name!r}"


def _rdt_problems(rdt: IntelRdt) -> Iterator[str]:
    clos = rdt.clos_id
    if clos == "/":
        return
    if len(clos.encode()) >= 4096 or clos in (".", "..") or "/" in clos or "\n" in clos:
        yield f"containerEdits.intelRdt.closID: {clos[:100]!r} is neither '/' nor the name of one directory"


def _path_problems(field: str, path: str) -> Iterator[str]:
    if not path.startswith("/"):
        yield f"{field}: {path!r} is no absolute path"


def _range_problems(field: str, value: int | None, least: int, most: int) -> Iterator[str]:
    if value is not None and not least <= value <= most:
        yield f"{field}: {value} is not between {least} and {most}"


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


def is_bind(mount: Mount) -> bool:
    """Whether the mount's source is a path of the host, not the name of a file system such as tmpfs."""
    return mount.type in ("", "bind", "none")
