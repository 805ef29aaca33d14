"""`pydra-nvidia record`: what this node's hardware reports, for a bug report, without changing it.

Names (UUIDs, serial numbers, fabric clusters) are replaced by a keyed hash: the same original has the same name within
one recording, so what belongs together still does, and no way leads back without the salt, which is thrown away unless
the user chose it.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import re
import secrets
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

import pydra
from pydra_nvidia.cli.arguments import add_node_arguments, machine_of
from pydra_nvidia.hardware_reader import read_once, read_without_driver
from pydra_nvidia.hardware_types import Gpu, Reading
from pydra_nvidia.host.driver_root import DriverMissing
from pydra_nvidia.machine_access import MachineAccess
from pydra_nvidia.nvml.read_only_library import CallLog, guard
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import list_changed

_SALT_BYTES = 32

KEPT_SETTINGS = ("dynamic_mig", "orphans", "time_slicing", "mps", "consumable_shares", "vfio", "health", "signals")
"""What is published depends on them; paths and times are of the machine."""

_RELEASE = re.compile(r"\d+\.\d+(?:\.\d+)?")
_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-f]+(?:-[0-9a-f]+)*")
_NO_CLUSTER = str(uuid.UUID(int=0))
_DIGITS = 10**13


def add_command(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "record",
        help="write what this node's hardware reports as JSON, without changing it and without its names",
        description="Read the node's hardware and write what it reports as JSON, to attach to a bug report. Nothing "
        "of the node is changed. UUIDs, serial numbers and fabric clusters are replaced; the node's name is not read.",
    )
    add_node_arguments(parser)
    parser.add_argument("--output", "-o", metavar="FILE", help="write there instead of to the standard output")
    parser.add_argument(
        "--salt",
        metavar="TEXT",
        help="a secret that makes the names the same in each recording; with it they can be compared, so keep it",
    )
    parser.set_defaults(command=run)


def run(parsed: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Raises PydraError, OSError."""
    machine = machine_of(parsed, environ)
    salt = parsed.salt.encode() if parsed.salt else secrets.token_bytes(_SALT_BYTES)
    with machine.gate.inside():
        recording = asyncio.run(record(machine, salt=salt))
    text = msgspec.json.format(msgspec.json.encode(recording)) + b"\n"
    if parsed.output is None:
        sys.stdout.write(text.decode())
    else:
        Path(parsed.output).write_bytes(text)  # as it is: it may be a link or a device, such as /dev/stdout
        print(f"wrote {parsed.output}; GPUs: {len(recording.reading.gpus)}", file=sys.stderr)
    return 0


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded, as JSON has it."""

    pydra: str
    """The version that recorded it."""
    kernel: str
    """The kernel's version, without what its builder added."""
    settings: dict[str, Any]
    """Those that differ from their defaults and decide what is published."""
    reading: Reading
    """What the backend reads of the hardware, passthrough included."""
    refused: dict[str, dict[str, int]]
    """NVML's functions that returned an error: how often each."""
    missing: tuple[str, ...]
    """Functions that the node's NVML does not have."""


async def record(machine: MachineAccess, *, salt: bytes) -> Recording:
    """Record the node's hardware. Raises NvmlError if NVML as a whole does not answer."""
    tree, calls, changed = machine.tree, CallLog(), list_changed(machine.settings)
    # Whether partitions can be made is a setting, and says nothing about what there is.
    all_of_it = replace(machine.settings, vfio=True, dynamic_mig=False)
    try:
        reading = await read_once(NvmlSession(guard(machine.load, calls)), tree, all_of_it)
    except DriverMissing:
        reading = await asyncio.to_thread(read_without_driver, tree)
    release = _RELEASE.match(tree.read(tree.proc("sys/kernel/osrelease")))
    return Recording(
        pydra=pydra.__version__,
        kernel=release[0] if release else "",
        settings=msgspec.to_builtins({name: changed[name] for name in KEPT_SETTINGS if name in changed}),
        reading=rename(reading, salt),
        refused=calls.refused(),
        missing=tuple(sorted(calls.missing)),
    )


def rename(reading: Reading, salt: bytes) -> Reading:
    """The reading with other names of GPUs and MIG devices, wherever they are written, of boards and of clusters."""

    def number(kind: str, original: str) -> int:
        return int.from_bytes(hmac.digest(salt, f"{kind}\0{original}".encode(), "sha256"))

    def name(kind: str, original: str) -> str:
        return str(uuid.UUID(int=number(kind, original) >> 128, version=4))

    def board(gpu: Gpu) -> Gpu:
        fabric, serial = gpu.fabric, gpu.serial and f"{number('serial', gpu.serial) % _DIGITS:013d}"
        if fabric is not None and fabric.cluster != _NO_CLUSTER:
            fabric = replace(fabric, cluster=name("cluster", fabric.cluster))
        return replace(gpu, serial=serial, fabric=fabric)

    # What was known of a lost GPU before belongs to the process, not to the machine.
    lost = tuple(replace(one, last=None) for one in reading.lost)
    encoded = msgspec.json.encode(replace(reading, gpus=tuple(map(board, reading.gpus)), lost=lost))
    text = _UUID.sub(lambda found: f"{found[1]}-{name(found[1], found[0])}", encoded.decode())
    return msgspec.json.decode(text, type=Reading)
