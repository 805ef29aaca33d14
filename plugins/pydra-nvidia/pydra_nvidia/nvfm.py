"""Fabric Manager's client library, libnvfm: which groups of GPUs its NVSwitches can connect, and connecting one.

Each piece of work has a connection of its own, so that a restarted Fabric Manager is found again. Everything blocks.
Source: NVIDIA Fabric Manager User Guide, "Fabric Manager SDK"; nv_fm_types.h in NVIDIA/go-nvfm.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from pydra import ClaimError
from pydra_nvidia.host.driver_root import DriverMissing, DriverRoot, find_library

LIBRARY = "libnvfm.so"
MOST_PARTITIONS, MOST_GPUS, LONGEST_ADDRESS = 64, 16, 256
CONNECT_MS = 5000

SUCCESS, BAD_PARAMETER = 0, -1
NOT_SUPPORTED, UNINITIALIZED, TIMEOUT, VERSION_MISMATCH = -3, -4, -5, -6
IN_USE, NOT_CONFIGURED, CONNECTION_NOT_VALID = -7, -8, -9
NAMES = {
    BAD_PARAMETER: "BADPARAM",
    -2: "GENERIC_ERROR",
    NOT_SUPPORTED: "NOT_SUPPORTED",
    UNINITIALIZED: "UNINITIALIZED",
    TIMEOUT: "TIMEOUT",
    VERSION_MISMATCH: "VERSION_MISMATCH",
    IN_USE: "IN_USE",
    NOT_CONFIGURED: "NOT_CONFIGURED",
    CONNECTION_NOT_VALID: "CONNECTION_NOT_VALID",
    -10: "NVLINK_ERROR",
}
AWAY = frozenset({TIMEOUT, VERSION_MISMATCH, NOT_CONFIGURED, CONNECTION_NOT_VALID})
"""Fabric Manager does not run, is starting, or is of another version than the library."""

_ADVICE = {
    NOT_SUPPORTED: "Fabric Manager must run with FABRIC_MODE=1 (fabricmanager.cfg)",
    VERSION_MISMATCH: f"{LIBRARY} and Fabric Manager must be of the driver's version",
    IN_USE: "GPUs of the partition are in another one that is active, or still in use",
    NOT_CONFIGURED: "Fabric Manager is starting, or waits for the list of active partitions",
    CONNECTION_NOT_VALID: "Fabric Manager must run, with FM_CMD_UNIX_SOCKET_PATH set to the path that"
    " PYDRA_NVIDIA_FABRIC_MANAGER_SOCKET names",
}


def load_nvfm(root: DriverRoot) -> Any:
    """The library of this installation of the driver. Raises DriverMissing."""
    path = find_library(root.here, LIBRARY) or find_library(root.here, f"{LIBRARY}.1")
    if path is None:
        raise DriverMissing(
            f"the driver's installation at {root.host_path} has no {LIBRARY}; the package nvidia-fabricmanager-dev(el)"
            " of the driver's version has it"
        )
    try:
        return ctypes.CDLL(root.path_here(path))
    except OSError as error:
        raise DriverMissing(f"{LIBRARY} cannot be loaded: {error}") from error


class GpuStruct(ctypes.Structure):
    """fmFabricPartitionGpuInfo_t."""

    _fields_ = (
        ("physicalId", ctypes.c_uint),
        ("uuid", ctypes.c_char * 80),
        ("pciBusId", ctypes.c_char * 32),
        ("numNvLinksAvailable", ctypes.c_uint),
        ("maxNumNvLinks", ctypes.c_uint),
        ("nvlinkLineRateMBps", ctypes.c_uint),
    )


class PartitionStruct(ctypes.Structure):
    """fmFabricPartitionInfo_t."""

    _fields_ = (
        ("partitionId", ctypes.c_uint),
        ("isActive", ctypes.c_uint),
        ("numGpus", ctypes.c_uint),
        ("gpuInfo", GpuStruct * MOST_GPUS),
    )


class ListStruct(ctypes.Structure):
    """fmFabricPartitionList_v2, whose version is 1."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("numPartitions", ctypes.c_uint),
        ("maxNumPartitions", ctypes.c_uint),
        ("partitionInfo", PartitionStruct * MOST_PARTITIONS),
    )


class ConnectStruct(ctypes.Structure):
    """fmConnectParams_v2; without its last field fmConnectParams_v1, which older libraries know alone."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("addressInfo", ctypes.c_char * LONGEST_ADDRESS),
        ("timeoutMs", ctypes.c_uint),
        ("addressIsUnixSocket", ctypes.c_uint),
        ("addressType", ctypes.c_uint),
    )


class ActiveStruct(ctypes.Structure):
    """fmActivatedFabricPartitionList_v1."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("numPartitions", ctypes.c_uint),
        ("partitionIds", ctypes.c_uint * MOST_PARTITIONS),
    )


