"""The checkpoint of NVIDIA's own DRA driver, `checkpoint.json` in its plugin directory, read as values. Pure.

    {"checksum": n, "v1": {"preparedClaims": {UID: {status, preparedDevices}}},
                    "v2": {"checksum": n, "preparedClaims": {UID: {checkpointState, ...}}, "nodeBootID": ID}}

V2 is read where there is one; what it lacks, V1 is taken to be complete. One entry that cannot be understood costs that
entry. The checksums are over the text as its writer's Go structs print it, so a version's own fields break those of
another: they are not looked at.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, releases 25.3 to 0.4 and the main branch of August 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

FILE = "checkpoint.json"

_KINDS = ("gpu", "mig", "vfio", "channel", "daemon")
"""The last two are those of the driver for ComputeDomains, whose file is of the same form."""

_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}")
"""What a claim's uid may be: it becomes the name of a file."""


class VendorDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One prepared device: which hardware it is, by `kind`, and how the allocation names it.

    `uuid` is that of the GPU or of the MIG device, `address` the PCI address of a passed-through GPU; empty where that
    version kept none; `domain` the UID of a channel's or daemon's ComputeDomain. `time_sliced` is what the claim asked
    for where that version did not write down what it had set.
    """

    kind: str
    device: str
    pool: str
    request: str
    uuid: str = ""
    address: str = ""
    mps: str = ""
    time_sliced: bool = False
    domain: str = ""


class VendorResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A device in the claim's allocation, as the API has it."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: Mapping[str, Any] = {}


class VendorClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim; `completed` False for one in whose preparation that driver was stopped, which has no devices."""

    uid: str
    completed: bool
    namespace: str = ""
    name: str = ""
    results: tuple[VendorResult, ...] = ()
    devices: tuple[VendorDevice, ...] = ()


class VendorCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """All that the file says; `problems` are entries that cannot be understood."""

    claims: tuple[VendorClaim, ...] = ()
    boot_id: str = ""
    problems: tuple[str, ...] = ()


class NoCheckpoint(ValueError):
    """The text is not a checkpoint."""


class _Config(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    mps_control_daemon_id: str = msgspec.field(name="mpsControlDaemonID", default="")
    time_slice_applied: bool = False
    domain: str = msgspec.field(name="ComputeDomain", default="")


class _Group(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    devices: tuple[dict[str, Any], ...] = ()
    config_state: _Config = _Config()


class _Names(msgspec.Struct, frozen=True, kw_only=True):
    requests: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = msgspec.field(name="Requests")
    pool: str = msgspec.field(name="PoolName")
    device: str = msgspec.field(name="DeviceName")


class _Info(msgspec.Struct, frozen=True, kw_only=True):
    uuid: str = ""
    address: str = msgspec.field(name="pciBusID", default="")


class _Concrete(msgspec.Struct, frozen=True, kw_only=True):
    uuid: str = msgspec.field(name="migUUID", default="")


class _Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """`info` of GPUs, passed-through GPUs, and MIG devices before 25.12; `concrete` of MIG devices since."""

    device: _Names
    info: _Info | None = None
    concrete: _Concrete | None = None


class _Devices(msgspec.Struct, frozen=True, kw_only=True):
    results: tuple[VendorResult, ...] = ()
    config: tuple[Any, ...] = ()


class _Allocation(msgspec.Struct, frozen=True, kw_only=True):
    devices: _Devices = _Devices()


class _Status(msgspec.Struct, frozen=True, kw_only=True):
    allocation: _Allocation = _Allocation()


class _Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    checkpoint_state: str = "PrepareCompleted"
    status: _Status = _Status()
    prepared_devices: tuple[_Group, ...] = ()
    namespace: str = ""
    name: str = ""


class _Version(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    prepared_claims: Mapping[str, msgspec.Raw] = {}
    node_boot_id: str = msgspec.field(name="nodeBootID", default="")


class _File(msgspec.Struct, frozen=True, kw_only=True):
    v1: msgspec.Raw = msgspec.Raw(b"")
    v2: msgspec.Raw = msgspec.Raw(b"")


def parse_vendor_checkpoint(text: bytes) -> VendorCheckpoint:
    """What the file says. Raises NoCheckpoint."""
    try:
        file = msgspec.json.decode(text, type=_File)
        chosen = bytes(file.v2) or bytes(file.v1)
        version = msgspec.json.decode(chosen, type=_Version) if chosen else _Version()
    except (ValueError, RecursionError) as error:
        raise NoCheckpoint(str(error)) from error
    problems: list[str] = []
    claims = []
    for uid, raw in sorted(version.prepared_claims.items()):
        try:
            if not _UID.fullmatch(uid):
                raise ValueError("that is not a uid, which has letters, digits and dashes")
            claims.append(_claim(uid, msgspec.json.decode(raw, type=_Entry)))
        except ValueError as error:
            problems.append(f"claim {_shown(uid)} cannot be understood: {error}")
    return VendorCheckpoint(claims=tuple(claims), boot_id=version.node_boot_id, problems=tuple(problems))


def _shown(uid: str) -> str:
    return uid if _UID.fullmatch(uid) else ascii(uid)


def _claim(uid: str, entry: _Entry) -> VendorClaim:
    return VendorClaim(
        uid=uid,
        completed=entry.checkpoint_state == "PrepareCompleted",
        namespace=entry.namespace,
        name=entry.name,
        results=entry.status.allocation.devices.results,
        devices=tuple(_devices(entry)),
    )


def _devices(entry: _Entry) -> Iterator[VendorDevice]:
    for group in entry.prepared_devices:
        for kinds in group.devices:
            present = [(kind, value) for kind, value in kinds.items() if kind in _KINDS and value is not None]
            if len(present) != 1:
                raise ValueError(f"a prepared device is of {len(present)} kinds; it must be one of {', '.join(_KINDS)}")
            kind, value = present[0]
            hardware = msgspec.convert(value, _Hardware)
            asked = _asks_for_time_slices(entry.status.allocation.devices.config, hardware.device.requests[0])
            yield _device(kind, hardware, group, time_sliced=group.config_state.time_slice_applied or asked)


def _asks_for_time_slices(configs: tuple[Any, ...], request: str) -> bool:
    """Whether a configuration in the allocation, of whatever shape, gives the request's GPUs time slices."""
    names = {request, request.partition("/")[0]}
    for config in configs:
        match config:
            case {"opaque": {"parameters": {"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}}}:
                if any(name in names for name in config.get("requests") or names):
                    return True
    return False


def _device(kind: str, hardware: _Hardware, group: _Group, *, time_sliced: bool) -> VendorDevice:
    info, concrete = hardware.info or _Info(), hardware.concrete or _Concrete()
    return VendorDevice(
        kind=kind,
        device=hardware.device.device,
        pool=hardware.device.pool,
        request=hardware.device.requests[0],
        uuid=concrete.uuid or info.uuid,
        address=info.address,
        mps=group.config_state.mps_control_daemon_id,
        domain=group.config_state.domain,
        time_sliced=time_sliced,
    )
