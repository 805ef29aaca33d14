"""The command `pydra-nvidia`: what admins and driver writers do beside the running backend.

Its exit code is 0 when all is well, 1 when not, 2 for arguments that make no sense.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from pydra import PydraError, SettingsError
from pydra_nvidia.cli import forget_errors, maintenance, record_bug_report, show, simulate

COMMANDS = (show, record_bug_report, simulate, forget_errors, maintenance)


def build_parser() -> argparse.ArgumentParser:
    """The parser, with a subcommand from each module of COMMANDS."""
    parser = argparse.ArgumentParser(
        prog="pydra-nvidia",
        description="NVIDIA GPUs for Kubernetes Dynamic Resource Allocation: look at this node, record it, play with a "
        "simulated one. Settings are those of the backend: variables PYDRA_NVIDIA_*, and those of PYDRA_CONFIG.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in COMMANDS:
        module.add_command(commands)
    return parser


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run one command; the exit code."""
    parsed = build_parser().parse_args(arguments)
    command: Callable[[argparse.Namespace, Mapping[str, str]], int] = parsed.command
    try:
        return command(parsed, environ)
    except SettingsError as error:
        for problem in error.problems:
            print(f"pydra-nvidia: {problem}", file=sys.stderr)
        return 2
    except (PydraError, OSError) as error:
        print(f"pydra-nvidia: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
