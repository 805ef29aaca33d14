"""Two FPGAs as a Kubernetes driver."""

import asyncio  # with: health
import os  # with: health
from collections.abc import Iterator, Sequence  # with: partitions
from collections.abc import Sequence  # without: partitions
from pathlib import Path  # with: health
from typing import Annotated  # with: config

import msgspec  # with: config
from pydra import (
    AllocatedDevice,
    Capacity,
    Claim,
    ContainerEdits,
    CounterConsumption,  # with: partitions
    CounterSet,  # with: partitions
    Device,
    Health,  # with: health
    HealthStatus,  # with: health
    Inventory,
    PreparedDevice,
)

DRIVER = "fpga.example.com"
BOARDS = ("fpga-0", "fpga-1")
SLOTS = 4  # with: partitions
# with: health
FAULTS = Path(os.environ.get("FPGA_FAULTS", "/run/fpga"))
"""A file with the name of a board says what is wrong with it; replace this by what your hardware reports."""
# end
# with: config


class DeviceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of a claim."""

    clock: Annotated[int, msgspec.Meta(ge=100, le=400)] = msgspec.field(name="clockMHz", default=200)


CONFIG_TYPES = {"fpga.example.com/v1/DeviceConfig": DeviceConfig}
# end


async def discover() -> Inventory:
    """Report all devices of this node and their health."""
    # with: partitions
    boards = tuple(CounterSet(name=board, counters={f"slot-{n}": 1 for n in range(SLOTS)}) for board in BOARDS)
    return Inventory(counter_sets=boards, devices=tuple(part for board in BOARDS for part in list_parts(board)))
    # without: partitions
    return Inventory(devices=tuple(describe(board) for board in BOARDS))
    # end
# with: partitions


def list_parts(board: str) -> Iterator[Device]:
    """Yield the board and each part that could be made of it, the largest first."""
    for slots in (4, 2, 1):
        for first in range(0, SLOTS, slots):
            yield describe(board, first, slots)


def describe(board: str, first: int, slots: int) -> Device:
    """Return what claims can know of the part that has so many slots, from the first on."""
    taken = {f"slot-{n}": 1 for n in range(first, first + slots)}
    return Device(
        name=board if slots == SLOTS else f"{board}-slots-{first}-{first + slots - 1}",
        attributes={"model": "x1", "board": board, "slots": slots},
        capacity={"memory": Capacity(f"{4 * slots}Gi")},
        consumes_counters=(CounterConsumption(counter_set=board, counters=taken),),
        health=read_health(board),  # with: health
    )
# without: partitions


def describe(board: str) -> Device:
    """Return what claims can know of a board."""
    return Device(
        name=board,
        attributes={"model": "x1"},
        capacity={"memory": Capacity("16Gi")},
        health=read_health(board),  # with: health
    )
# end
# with: health


def read_health(board: str) -> Health:
    """Return whether a board works."""
    try:
        problem = (FAULTS / board).read_text().strip()
    except FileNotFoundError:
        return Health()
    return Health(status=HealthStatus.UNHEALTHY, reason="BoardFault", message=problem or "the board has failed")


async def wait_changed() -> None:
    """Return when the health of a board has changed. Wait for an event instead if your hardware sends one."""
    before = [read_health(board) for board in BOARDS]
    while [read_health(board) for board in BOARDS] == before:
        await asyncio.sleep(1)
# end


async def prepare(claim: Claim) -> list[PreparedDevice]:
    """Configure the hardware for a claim and return what its containers get."""
    return [device.prepared(build_edits(claim, device)) for device in claim.devices]


def build_edits(claim: Claim, device: AllocatedDevice) -> ContainerEdits:
    """Return what containers get with a device."""
    # The edits of a claim's devices meet in one container: a variable has the same value in all, or a name of its own.
    edits = ContainerEdits().with_env("FPGA", ",".join(one.device for one in claim.devices))
    # with: config
    config = device.config(DeviceConfig) or DeviceConfig()
    edits = edits.with_env(f"{device.device.upper().replace('-', '_')}_MHZ", str(config.clock))
    # end
    return edits.with_device_node(f"/dev/{device.device}", host_path="/dev/null")  # replace with your hardware's node


async def unprepare(claim: Claim, prepared: Sequence[PreparedDevice]) -> None:
    """Undo what `prepare` did; it is called again if it fails."""
