"""Decides which process of a mesh each request of a claim is, and the variables of libtpu for it.

A container that names a request gets that request's chips only. Together they compute on the mesh of the whole claim,
and find each other on the pod's loopback address. Source: the variables, orders and bounds of JAX's own tests with
several processes on a host (jax/_src/test_multiprocess.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pydra import Claim, TerminalError
from pydra_tpu.claim_config import Processes, TpuConfig
from pydra_tpu.geometry import Bounds, SubSlice, divide_bounds, find_sub_slice

EIGHT_PROCESSES = Bounds(4, 2)
"""The bounds of eight processes of one chip each in JAX's tests. All others there follow from the mesh."""


class NotProcesses(TerminalError):
    """The requests of a claim cannot be the processes of one mesh."""

    reason = "NotProcesses"


class MeshProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a mesh: its rank, from 0, its chips, how many processes there are, and the ports of all."""

    rank: int
    part: SubSlice
    grid: Bounds
    ports: tuple[int, ...]


def find_processes(claim: Claim, offered: Mapping[str, SubSlice], mesh: SubSlice, count: int) -> dict[str, MeshProcess]:
    """The processes of the claim by request; none if its config does not ask for them. `count` chips has the host.

    Ranks are in the order of the chips. Raises NotProcesses: the requests have no equal parts that fill the mesh.
    """
    chips: dict[str, set[int]] = {}
    wanted: dict[str, Processes | None] = {}
    for device in claim.devices:
        if not device.admin_access:
            request = device.request.partition("/")[0]
            chips.setdefault(request, set()).update(offered[device.device].chips)
            wanted[request] = (device.config(TpuConfig) or TpuConfig()).processes
    processes = next((one for one in wanted.values() if one is not None), None)
    if processes is None:
        return {}
    if odd := [request for request, one in wanted.items() if one != processes]:
        raise NotProcesses(
            f"processes: request {odd[0]} has another value or none; one config without `requests` is for all of them"
        )
    parts = {request: find_sub_slice(own, count) for request, own in chips.items()}
    shapes = {None if part is None else part.bounds for part in parts.values()}
    shape = shapes.pop()
    grid = None if shapes or shape is None else divide_bounds(mesh.bounds, shape)
    if len(parts) < 2 or grid is None:
        listing = "; ".join(f"{request}: {', '.join(map(str, sorted(own)))}" for request, own in chips.items())
        raise NotProcesses(
            "processes: each request must have an equal part of the mesh, and there must be at least two; the chips "
            f"are {listing}; ask for devices of one shape, one request for each process"
        )
    grid = EIGHT_PROCESSES if grid.size == EIGHT_PROCESSES.size else grid
    order = sorted(parts, key=lambda request: min(chips[request]))
    ports = tuple(processes.first_port + rank for rank in range(len(order)))
    return {
        request: MeshProcess(rank=rank, part=part, grid=grid, ports=ports)
        for rank, request in enumerate(order)
        if (part := parts[request]) is not None
    }
