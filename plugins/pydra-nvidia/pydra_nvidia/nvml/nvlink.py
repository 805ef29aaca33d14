"""NVLink: how many links carry traffic, where they end, their errors, and the fabric that spans nodes.

The clique of a node: the GPUs of a multi-node fabric that can reach each other's memory. All GPUs of a node are in the
same clique, or the node cannot be part of a ComputeDomain.
Source: nvml.h, nvmlGpuFabricInfo_v3_t; the rules are those of NVIDIA's driver with CrashOnNVLinkFabricErrors.
"""

from __future__ import annotations

import ctypes
import uuid as uuids
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from pydra_nvidia.hardware_types import Architecture, Fabric, Gpu, NvLinks
from pydra_nvidia.nvml.errors import LOST, STALE, UNAVAILABLE, NvmlError, code_name
from pydra_nvidia.nvml.gpus import parse_bus_id
from pydra_nvidia.nvml.pynvml_library import Looks, Nvml, read_fields

MOST_LINKS = 36
_GPU, _SWITCH = 0, 2
"""nvmlIntNvLinkDeviceType_t."""

_UP = frozenset({1, 2})
"""A link that sleeps wakes with the first traffic."""

_COMPLETED = 3
_HEALTH = {1: True, 2: False, 3: True}
"""healthSummary of the third version: healthy, unhealthy, limited capacity; 0 is not known."""

_ERROR_COUNTERS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3, "ecc_data": 4}
_ERROR_FIELDS = {
    "replay": 161,
    "recovery": 162,
    "crc": 163,
    "malformed_packet": 206,
    "buffer_overrun": 207,
    "receive": 208,
    "link_integrity": 211,
    "transmit_discard": 212,
    "recovery_failed": 214,
    "effective": 219,
    "symbol": 221,
}


class Ends(msgspec.Struct, frozen=True, kw_only=True):
    """Where the links that were up ended; it stays so while the same links are up, or all rest in MIG mode."""

    up: tuple[int, ...] = ()
    peers: tuple[str, ...] = ()
    switched: bool = False


def read_link_states(nvml: Nvml, handle: Any, *, subject: str) -> tuple[int, ...]:
    """The state of each link (0 down, 1 up, 2 asleep); empty for a GPU without NVLink."""
    states: list[int] = []
    for link in range(MOST_LINKS):
        state = nvml.look("nvmlDeviceGetNvLinkState", handle, link, subject=subject)
        if state is None:
            break
        states.append(state)
    return tuple(states)


