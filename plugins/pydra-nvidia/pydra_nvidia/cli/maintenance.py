"""`pydra-nvidia maintenance` and `resume`: the node's backends close NVML, so that the driver can be replaced."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from pydra import PydraError
from pydra_nvidia.cli.arguments import add_node_arguments, machine_of
from pydra_nvidia.nvml.maintenance_gate import Gate

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_LONGEST = 24 * 3600

_HOLD_SECONDS = 60.0
"""How long a held request outlives its process when that is killed."""
_SIGNALS = signal.SIGTERM, signal.SIGINT


class StillOpen(PydraError):
    """A backend did not close NVML in time."""

    reason = "StillOpen"


def add_command(commands: Any) -> None:
    """Both subcommands."""
    parser = commands.add_parser(
        "maintenance",
        help="make this node's backends release the GPUs, so that the driver can be replaced or a GPU reset",
        description="Ask the backends of this node to release the GPUs for a while, and wait until they have: they "
        "end their sessions with NVML, prepare no claims, and do not look at the GPUs. Pods that have GPUs are not "
        "touched. The exit code is 1 when a backend still has NVML open; the request stays then, "
        "except with --hold.",
    )
    add_node_arguments(parser)
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--for", dest="seconds", metavar="TIME", type=duration, default=600.0, help="such as 90s, 10m or 2h [10m]"
    )
    length.add_argument(
        "--hold", action="store_true", help="as long as this command runs; it ends with SIGTERM or Ctrl-C"
    )
    parser.add_argument(
        "--wait", metavar="TIME", type=duration, default=60.0, help="for the backends to release the GPUs [60s]"
    )
    parser.set_defaults(command=run)
    resume = commands.add_parser(
        "resume",
        help="end the maintenance before its time is over",
        description="Withdraw the request for maintenance. The backends notice within a second.",
    )
    add_node_arguments(resume)
    resume.set_defaults(command=take_back)


def duration(text: str) -> float:
    """Seconds for `90`, `90s`, `10m`, `2h`; a day at most."""
    match = re.fullmatch(r"(\d{1,6})([smh]?)", text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: give a number of s, m or h, at most a day, as in 10m"
        )
    return float(seconds)


def run(parsed: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Raises StillOpen, RequestFailed, SettingsError, ScenarioError."""
    gate = machine_of(parsed, environ).gate
    if parsed.hold:
        return _hold(gate, parsed.wait)
    gate.ask(parsed.seconds)
    _wait_left(gate, parsed.wait, "The request stays: run it again, or take it back with pydra-nvidia resume")
    print(f"NVML is closed for {parsed.seconds:g} s, or until pydra-nvidia resume")
    return 0


def take_back(parsed: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Raises RequestFailed, SettingsError, ScenarioError."""
    there = machine_of(parsed, environ).gate.withdraw()
    print("maintenance has ended; the GPUs are used again" if there else "no maintenance was requested")
    return 0


def _hold(gate: Gate, patience: float) -> int:
    """Until a signal: the request is renewed again and again, and taken back in the end, whatever happens."""

    def end(_number: int, _frame: FrameType | None) -> None:
        for number in _SIGNALS:  # a second one would interrupt what the first one begins
            signal.signal(number, signal.SIG_IGN)
        sys.exit(0)

    for number in _SIGNALS:
        signal.signal(number, end)
    try:
        gate.ask(_HOLD_SECONDS + patience)
        _wait_left(gate, patience, "The request is taken back: run the command again, or with a longer --wait")
        print("NVML is closed until this command ends", flush=True)
        while True:
            gate.ask(_HOLD_SECONDS)
            time.sleep(_HOLD_SECONDS / 3)
    finally:
        gate.withdraw()


def _wait_left(gate: Gate, patience: float, then: str) -> None:
    if not gate.wait_left(patience):
        raise StillOpen(
            f"a backend still has NVML open after {patience:g} s; it prepares a claim, or hangs in the driver. {then}"
        )
