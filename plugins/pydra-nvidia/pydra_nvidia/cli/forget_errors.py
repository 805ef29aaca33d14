"""`pydra-nvidia forget-errors`: a GPU was repaired or reset, and is well although errors of it are remembered."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Mapping
from typing import Any

from pydra import PydraError
from pydra_nvidia.cli.arguments import add_node_arguments, machine_of, minor
from pydra_nvidia.device_names import gpu_name
from pydra_nvidia.hardware_reader import read_once
from pydra_nvidia.health.incident_store import FILE, IncidentStore
from pydra_nvidia.health.xid_catalogue import explain
from pydra_nvidia.machine_access import MachineAccess
from pydra_nvidia.nvml.session import NvmlSession


class ErrorsKept(PydraError):
    """The errors cannot be forgotten."""

    reason = "ErrorsKept"


def add_command(commands: Any) -> None:
    """The subcommand."""
    parser = commands.add_parser(
        "forget-errors",
        help="forget the errors that are remembered of GPUs, after they were reset or replaced",
        description="Forget the XIDs that are remembered of a GPU, or of all. A running agent takes note with its next "
        "look at the hardware. What the GPU itself still says of its health stays.",
    )
    add_node_arguments(parser)
    parser.add_argument(
        "gpu", metavar="GPU", type=_parse_gpu, nargs="?", help="its UUID, or its minor number as 3 or gpu-3 [all]"
    )
    parser.set_defaults(command=run)


def run(parsed: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Raises ErrorsKept; PydraError when a minor number means nothing now."""
    machine = machine_of(parsed, environ)
    uuid = _uuid(machine, parsed.gpu) if isinstance(parsed.gpu, int) else parsed.gpu
    said: list[str] = []
    memory = IncidentStore(os.path.join(machine.settings.state, FILE), said.append)
    forgotten = [one for one in memory.incidents if uuid in (None, one.gpu)]
    if not said:
        memory.forget(lambda one: one in forgotten)
    if said:
        raise ErrorsKept(said[0])
    for one in forgotten:
        print(f"forgot {one.count} x {explain(one.xid)} of {one.gpu}")
    if not forgotten:
        print(f"no errors are remembered of {uuid or 'any GPU'}")
    return 0


def _parse_gpu(text: str) -> str | int:
    """A UUID is taken as it is: its GPU may be gone."""
    return text if text.startswith("GPU-") else minor(text)


def _uuid(machine: MachineAccess, number: int) -> str:
    reading = asyncio.run(read_once(NvmlSession(machine.load, machine.gate), machine.tree, machine.settings))
    for gpu in reading.gpus:
        if gpu.minor == number:
            return gpu.uuid
    known = ", ".join(sorted(gpu_name(gpu.minor) for gpu in reading.gpus)) or "none"
    raise ErrorsKept(f"no GPU answers as {gpu_name(number)}; there are {known}. Its UUID will do too")
