"""A CDI spec as a value, and its JSON both ways: strict in, canonical out. Pure; the rules are in `pydra.cdi.validate`.

The same spec always gives the same bytes. Field names: CDI specification 1.1.0, JSON.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from pydra.cdi.edits import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice
from pydra.errors import CdiError

MAX_BYTES = 16 * 1024 * 1024


class SpecDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a spec, and what a container gets with it."""

    name: str
    edits: ContainerEdits
    annotations: Mapping[str, str] = {}


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """A CDI spec: `kind` is `vendor/class`; `edits` come once with any of the devices."""

    version: str
    kind: str
    devices: tuple[SpecDevice, ...]
    edits: ContainerEdits = ContainerEdits()
    annotations: Mapping[str, str] = {}


class _Json(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """The specification's own words: a field that it does not have makes the file unreadable for every runtime."""


class _DeviceNode(_Json, frozen=True, kw_only=True):
    path: str
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class _Mount(_Json, frozen=True, kw_only=True):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class _Hook(_Json, frozen=True, kw_only=True):
    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int = 0


class _NetDevice(_Json, frozen=True, kw_only=True):
    host_interface_name: str
    name: str


class _IntelRdt(_Json, frozen=True, kw_only=True):
    clos_id: str = msgspec.field(default="", name="closID")
    l3_cache_schema: str = msgspec.field(default="", name="l3CacheSchema")
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False


class _Edits(_Json, frozen=True, kw_only=True):
    env: tuple[str, ...] = ()
    device_nodes: tuple[_DeviceNode, ...] = ()
    net_devices: tuple[_NetDevice, ...] = ()
    hooks: tuple[_Hook, ...] = ()
    mounts: tuple[_Mount, ...] = ()
    intel_rdt: _IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()


class _Device(_Json, frozen=True, kw_only=True):
    name: str
    container_edits: _Edits
    annotations: dict[str, str] = {}


class _Spec(_Json, frozen=True, kw_only=True):
    cdi_version: str
    kind: str
    devices: tuple[_Device, ...]
    container_edits: _Edits | None = None
    annotations: dict[str, str] = {}


def build_document(spec: Spec) -> bytes:
    """The file's bytes: indented for whoever looks, variables and annotations sorted, defaults left out."""
    document = _Spec(
        cdi_version=spec.version,
        kind=spec.kind,
        devices=tuple(
            _Device(name=one.name, container_edits=_build_edits(one.edits), annotations=dict(one.annotations))
            for one in spec.devices
        ),
        container_edits=None if spec.edits.is_empty else _build_edits(spec.edits),
        annotations=dict(spec.annotations),
    )
    return msgspec.json.format(msgspec.json.encode(document, order="deterministic"), indent=2) + b"\n"


def parse_document(content: bytes) -> Spec:
    """The spec in a file's bytes; whether it keeps CDI's rules is for `pydra.cdi.validate` to say.

    Raises:
        CdiError: not JSON, an unknown field, a missing field, a wrong type, or more than 16 MiB.
    """
    if len(content) > MAX_BYTES:
        raise CdiError(f"the file has {len(content)} bytes; a CDI spec has at most {MAX_BYTES}")
    try:
        document = msgspec.json.decode(content, type=_Spec)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CdiError(f"not a CDI spec: {error}") from error
    return Spec(
        version=document.cdi_version,
        kind=document.kind,
        devices=tuple(
            SpecDevice(
                name=one.name,
                edits=_parse_edits(one.container_edits, f"devices[{index}]"),
                annotations=one.annotations,
            )
            for index, one in enumerate(document.devices)
        ),
        edits=_parse_edits(document.container_edits or _Edits(), "spec"),
        annotations=document.annotations,
    )


def _build_edits(edits: ContainerEdits) -> _Edits:
    variables = tuple(f"{name}={value}" for name, value in sorted(edits.env.items()))
    converted: _Edits = msgspec.convert(replace(edits, env=()), _Edits, from_attributes=True)
    return replace(converted, env=variables)


def _parse_edits(edits: _Edits, where: str) -> ContainerEdits:
    variables: dict[str, str] = {}
    for index, variable in enumerate(edits.env):
        name, equals, value = variable.partition("=")
        if not name or not equals:
            raise CdiError(f"{where}: containerEdits.env[{index}] is {variable[:100]!r}, not NAME=VALUE")
        variables[name] = value
    # The default of a pydra mount is read-only; a file that names no options means none.
    return ContainerEdits(
        env=variables,
        device_nodes=tuple(msgspec.convert(one, DeviceNode, from_attributes=True) for one in edits.device_nodes),
        mounts=tuple(msgspec.convert(one, Mount, from_attributes=True) for one in edits.mounts),
        hooks=tuple(msgspec.convert(one, Hook, from_attributes=True) for one in edits.hooks),
        net_devices=tuple(msgspec.convert(one, NetDevice, from_attributes=True) for one in edits.net_devices),
        intel_rdt=None if edits.intel_rdt is None else msgspec.convert(edits.intel_rdt, IntelRdt, from_attributes=True),
        additional_gids=edits.additional_gids,
    )
