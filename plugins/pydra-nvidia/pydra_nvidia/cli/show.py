"""`pydra-nvidia show`: what the backend sees on this node, what it lacks, and what to do about it."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from pydra import PydraError
from pydra_nvidia.cdi.hooks import describe_hooks, find_hook
from pydra_nvidia.cli.arguments import add_node_arguments, node_of
from pydra_nvidia.cli.report import Look, describe
from pydra_nvidia.composition import Node
from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.health.diagnosis import diagnose
from pydra_nvidia.health.incidents import FILE, IncidentStore
from pydra_nvidia.host.driver_root import DriverMissing, DriverRoot, find_driver_root
from pydra_nvidia.host.kernel_driver import read_module_version
from pydra_nvidia.host.pci import PciBus, read_vfio_host
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.telemetry import Hardware


def add_command(commands: Any) -> None:
    """The subcommand."""
    parser = commands.add_parser(
        "show",
        help="what the backend sees on this node, and what it lacks",
        description="Show what the backend sees on this node: GPUs, partitions, links, health, driver, and how "
        "containers are set up. The exit code is 1 when claims could not be served.",
    )
    add_node_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the reading of the hardware, as JSON")
    parser.set_defaults(command=run)


def run(parsed: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Raises SettingsError, ScenarioError; what is wrong with the hardware is shown."""
    look = asyncio.run(look_at(node_of(parsed, environ)))
    if parsed.json:
        print(msgspec.json.format(msgspec.json.encode(look.reading), indent=2).decode())
        for problem in look.problems:
            print(f"pydra-nvidia: {problem}", file=sys.stderr)
    else:
        print("\n".join(describe(look)))
    return 1 if look.problems else 0


async def look_at(node: Node) -> Look:
    """All that is to be said."""
    problems: list[str] = []
    session = NvmlSession(node.load, node.gate)
    try:
        reading = await Hardware(session, node.tree, settings=node.settings).read()
    except PydraError as error:
        problems.append(str(error))
        functions = await asyncio.to_thread(PciBus(node.tree).functions)
        reading = Reading(functions=functions, vfio=await asyncio.to_thread(read_vfio_host, node.tree))
    finally:
        session.close()
    root = await asyncio.to_thread(_find_root, node, problems, needed=bool(reading.functions))
    try:
        containers = describe_hooks(await asyncio.to_thread(find_hook, node.tree, node.settings))
    except PydraError as error:
        containers = ""
        problems.append(str(error))
    memory = IncidentStore(os.path.join(node.settings.state, FILE), problems.append)
    return Look(
        reading=reading,
        root=root,
        module=await asyncio.to_thread(read_module_version, node.tree),
        containers=containers,
        diagnosis=diagnose(reading, memory.incidents, settings=node.settings, now=time.time()),
        incidents=memory.incidents,
        settings=node.settings,
        problems=tuple(problems),
    )


def _find_root(node: Node, problems: list[str], *, needed: bool) -> DriverRoot | None:
    try:
        return find_driver_root(node.tree, node.settings)
    except DriverMissing as error:
        if needed and str(error) not in problems:
            problems.append(str(error))
        return None
