"""`pydra-nvidia record`: this node's hardware as a scenario."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import secrets
import sys
from collections.abc import Mapping
from typing import Any

from pydra_nvidia.cli.arguments import add_node_arguments, machine_of
from pydra_nvidia.host.filesystem import replace_file
from pydra_nvidia.machine_access import needs_simulation

_SALT_BYTES = 32


def add_command(commands: Any) -> None:
    """The subcommand."""
    parser = commands.add_parser(
        "record",
        help="write this node's hardware into a scenario, without changing it and without its names",
        description="Read the node's hardware and write a scenario, with which a simulated machine is like it. Nothing "
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
    with needs_simulation():
        from pydra_nvidia.simulation.recording.record import record  # noqa: PLC0415 - the simulation, for this command only

    machine = machine_of(parsed, environ)
    salt = parsed.salt.encode() if parsed.salt else secrets.token_bytes(_SALT_BYTES)
    today = datetime.datetime.now(datetime.UTC).date()
    with machine.gate.inside():
        recording = asyncio.run(record(machine.settings, machine.tree, machine.load, salt=salt, day=today))
    if parsed.output is None:
        sys.stdout.write(recording.text)
    else:
        replace_file(parsed.output, recording.text.encode())
        print(f"wrote {parsed.output}: {sum(group.count for group in recording.scenario.gpus)} GPUs")
    if recording.differences:
        print(
            f"pydra-nvidia: {len(recording.differences)} facts could not be kept; the head of the file lists them",
            file=sys.stderr,
        )
    return 0
