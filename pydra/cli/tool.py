"""`pydra`: what a driver writer has at hand without a cluster, and what an admin has beside the agent."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence

from pydra import __version__
from pydra.cli.admission import add_admission
from pydra.cli.exits import complain, refuse_foreign_pydra
from pydra.cli.webhook import add_webhook
from pydra.errors import PydraError, SettingsError


def build_parser() -> argparse.ArgumentParser:
    """The parser of `pydra`, one subcommand for each thing to do."""
    parser = argparse.ArgumentParser(
        prog="pydra", description="Write and try drivers for Kubernetes Dynamic Resource Allocation."
    )
    parser.add_argument("--version", action="version", version=f"pydra {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    dev = commands.add_parser("dev", help="an embedded node with the real agent, explained as it happens")
    dev.add_argument("--backend", default="sim", metavar="NAME", help="an installed backend, or MODULE:ATTRIBUTE [sim]")
    dev.add_argument("--scenario", metavar="FILE", help="a scenario file for simulated hardware")
    dev.add_argument("--once", action="store_true", help="end with 0 once the sample pod has come and gone")
    dev.set_defaults(command=_dev)

    check = commands.add_parser("check", help="say what the agent would refuse about a backend, all faults at once")
    check.add_argument(
        "backend",
        metavar="NAME",
        help="an installed backend, or MODULE:ATTRIBUTE (MODULE: for the module itself) while writing one",
    )
    check.set_defaults(command=_check)

    backends = commands.add_parser("backends", help="the installed backends")
    backends.set_defaults(command=_backends)

    add_webhook(commands)
    add_admission(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    parsed = build_parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = parsed.command
    try:
        refuse_foreign_pydra()
        code = command(parsed)
        sys.stdout.flush()
    except SettingsError as error:
        return complain("pydra", error.problems, code=2)
    except PydraError as error:
        return complain("pydra", [str(error)], code=1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads has read enough, as `head` does
        _leave_stdout()
        return 128 + signal.SIGPIPE
    except OSError as error:  # as of a disk that is full
        _leave_stdout()
        return complain("pydra", [str(error)], code=1)
    return code


def _leave_stdout() -> None:
    """What is not written by now never will be; the interpreter would try once more at its end, and say so."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dev(parsed: argparse.Namespace) -> int:
    try:
        from pydra_dev.demo import run  # noqa: PLC0415 - a distribution of its own, which no node has
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pydra_dev":
            raise
        print("pydra: `pydra dev` needs the package pydra-dev; run: pip install 'pydra-dra[dev]'", file=sys.stderr)
        return 2
    return run(backend=parsed.backend, scenario=parsed.scenario, once=parsed.once)


def _check(parsed: argparse.Namespace) -> int:
    from pydra.testing import check_backend  # noqa: PLC0415 - loads the supervisor

    report = check_backend(parsed.backend)
    print(report.text)
    return 0 if report.ok else 1


def _backends(parsed: argparse.Namespace) -> int:
    from pydra.backends.discovery import list_backends  # noqa: PLC0415

    found = list_backends()
    for entry in found:
        print(f"{entry.name:<16} {entry.distribution} {entry.version}  ({entry.target})")
    if not found:
        print("no backend is installed; try: pip install pydra-sim", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
