"""CDI specs as a container runtime reads them: strictly, from directories in order of priority.

Written from the CDI specification 1.1.0 and apart from `pydra.cdi`, so that the two check each
other. Nothing here writes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]
Variable = Annotated[str, msgspec.Meta(pattern="^[^=]+=")]
DEVICE_NAME = r"^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$"
KIND = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
SUFFIXES = (".json", ".yaml")


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A field that the specification does not have makes the whole file invalid."""


class DeviceNode(_Strict, frozen=True, kw_only=True):
    """A node at `path` in the container, like the one at `host_path` (default: `path`) on the host."""

    path: NonEmpty
    host_path: str = ""
    type: Literal["", "b", "c", "u", "p"] = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: Annotated[str, msgspec.Meta(pattern="^([rwm]*|none)$")] = ""
    uid: int | None = None
    gid: int | None = None


class Mount(_Strict, frozen=True, kw_only=True):
    """A bind mount."""

    host_path: NonEmpty
    container_path: NonEmpty
    options: tuple[str, ...] = ()
    type: str = ""


class Hook(_Strict, frozen=True, kw_only=True):
    """A program run at a moment of the container's life."""

    hook_name: Literal["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
    path: NonEmpty
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    timeout: Annotated[int, msgspec.Meta(gt=0)] | None = None


class NetDevice(_Strict, frozen=True, kw_only=True):
    """A network interface of the host that becomes the container's."""

    host_interface_name: NonEmpty
    name: NonEmpty


class IntelRdt(_Strict, frozen=True, kw_only=True):
    """Cache and bandwidth control."""

    clos_id: str = msgspec.field(name="closID", default="")
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False


class Edits(_Strict, frozen=True, kw_only=True):
    """What changes in a container."""

    env: tuple[Variable, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()


class Device(_Strict, frozen=True, kw_only=True):
    """A named set of edits, which may not be empty."""

    name: Annotated[str, msgspec.Meta(pattern=DEVICE_NAME)]
    annotations: Mapping[str, str] = {}
    container_edits: Edits

    def __post_init__(self) -> None:
        if self.container_edits == Edits():
            raise ValueError(f"device {self.name} has empty edits")


class Spec(_Strict, frozen=True, kw_only=True):
    """One file; `container_edits` apply once when any of its devices is used."""

    cdi_version: str
    kind: str
    annotations: Mapping[str, str] = {}
    devices: Annotated[tuple[Device, ...], msgspec.Meta(min_length=1)]
    container_edits: Edits = Edits()

    def __post_init__(self) -> None:
        if self.cdi_version.removeprefix("v") not in VERSIONS:
            raise ValueError(f"unknown cdiVersion {self.cdi_version}")
        if not KIND.fullmatch(self.kind):
            raise ValueError(f"{self.kind!r} is not a kind: must be vendor/class")
        names = [device.name for device in self.devices]
        if len(set(names)) < len(names):
            raise ValueError(f"device names differ within a spec, found {', '.join(names)}")
        needed = minimum_version(self)
        if VERSIONS.index(self.cdi_version.removeprefix("v")) < VERSIONS.index(needed):
            raise ValueError(f"cdiVersion {self.cdi_version} is below {needed}, which its contents need")


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """A qualified device, the spec it is in, and the file that the spec is in."""

    file: str
    spec: Spec
    device: Device


class Registry(msgspec.Struct, frozen=True, kw_only=True):
    """Everything readable, by qualified name, and what is wrong with the rest, by file."""

    devices: Mapping[str, Resolved]
    errors: Mapping[str, str]


def minimum_version(spec: Spec) -> str:
    """The lowest version of the format that has everything the spec uses."""
    edits = [spec.container_edits, *(device.container_edits for device in spec.devices)]
    rdt = [edit.intel_rdt for edit in edits if edit.intel_rdt]
    if any(edit.net_devices for edit in edits) or any(one.schemata or one.enable_monitoring for one in rdt):
        return "1.1.0"
    if rdt or any(edit.additional_gids for edit in edits):
        return "0.7.0"
    if spec.annotations or any(device.annotations for device in spec.devices) or "." in spec.kind.partition("/")[2]:
        return "0.6.0"
    nodes = [node for edit in edits for node in edit.device_nodes]
    if any(node.host_path for node in nodes) or any(device.name[0].isdigit() for device in spec.devices):
        return "0.5.0"
    return "0.4.0" if any(mount.type for edit in edits for mount in edit.mounts) else "0.3.0"


def parse_spec(content: bytes, file: str) -> Spec:
    """The spec in a file of that name; raises msgspec.DecodeError with the path to what is wrong."""
    if file.endswith(".json"):
        return msgspec.json.decode(content, type=Spec)
    return msgspec.yaml.decode(content, type=Spec)


def read_registry(directories: Sequence[str]) -> Registry:
    """All specs of the directories, the last one first in priority; a broken file disables only itself."""
    devices: dict[str, Resolved] = {}
    errors: dict[str, str] = {}
    for directory in reversed(directories):
        _merge(devices, errors, _read_directory(directory, errors))
    return Registry(devices=devices, errors=errors)


def _read_directory(directory: str, errors: dict[str, str]) -> dict[str, Spec]:
    specs: dict[str, Spec] = {}
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if entry.is_file())
    except FileNotFoundError:
        return {}
    for name in names:
        file = os.path.join(directory, name)
        if not name.endswith(SUFFIXES):
            continue
        try:
            with open(file, "rb") as stream:
                specs[file] = parse_spec(stream.read(), name)
        except (OSError, msgspec.DecodeError) as error:
            errors[file] = f"invalid CDI spec: {error}"
    return specs


def _merge(devices: dict[str, Resolved], errors: dict[str, str], specs: Mapping[str, Spec]) -> None:
    """Add one directory's devices below those of higher priority; a name twice in it is nobody's."""
    found: dict[str, list[Resolved]] = {}
    for file, spec in specs.items():
        for device in spec.devices:
            name = f"{spec.kind}={device.name}"
            found.setdefault(name, []).append(Resolved(file=file, spec=spec, device=device))
    for name, candidates in found.items():
        if len(candidates) > 1:
            for one in candidates:
                errors[one.file] = f"conflicting CDI device {name}, in {', '.join(c.file for c in candidates)}"
        elif name not in devices:
            devices[name] = candidates[0]


def read_specs(directory: str, cdi_ids: Sequence[str]) -> tuple[tuple[str, bytes], ...]:
    """The CDI files that have these devices, and what is in them."""
    registry = read_registry([directory])
    files = sorted({registry.devices[one].file for one in cdi_ids if one in registry.devices})
    return tuple((file, Path(file).read_bytes()) for file in files)