def read_ends(nvml: Nvml, handle: Any, up: tuple[int, ...], functions: Collection[str], *, subject: str) -> Ends:
    """Where these links end. `functions` are the addresses of the node's GPUs, for a driver that reports no types."""
    peers: set[str] = set()
    switched = False
    for link in up:
        kind = nvml.look("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link, subject=subject)
        if kind == _SWITCH:
            switched = True
            continue
        remote = nvml.look("nvmlDeviceGetNvLinkRemotePciInfo", handle, link, subject=subject)
        if remote is None:
            continue
        address = parse_bus_id(remote.busId)
        if kind == _GPU or address in functions:
            peers.add(address)
        elif kind is None:
            switched = True
    return Ends(up=up, peers=tuple(sorted(peers)), switched=switched)


def links_of(states: tuple[int, ...], ends: Ends) -> NvLinks | None:
    """As a value; None for a GPU without NVLink."""
    if not states:
        return None
    return NvLinks(total=len(states), up=len(links_up(states)), peers=ends.peers, switched=ends.switched)


def links_up(states: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers of the links that carry traffic."""
    return tuple(link for link, state in enumerate(states) if state in _UP)


def read_fabric(nvml: Nvml, handle: Any, *, subject: str) -> Fabric | None:
    """The fabric that the GPU has joined; None without one, while it joins, or when it failed to."""
    try:
        return _parse_fabric(ask_fabric_info(nvml, handle, subject=subject))
    except NvmlError as error:
        if error.code in LOST or error.code in STALE:
            raise
        return None


def _parse_fabric(info: Any) -> Fabric | None:
    """A cluster without a UUID is of this node alone: HGX boards with their own switches have that."""
    if info is None or info.state != _COMPLETED or info.status != 0 or not any(info.clusterUuid):
        return None
    return Fabric(
        cluster=str(uuids.UUID(bytes=bytes(info.clusterUuid))),
        clique=info.cliqueId,
        healthy=_HEALTH.get(getattr(info, "healthSummary", 0)),
    )


def ask_fabric_info(nvml: Nvml, handle: Any, *, subject: str) -> Any:
    """The newest version of the structure that the driver knows; None for a GPU or a driver without a fabric.

    Raises NvmlError when the question fails.
    """
    failure = None
    for call, structure in (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    ):
        info = getattr(nvml.pynvml, structure)()
        try:
            nvml.call(call, handle, ctypes.byref(info), subject=subject)
        except NvmlError as error:
            if error.code in LOST or error.code in STALE:
                raise
            failure = failure if error.code in UNAVAILABLE else error
            continue
        return info
    if failure is not None:
        raise failure
    return None


def read_link_errors(nvml: Looks, handle: Any, gpu: Gpu) -> dict[str, float]:
    """The sum over the GPU's links for each kind of error, without the kinds that no link reports.

    Source: nvml.h. Before Hopper there are counters for each link; Hopper has field values for the data link layer, and
    Blackwell others in their place.
    """
    links = range(gpu.links.total if gpu.links else 0)
    if Architecture.HOPPER <= gpu.architecture < Architecture.UNKNOWN:
        wanted = [(field, link) for field in _ERROR_FIELDS.values() for link in links]
        values = read_fields(nvml, handle, wanted, subject=gpu.uuid)
        kinds = [kind for kind in _ERROR_FIELDS for _ in links]
    else:
        values = tuple(
            nvml.look("nvmlDeviceGetNvLinkErrorCounter", handle, link, counter, subject=gpu.uuid)
            for counter in _ERROR_COUNTERS.values()
            for link in links
        )
        kinds = [kind for kind in _ERROR_COUNTERS for _ in links]
    sums: dict[str, float] = {}
    for kind, value in zip(kinds, values, strict=True):
        if value is not None:
            sums[kind] = sums.get(kind, 0.0) + value
    return sums


_NOT_SUPPORTED = 0
_STATES = {1: "has not begun to join", 2: "is joining"}


class GpuFabric(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU says: its `clique`, empty for a GPU outside any multi-node fabric, or the `problem` with it.

    A GPU that is `lost` says nothing: the others go on in their fabric.
    """

    clique: str = ""
    problem: str = ""
    lost: bool = False


class NodeFabric(msgspec.Struct, frozen=True, kw_only=True):
    """`clique` is `<cluster>.<clique>`, empty for a node outside any; it counts while there is no `problem`."""

    clique: str = ""
    problem: str = ""


def read_fabrics(nvml: Nvml) -> tuple[GpuFabric, ...]:
    """One for each GPU that NVML counts. Raises NvmlError if NVML does not answer."""
    return tuple(_read_gpu_fabric(nvml, index) for index in range(nvml.call("nvmlDeviceGetCount")))


def find_fabric(gpus: Iterable[GpuFabric]) -> NodeFabric:
    """The node's, from what its GPUs say."""
    gpus = tuple(gpus)
    asked = [gpu for gpu in gpus if not gpu.lost] or gpus
    if problem := "; ".join(gpu.problem for gpu in asked if gpu.problem):
        return NodeFabric(problem=problem)
    cliques = sorted({gpu.clique for gpu in gpus if gpu.clique})
    if len(cliques) > 1:
        return NodeFabric(problem=f"the node's GPUs are in several cliques of NVLink fabrics: {', '.join(cliques)}")
    return NodeFabric(clique=cliques[0]) if cliques else NodeFabric()


def _read_gpu_fabric(nvml: Nvml, index: int) -> GpuFabric:
    subject = f"GPU {index}"
    try:
        handle = nvml.call("nvmlDeviceGetHandleByIndex", index, subject=subject)
        subject = nvml.call("nvmlDeviceGetUUID", handle, subject=subject)
        info = ask_fabric_info(nvml, handle, subject=subject)
    except NvmlError as error:
        if error.code in STALE:
            raise
        return GpuFabric(problem=str(error), lost=error.code in LOST)
    if info is None or info.state == _NOT_SUPPORTED:
        return GpuFabric()
    if info.state != _COMPLETED:
        state = _STATES.get(info.state, f"is in the unknown state {info.state} of joining")
        return GpuFabric(problem=f"GPU {subject} {state} its NVLink fabric; is the fabric manager ready?")
    if info.status != 0:
        error_name = f"NVML_ERROR_{code_name(info.status)} ({info.status})"
        return GpuFabric(problem=f"GPU {subject} could not join its NVLink fabric: {error_name}")
    fabric = _parse_fabric(info)
    return GpuFabric(clique=f"{fabric.cluster}.{fabric.clique}" if fabric is not None else "")