LIST_VERSION = ctypes.sizeof(ListStruct) | 1 << 24
ACTIVE_VERSION = ctypes.sizeof(ActiveStruct) | 1 << 24
CONNECT_VERSIONS = ConnectStruct.addressType.offset | 1 << 24, ctypes.sizeof(ConnectStruct) | 2 << 24
_UNIX = 2


class FabricManagerError(ClaimError):
    """Fabric Manager refused `call`, or does not answer."""

    reason = "FabricManagerError"

    def __init__(self, code: int, call: str) -> None:
        self.code = code
        advice = f": {_ADVICE[code]}" if code in _ADVICE else ""
        super().__init__(f"{call} failed with FM_ST_{NAMES.get(code, 'UNKNOWN')} ({code}){advice}")


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a partition. From Hopper on, `uuid` and `bus_id` say nothing, and `module` is NVML's module ID."""

    module: int
    uuid: str = ""
    bus_id: str = ""

    @property
    def has_bus_id(self) -> bool:
        """Whether the bus ID names a place: it is empty or all zeros where it says nothing."""
        return self.bus_id.strip("0:.") != ""

    @property
    def identity(self) -> str:
        """What tells the GPU from others, whatever IDs partitions have."""
        return self.bus_id if self.has_bus_id else self.uuid or f"module {self.module}"


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A partition: GPUs that reach each other, and no others, while it is active."""

    id: int
    active: bool
    members: tuple[Member, ...]

    @property
    def identities(self) -> tuple[str, ...]:
        """Of its members, sorted."""
        return tuple(sorted(one.identity for one in self.members))


class FabricManager:
    """`load` returns the library; `socket` is Fabric Manager's, as this process sees it. For one thread at a time."""

    def __init__(self, load: Callable[[], Any], socket: str) -> None:
        self._load = load
        self._socket = socket

    def list_groups(self) -> tuple[Group, ...]:
        """All that the machine can have, by ID. Raises FabricManagerError, DriverMissing."""
        found = ListStruct(version=LIST_VERSION)
        with self._connected() as (library, handle):
            _check(library, "fmGetSupportedFabricPartitions", handle, ctypes.byref(found))
        counts = (found.numPartitions, *(one.numGpus for one in found.partitionInfo))
        if counts[0] > MOST_PARTITIONS or max(counts[1:]) > MOST_GPUS:
            raise FabricManagerError(VERSION_MISMATCH, "fmGetSupportedFabricPartitions")
        groups = (_parse(one) for one in found.partitionInfo[: found.numPartitions])
        return tuple(sorted(groups, key=lambda one: one.id))

    def activate(self, group: int) -> None:
        """Connect the GPUs of the partition. Raises FabricManagerError, IN_USE while another one overlaps it."""
        with self._connected() as (library, handle):
            _check(library, "fmActivateFabricPartition", handle, group)

    def deactivate(self, group: int) -> None:
        """Disconnect them; one that is not active is fine. Raises FabricManagerError."""
        with self._connected() as (library, handle):
            try:
                _check(library, "fmDeactivateFabricPartition", handle, group)
            except FabricManagerError as error:
                if error.code != UNINITIALIZED:
                    raise

    def set_active(self, groups: Collection[int]) -> None:
        """Say which partitions are active and no others, as one that was restarted asks. Raises FabricManagerError."""
        active = ActiveStruct(version=ACTIVE_VERSION, numPartitions=len(groups))
        active.partitionIds[: len(groups)] = sorted(groups)
        with self._connected() as (library, handle):
            _check(library, "fmSetActivatedFabricPartitions", handle, ctypes.byref(active))

    @contextmanager
    def _connected(self) -> Iterator[tuple[Any, ctypes.c_void_p]]:
        library = self._load()
        if (code := library.fmLibInit()) not in (SUCCESS, IN_USE):  # IN_USE: it is initialised already
            raise FabricManagerError(code, "fmLibInit")
        handle = ctypes.c_void_p()
        self._connect(library, handle)
        try:
            yield library, handle
        finally:
            library.fmDisconnect(handle)

    def _connect(self, library: Any, handle: ctypes.c_void_p) -> None:
        params = ConnectStruct(
            addressInfo=self._socket.encode(), timeoutMs=CONNECT_MS, addressIsUnixSocket=1, addressType=_UNIX
        )
        for version in CONNECT_VERSIONS:
            params.version = version
            code = library.fmConnect(ctypes.byref(params), ctypes.byref(handle))
            if code != VERSION_MISMATCH:
                break
        if code != SUCCESS:
            raise FabricManagerError(code, "fmConnect")


def _check(library: Any, call: str, *arguments: Any) -> None:
    if (code := getattr(library, call)(*arguments)) != SUCCESS:
        raise FabricManagerError(code, call)


def _parse(found: PartitionStruct) -> Group:
    members = (
        Member(module=one.physicalId, uuid=_text(one.uuid), bus_id=_text(one.pciBusId))
        for one in found.gpuInfo[: found.numGpus]
    )
    return Group(id=found.partitionId, active=bool(found.isActive), members=tuple(members))


def _text(raw: bytes) -> str:
    return raw.decode("ascii", "replace")
