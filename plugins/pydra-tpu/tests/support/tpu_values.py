"""Machines, their processes, claims and allocated devices for the tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydra import AllocatedDevice, Claim, HeldClaim
from pydra.backends.contract import held_copy
from pydra_tpu.generations import BY_NAME
from pydra_tpu.geometry import Bounds
from pydra_tpu.hardware_types import Chip, ChipFunction, Host, SliceFacts


def host_of(generation: str, chips: int, topology: Bounds | None = None, **facts: Any) -> Host:
    """A host whose chips are all as they should be."""
    return Host(
        chips=tuple(chip_of(generation, index) for index in range(chips)),
        facts=SliceFacts(topology=topology, **facts),
        uuid="5f1c7d0e-8a52-4a0f-9d3e-2b6f0c9d1e47",
    )


def chip_of(generation: str, index: int, **fields: Any) -> Chip:
    """A chip with one function; fields of the function are among `fields`."""
    given = {name: fields.pop(name) for name in ChipFunction.__struct_fields__ if name in fields}
    function = {
        "address": f"0000:00:{4 + index:02x}.0",
        "slot": f"0000:00:{4 + index:02x}",
        "generation": BY_NAME[generation],
        "driver": "vfio-pci",
        "node": f"/dev/vfio/{index}",
        "node_exists": True,
    }
    return Chip(index=index, functions=(ChipFunction(**{**function, **given}),), **fields)


def add_process(root: Path, pid: int, node: str, started: int = 7) -> Path:
    """A process of the node that has a file open."""
    process = root / "tree" / "proc" / str(pid)
    (process / "fd").mkdir(parents=True)
    (process / "fd" / "0").symlink_to("/dev/null")
    (process / "fd" / "5").symlink_to(node)
    (process / "stat").write_text(f"{pid} (python) 3) S 1 {'0 ' * 17}{started} 0 0\n")
    return process


def claim_of(*devices: str | AllocatedDevice, uid: str = "uid-1", plan: Any = None) -> Claim:
    allocated = tuple(allocated_device(one) if isinstance(one, str) else one for one in devices)
    return Claim(uid=uid, namespace="default", name="mine", devices=allocated, plan=plan)


def allocated_device(name: str, **fields: Any) -> AllocatedDevice:
    return AllocatedDevice(request="tpus", pool="node", device=name, **fields)


@contextmanager
def holding(*claims: Claim) -> Iterator[None]:
    """The node holds these claims, whichever instance of the agent prepared them."""
    before = held_copy.read
    held_copy.read = lambda: tuple(HeldClaim(claim=one, prepared=(), completed=True) for one in claims)
    try:
        yield
    finally:
        held_copy.read = before
