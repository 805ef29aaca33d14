"""Scenarios: a machine type, and what is wrong with it: `v5e-8`, `v5e-8+node-gone+throttled`.

What is wrong with a chip is so with the machine's last one, and with the last of its PCI functions. Files of the
machine are made once, so that a fault in them can be repaired; services run as long as the backend.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec.structs import replace

from pydra_pci.simulation.machine_tree import ScenarioError, default_state, find_machine, open_tree
from pydra_tpu.settings import Settings
from pydra_tpu.simulation.machine_types import MACHINE_TYPES, MachineType
from pydra_tpu.simulation.metadata_server import describe_slice, serve_metadata
from pydra_tpu.simulation.runtime import SimulatedRuntime, describe_workload, run_runtime
from pydra_tpu.simulation.tree import list_functions, write_files

LINKS = 4


def _remove_node(root: str, machine: MachineType) -> None:
    os.unlink(root + list_functions(machine)[-1].node)


def _unbind_driver(root: str, machine: MachineType) -> None:
    function = list_functions(machine)[-1]
    os.unlink(f"{root}/{function.directory}/driver")
    shutil.rmtree(f"{root}/sys/class/accel/accel{function.number}", ignore_errors=True)


def _remove_function(root: str, machine: MachineType) -> None:
    function = list_functions(machine)[-1]
    shutil.rmtree(f"{root}/{function.directory}")
    os.unlink(f"{root}/sys/bus/pci/devices/{function.address}")


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
"""`workload` and `metadata` are none: a runtime that serves its metrics, and a server that alone tells of the slice."""


@asynccontextmanager
async def open_simulation(settings: Settings) -> AsyncIterator[tuple[Settings, Sequence[str]]]:
    """The settings to read the machine with, and the command that stands for Google's library.

    Raises ScenarioError.
    """
    name, *faults = settings.scenario.split("+")
    machine = find_machine(name, MACHINE_TYPES)
    known = (*FILE_FAULTS, *MACHINE_FAULTS, *LINK_FAULTS, *SERVICE_FAULTS)
    if unknown := [fault for fault in faults if fault not in known]:
        raise ScenarioError(
            f"{settings.scenario}: there is no {unknown[0]}; after a + there can be: {', '.join(known)}"
        )
    machine = replace(
        machine, **{field: value for one in faults for field, value in MACHINE_FAULTS.get(one, {}).items()}
    )
    root = _make_files(settings, machine, faults)
    settings = replace(
        settings,
        host_root="/",
        sys_root=f"{root}/sys",
        proc_root=f"{root}/proc",
        dev_root=f"{root}/dev",
        tpu_env=f"{root}/etc/tpu/tpu-env",
        metadata_server="",
        log_directory=f"{root}/logs",
    )
    if not set(METADATA).intersection(faults):
        settings = replace(
            settings,
            accelerator=settings.accelerator or machine.accelerator,
            topology=settings.topology or machine.topology,
        )
    async with AsyncExitStack() as services:
        if {"workload", "metrics-hang"}.intersection(faults):
            generation = machine.generation
            metrics = describe_workload(machine.chips, generation.runtime_devices, generation.memory)
            runtime = await services.enter_async_context(run_runtime(SimulatedRuntime(metrics)))
            runtime.hangs = "metrics-hang" in faults
            settings = replace(settings, runtime_metrics_ports=(runtime.port,))
        if "metadata-silent" in faults:
            port = await services.enter_async_context(_listen())
            settings = replace(settings, metadata_server=f"127.0.0.1:{port}")
        elif set(METADATA).intersection(faults):
            served = describe_slice(machine, contradicts="metadata-contradicts" in faults)
            server = serve_metadata(served, late="metadata-late" in faults)
            settings = replace(settings, metadata_server=await services.enter_async_context(server))
        command: Sequence[str] = ()
        if set(LINK_FAULTS).intersection(faults):
            command = ("cat", f"{root}/library.json")
            settings = replace(settings, link_metrics_port=await services.enter_async_context(_listen()))
        yield settings, command


def _make_files(settings: Settings, machine: MachineType, faults: Sequence[str]) -> str:
    """The directory of the machine's files, which are made when they are not there. Raises ScenarioError."""
    state = (
        f"{default_state('pydra-tpu')}/{settings.scenario}" if settings.state == Settings().state else settings.state
    )

    def write(draft: str) -> None:
        write_files(draft, machine)
        _break(draft, machine, faults)

    return open_tree(state, write, variable="PYDRA_TPU_STATE")


def _break(root: str, machine: MachineType, faults: Sequence[str]) -> None:
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


@asynccontextmanager
async def _listen() -> AsyncIterator[int]:
    """The port of a service that takes connections and says nothing."""
    connections: list[asyncio.StreamWriter] = []

    def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in connections:
            writer.close()
