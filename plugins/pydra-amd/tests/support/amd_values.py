"""Machines, claims and allocated devices for the tests."""

from __future__ import annotations

from typing import Any

from pydra import AllocatedDevice, Claim, HeldClaim
from pydra_amd.hardware_types import Gpu, Mode, Partition, Reading
from pydra_amd.models import BY_DEVICE, PARTITIONS, Model

GIB, MIB = 1 << 30, 1 << 20


def gpu_of(model: str = "0x74a1", mode: str = "spx_nps1", *, index: int = 0, **fields: Any) -> Gpu:
    """A GPU as the kernel shows it in that mode; all memory modes of any model are offered, and no list of others."""
    known = BY_DEVICE[model]
    chosen = Mode(*mode.split("_")) if mode else None
    count = PARTITIONS[known.xccs][chosen.compute] if chosen else 1
    first = index * known.xccs
    given = {
        "index": index,
        "address": f"0000:{5 + 0x20 * index:02x}:00.0",
        "card": first,
        "render": 128 + first,
        "device": model,
        "product": known.name,
        "gfx": known.gfx,
        "mode": chosen,
        "memory_modes": ("nps1", "nps2", "nps4") if chosen else (),
        "memory": known.memory * GIB,
        "partitions": tuple(_partition(known, one, count, first + one) for one in range(count)),
    }
    return Gpu(**{**given, **fields})


def _partition(model: Model, index: int, count: int, number: int) -> Partition:
    return Partition(
        index=index,
        card=number,
        render=128 + number,
        kfd_node=2 + number,
        compute_units=model.compute_units // count,
        simds=4 * model.compute_units // count,
        xccs=model.xccs // count,
        memory=model.memory * GIB // count,
    )


def reading_of(*gpus: Gpu, **fields: Any) -> Reading:
    return Reading(**{"gpus": gpus or (gpu_of(),), "driver_version": "6.12.12", **fields})


def claim_of(*devices: str | AllocatedDevice, uid: str = "uid-1", plan: Any = None) -> Claim:
    allocated = tuple(allocated_device(one) if isinstance(one, str) else one for one in devices)
    return Claim(uid=uid, namespace="default", name=f"claim-{uid}", devices=allocated, plan=plan)


def allocated_device(name: str, **fields: Any) -> AllocatedDevice:
    return AllocatedDevice(request="gpus", pool="node", device=name, **fields)


def held_claim(claim: Claim, *, completed: bool = True) -> HeldClaim:
    return HeldClaim(claim=claim, prepared=(), completed=completed)
