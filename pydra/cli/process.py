"""Arguments, startup checks, SIGTERM handling and error output of `pydra` and `pydra-agent`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import metadata
from types import TracebackType
from typing import Any

from pydra.errors import SettingsError, suggest

DISTRIBUTION = "pydra-dra"


class Parser(argparse.ArgumentParser):
    """Takes no abbreviated flags, which a later flag could make ambiguous, and names the flag that may be meant."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; unknown arguments are an error here already, with the usage of the subcommand that got them."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flags = [flag for action in self._actions for flag in action.option_strings]
            listed = ", ".join(f"{one}{suggest(one.partition('=')[0], flags)}" for one in unknown)
            self.error(f"unrecognized arguments: {listed}")
        return parsed, unknown


def check_package_conflict() -> None:
    """Refuse an environment with the other project that installs a package called `pydra`; each breaks the other.

    Raises:
        SettingsError: the distribution `pydra` (a dataflow engine) is installed beside this one.
    """
    try:
        foreign = metadata.version("pydra")
    except metadata.PackageNotFoundError:
        return
    raise SettingsError(
        [
            f"the distribution 'pydra' {foreign}, another project, is installed in this environment and shares the "
            f"import name with {DISTRIBUTION}; use an environment of its own: "
            f"pip uninstall pydra && pip install --force-reinstall {DISTRIBUTION}"
        ]
    )


def exit_on_sigterm() -> None:
    """Exit with code 0 on SIGTERM, until the agent installs its own handler.

    In a container this is process 1, to which Linux delivers no signal without a handler: a pod that is deleted while
    it starts would run until it is killed, and leave its sockets behind. There is nothing to clean up yet, and an
    exception may be lost in an import or a callback, so the process exits at once. Backends end when their channel
    closes.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


def hide_tracebacks(program: str) -> None:
    """Print one line for an exception that nobody expected; its traceback is for people who debug this program."""

    def print_error(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        text = f"internal error: {type(error).__name__}: {error}; `{program} --debug ...` shows the traceback"
        print_errors(program, [text], code=1)

    sys.excepthook = print_error


def print_errors(program: str, problems: Sequence[str], *, code: int) -> int:
    """Print one line for each problem to stderr; return the exit code."""
    for problem in problems:
        print(f"{program}: {problem}", file=sys.stderr)
    if code == 2:
        print(f"{program}: see {program} --help", file=sys.stderr)
    return code
