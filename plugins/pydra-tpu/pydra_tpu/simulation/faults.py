"""The faults of scenarios: what is wrong with a simulated machine, by name.

What is wrong with a chip is so with the machine's last one, and with the last of its PCI functions.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence

from pydra_tpu.simulation.machine_types import MachineType
from pydra_tpu.simulation.tree import list_functions

LINKS = 4


def _remove_node(root: str, machine: MachineType) -> None:
    os.unlink(root + list_functions(machine)[-1].node)


def _unbind_driver(root: str, machine: MachineType) -> None:
    last = list_functions(machine)[-1]
    os.unlink(f"{root}/{last.function.slot.path}/driver")
    shutil.rmtree(f"{root}/sys/class/accel/{os.path.basename(last.node)}", ignore_errors=True)


def _remove_function(root: str, machine: MachineType) -> None:
    slot = list_functions(machine)[-1].function.slot
    shutil.rmtree(f"{root}/{slot.path}")
    os.unlink(f"{root}/sys/bus/pci/devices/{slot.address}")


def _hold_chip(root: str, machine: MachineType) -> None:
    _start_process(root, [list_functions(machine)[-1].node])


def _hold_lockfile(root: str, machine: MachineType) -> None:
    """JAX outside of Kubernetes: it takes the lock of libtpu, and all chips."""
    nodes = [function.node for function in list_functions(machine)]
    _start_process(root, ["/tmp/libtpu_lockfile", *nodes])  # noqa: S108 - where libtpu has it


def _start_process(root: str, opened: Sequence[str]) -> None:
    os.makedirs(f"{root}/proc/4711/fd")
    for number, path in enumerate(opened):
        os.symlink(path, f"{root}/proc/4711/fd/{number}")
    with open(f"{root}/proc/4711/stat", "w", encoding="utf-8") as file:
        file.write(f"4711 (train.py) S 1 {'0 ' * 17}7 0 0\n")


FILE_FAULTS: Mapping[str, Callable[[str, MachineType], None]] = {
    "node-gone": _remove_node,
    "driver-unbound": _unbind_driver,
    "chip-gone": _remove_function,
    "chip-held": _hold_chip,
    "lockfile-held": _hold_lockfile,
}
MACHINE_FAULTS: Mapping[str, Mapping[str, int]] = {
    "groups-from-8": {"first_group": 8},
    "groups-shared": {"group_size": 2},
}
"""What the machine is instead: the IOMMU groups of its functions have other numbers, or two functions each."""
LINK_FAULTS = ("link-down", "throttled")
METADATA = ("metadata", "metadata-late", "metadata-contradicts")
SERVICE_FAULTS = ("workload", "metrics-hang", "metadata-silent", *METADATA)
"""`workload` and `metadata` are none: a runtime that serves its metrics, and a server that alone knows the slice."""


def break_machine(root: str, machine: MachineType, faults: Sequence[str]) -> None:
    """Change the machine's files as these faults would, and write what Google's library says."""
    for fault in faults:
        if fault in FILE_FAULTS:
            FILE_FAULTS[fault](root, machine)
    with open(f"{root}/library.json", "w", encoding="utf-8") as file:
        json.dump(_describe_links(machine, faults), file)


def _describe_links(machine: MachineType, faults: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """What Google's library would say, a tray of four chips after the other."""
    last = machine.chips - 1
    broken, throttled = ("link-down" in faults) * 10, ("throttled" in faults) * 3
    return {
        "ici_link_health": [
            f"tray{1 + chip // 4}.chip{chip % 4}.ici{link}.int: {broken if (chip, link) == (last, 0) else 0}"
            for chip in range(machine.chips)
            for link in range(LINKS)
        ],
        "tpu_throttle_score": [f"{chip}-{throttled if chip == last else 0}" for chip in range(machine.chips)],
        "tensorcore_util": ["20.00"] * machine.chips * machine.generation.cores,
    }
