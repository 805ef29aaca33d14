"""Container edits: what a container gets with a device. Values with a fluent way to build them.

Field rules and file format are in `pydra.cdi.spec`. Source: CDI specification 1.1.0, containerEdits.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class DeviceNode(msgspec.Struct, frozen=True, kw_only=True):
    """A device node in the container at `path`, taken from `host_path` (default: the same path) on the node.

    `optional` says that the node may be absent on the host: it is then left out instead of failing the claim.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None
    optional: bool = False


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """`host_path` of the node, seen in the container at `container_path`; read-only unless `options` say otherwise."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "bind")
    type: str = ""
    optional: bool = False


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A program that the runtime runs; `timeout` in seconds, 0 for none."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int = 0


class NetDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface moved into the container and renamed."""

    host_interface_name: str
    name: str


class IntelRdt(msgspec.Struct, frozen=True, kw_only=True):
    """Intel Resource Director Technology settings."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False


class ContainerEdits(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that changes in a container; the methods return a new value with one thing more."""

    env: Mapping[str, str] = {}
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()
