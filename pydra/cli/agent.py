"""Command line of `pydra-agent`.

Parses arguments to Settings and runs the agent. Exit codes: 0 asked to stop, 1 failure, 2 usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from pydra import __version__
from pydra.cli.options import Parser, add_options, read_values
from pydra.cli.output import print_errors
from pydra.cli.startup import check_package_conflict, exit_on_sigterm
from pydra.errors import PydraError, SettingsError
from pydra.settings import Settings, parse_settings

_EPILOG = """\
Every option can also be given as a variable (--node-name as PYDRA_NODE_NAME) or in the YAML file of --config
(nodeName: ...). A flag beats a variable, a variable beats the file.

signals:
  SIGTERM, SIGINT   stop: calls in flight end first, what is prepared stays prepared
  SIGHUP            read the settings again and reopen the log file

exit codes:
  0   stopped by a signal
  1   stopped by a second signal, or failed: see the last line
  2   it cannot start as it is called: a setting is wrong, a backend is not installed, an address is taken

A backend that is installed and cannot be used, as when its import fails, ends nothing: the others are served, and the
log, /readyz and an Event on the Node say why.

examples:
  pydra-agent --backend sim --node-name "$(hostname)" --kubeconfig ~/.kube/config
  pydra-agent --config /etc/pydra/config.yaml
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `pydra-agent`."""
    parser = Parser(
        prog="pydra-agent",
        usage="pydra-agent --backend NAME [--backend NAME ...] --node-name NAME [options]",
        description="Serve this node's hardware to Kubernetes: a kubelet plugin for Dynamic Resource Allocation.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pydra-agent {__version__}")
    add_options(parser)
    return parser


def read_settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Build the Settings from these arguments, this environment and the file.

    Raises:
        SettingsError: they are not valid; all problems at once.
    """
    return parse_settings(read_values(arguments, environ))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent until a signal stops it; return the exit code."""
    parsed = build_parser().parse_args(arguments)
    try:
        check_package_conflict()
        settings = read_settings(parsed, os.environ)
    except SettingsError as error:
        return print_errors("pydra-agent", error.problems, code=2)
    try:
        exit_on_sigterm()
        # Imported only now: --help and a wrong flag must be quick.
        from pydra.agent.entry import run  # noqa: PLC0415

        return run(settings, reread=lambda: read_settings(parsed, os.environ))
    except SettingsError as error:
        return print_errors("pydra-agent", error.problems, code=2)
    except PydraError as error:
        return print_errors("pydra-agent", [str(error)], code=1)
    except KeyboardInterrupt:  # second signal, as logged
        return 1


if __name__ == "__main__":
    sys.exit(main())
