"""`pydra-nvidia record`: what this node's hardware reports, for a bug report."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pydra_nvidia.bug_report import record
from pydra_nvidia.cli.arguments import add_node_arguments, machine_of

_SALT_BYTES = 32


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
        recording = asyncio.run(record(machine.settings, machine.tree, machine.load, salt=salt))
    text = msgspec.json.format(msgspec.json.encode(recording)) + b"\n"
    if parsed.output is None:
        sys.stdout.write(text.decode())
    else:
        Path(parsed.output).write_bytes(text)  # as it is: it may be a link or a device, such as /dev/stdout
        print(f"wrote {parsed.output}; GPUs: {len(recording.reading.gpus)}", file=sys.stderr)
    return 0
