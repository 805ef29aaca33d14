"""The clique of a node: the GPUs of a multi-node NVLink fabric that can reach each other's memory.

All GPUs of a node are in the same clique, or the node cannot be part of a ComputeDomain.
Source: nvml.h, nvmlGpuFabricInfo_v3_t; the rules are those of NVIDIA's driver with CrashOnNVLinkFabricErrors.
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterable

import msgspec

from pydra_nvidia.nvml.errors import LOST, STALE, NvmlError, code_name
from pydra_nvidia.nvml.library import Nvml
from pydra_nvidia.nvml.nvlink import ask_fabric_info

_NOT_SUPPORTED, _COMPLETED = 0, 3
_STATES = {1: "has not begun to join", 2: "is joining"}


class GpuFabric(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU says: its `clique`, empty for a GPU outside any multi-node fabric, or the `problem` with it.

    A GPU that is `lost` says nothing: the others go on in their fabric.
    """

    clique: str = ""
    problem: str = ""
    lost: bool = False


class Fabric(msgspec.Struct, frozen=True, kw_only=True):
    """`clique` is `<cluster>.<clique>`, empty for a node outside any; it counts while there is no `problem`."""

    clique: str = ""
    problem: str = ""


def read_fabrics(nvml: Nvml) -> tuple[GpuFabric, ...]:
    """One for each GPU that NVML counts. Raises NvmlError when there is no talking to NVML."""
    return tuple(_read(nvml, index) for index in range(nvml.call("nvmlDeviceGetCount")))


def find_fabric(gpus: Iterable[GpuFabric]) -> Fabric:
    """The node's, from what its GPUs say."""
    gpus = tuple(gpus)
    asked = [gpu for gpu in gpus if not gpu.lost] or gpus
    if problem := "; ".join(gpu.problem for gpu in asked if gpu.problem):
        return Fabric(problem=problem)
    cliques = sorted({gpu.clique for gpu in gpus if gpu.clique})
    if len(cliques) > 1:
        return Fabric(problem=f"the node's GPUs are in several cliques of NVLink fabrics: {', '.join(cliques)}")
    return Fabric(clique=cliques[0]) if cliques else Fabric()


def _read(nvml: Nvml, index: int) -> GpuFabric:
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
    if not any(info.clusterUuid):  # NVSwitches of this node alone, as HGX boards have
        return GpuFabric()
    return GpuFabric(clique=f"{uuids.UUID(bytes=bytes(info.clusterUuid))}.{info.cliqueId}")
