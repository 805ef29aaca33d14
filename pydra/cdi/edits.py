"""Value types for CDI container edits, with builder methods.

    edits = (
        ContainerEdits()
        .with_env("ACME_VISIBLE", "0")
        .with_device_node("/dev/acme0")
        .with_mount("/usr/lib/libacme.so.1", options=("ro", "nosuid", "nodev", "rbind"))
    )

The rules of the fields and the file format are in `pydra.cdi.spec`. Source: CDI specification 1.1.0, containerEdits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

DEFAULT_MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "bind")
BIND_TYPES = ("", "bind", "none")
"""Types of mounts whose source is a path of the host, not the name of a file system such as tmpfs."""


class DeviceNode(msgspec.Struct, frozen=True, kw_only=True):
    """A device node in the container, taken from the host's."""

    path: str
    """Where the node is in the container; an absolute path."""
    host_path: str = ""
    """Where it is on the host; a link is followed. Empty: the same path."""
    type: str = ""
    """`b` (block), `c` or, with a major, `u` (character), `p` (FIFO). Empty: that of the host's node."""
    major: int | None = None
    """None: that of the host's node."""
    minor: int | None = None
    """None: that of the host's node."""
    file_mode: int | None = None
    """Permission bits, such as `0o660`. None: those of the host's node."""
    permissions: str = ""
    """What the device cgroup allows: letters of `rwm`, or `none`. Empty: `rwm`."""
    uid: int | None = None
    """The owner in the container. None: that of the host's node."""
    gid: int | None = None
    """The group in the container. None: that of the host's node."""
    optional: bool = False
    """Whether the host may lack the node: it is then left out instead of failing the claim."""


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A file or directory of the host that the container sees."""

    host_path: str
    """A file or directory of the host; an absolute path."""
    container_path: str
    """Where the container sees it; an absolute path."""
    options: tuple[str, ...] = DEFAULT_MOUNT_OPTIONS
    """As for `mount -o`. Read-only unless they say otherwise."""
    type: str = ""
    """A file system such as `tmpfs`. Empty: a bind mount."""
    optional: bool = False
    """Whether the host may lack the path: the mount is then left out instead of failing the claim."""


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A program of the host that the runtime runs."""

    hook_name: str
    """When it runs: `prestart`, `createRuntime`, `createContainer`, `startContainer`, `poststart` or `poststop`."""
    path: str
    """The program on the host; an absolute path."""
    args: tuple[str, ...] = ()
    """Its arguments; the first is the program's name."""
    env: tuple[str, ...] = ()
    """Its environment, as `NAME=VALUE`."""
    timeout: int = 0
    """Seconds after which the runtime ends it; 0 for never."""


class NetDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface moved into the container and renamed."""

    host_interface_name: str
    """The interface on the host."""
    name: str
    """What the container calls it."""


class IntelRdt(msgspec.Struct, frozen=True, kw_only=True):
    """Intel Resource Director Technology settings."""

    clos_id: str = ""
    """The class of service: a directory in resctrl's file system."""
    l3_cache_schema: str = ""
    """The schema for the L3 cache."""
    mem_bw_schema: str = ""
    """The schema for memory bandwidth."""
    schemata: tuple[str, ...] = ()
    """Lines for the `schemata` file."""
    enable_monitoring: bool = False
    """Whether a monitoring group is created."""


class ContainerEdits(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that changes in a container; the methods return a new value with one thing more."""

    env: Mapping[str, str] = {}
    """Environment variables."""
    device_nodes: tuple[DeviceNode, ...] = ()
    """Device nodes."""
    mounts: tuple[Mount, ...] = ()
    """Mounts."""
    hooks: tuple[Hook, ...] = ()
    """Programs of the host that the runtime runs."""
    net_devices: tuple[NetDevice, ...] = ()
    """Network interfaces that are moved into the container."""
    intel_rdt: IntelRdt | None = None
    """Resource Director Technology settings."""
    additional_gids: tuple[int, ...] = ()
    """Additional groups of the container's process."""

    def with_env(self, name: str, value: str) -> ContainerEdits:
        """Set the environment variable `name`; a former value in these edits is replaced."""
        return replace(self, env={**self.env, name: value})

    def with_device_node(
        self,
        path: str,
        *,
        host_path: str = "",
        type: str = "",  # noqa: A002 - the specification's word
        major: int | None = None,
        minor: int | None = None,
        file_mode: int | None = None,
        permissions: str = "",
        uid: int | None = None,
        gid: int | None = None,
        optional: bool = False,
    ) -> ContainerEdits:
        """Add a device node; what is not given is taken from the host's node."""
        node = DeviceNode(
            path=path,
            host_path=host_path,
            type=type,
            major=major,
            minor=minor,
            file_mode=file_mode,
            permissions=permissions,
            uid=uid,
            gid=gid,
            optional=optional,
        )
        return replace(self, device_nodes=(*self.device_nodes, node))

    def with_mount(
        self,
        host_path: str,
        container_path: str = "",
        *,
        options: Sequence[str] = DEFAULT_MOUNT_OPTIONS,
        type: str = "",  # noqa: A002 - the specification's word
        optional: bool = False,
    ) -> ContainerEdits:
        """Mount a file or directory of the host at `container_path` (default: the same path)."""
        mount = Mount(
            host_path=host_path,
            container_path=container_path or host_path,
            options=tuple(options),
            type=type,
            optional=optional,
        )
        return replace(self, mounts=(*self.mounts, mount))

    def with_hook(
        self, hook_name: str, path: str, *, args: Sequence[str] = (), env: Sequence[str] = (), timeout: int = 0
    ) -> ContainerEdits:
        """Add a hook: the host's program at `path` runs at `hook_name`; `args` begins with the program's name."""
        hook = Hook(hook_name=hook_name, path=path, args=tuple(args), env=tuple(env), timeout=timeout)
        return replace(self, hooks=(*self.hooks, hook))

    def with_net_device(self, host_interface_name: str, name: str) -> ContainerEdits:
        """Move a network interface of the host into the container as `name`."""
        device = NetDevice(host_interface_name=host_interface_name, name=name)
        return replace(self, net_devices=(*self.net_devices, device))

    def with_intel_rdt(
        self,
        *,
        clos_id: str = "",
        l3_cache_schema: str = "",
        mem_bw_schema: str = "",
        schemata: Sequence[str] = (),
        enable_monitoring: bool = False,
    ) -> ContainerEdits:
        """Set Resource Director Technology settings; they replace former ones in these edits."""
        settings = IntelRdt(
            clos_id=clos_id,
            l3_cache_schema=l3_cache_schema,
            mem_bw_schema=mem_bw_schema,
            schemata=tuple(schemata),
            enable_monitoring=enable_monitoring,
        )
        return replace(self, intel_rdt=settings)

    def with_additional_gids(self, *gids: int) -> ContainerEdits:
        """Add groups to the container's process."""
        return replace(self, additional_gids=(*self.additional_gids, *gids))
