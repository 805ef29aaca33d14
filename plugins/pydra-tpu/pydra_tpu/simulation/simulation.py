"""Opens a machine by its scenario: a machine type, and what is wrong with it: `v5e-8`, `v5e-8+node-gone+throttled`.

Files of the machine are made once, so that a fault in them can be repaired; services run as long as the backend.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec.structs import replace

from pydra_pci.simulation.machine_tree import ScenarioError, default_state, find_machine, open_tree
from pydra_tpu.settings import Settings
from pydra_tpu.simulation.faults import (
    FILE_FAULTS,
    LINK_FAULTS,
    MACHINE_FAULTS,
    METADATA,
    SERVICE_FAULTS,
    break_machine,
)
from pydra_tpu.simulation.machine_types import MACHINE_TYPES, MachineType
from pydra_tpu.simulation.metadata_server import describe_slice, serve_metadata
from pydra_tpu.simulation.runtime import SimulatedRuntime, describe_workload, run_runtime
from pydra_tpu.simulation.tree import write_files


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
        break_machine(draft, machine, faults)

    return open_tree(state, write, variable="PYDRA_TPU_STATE")


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
