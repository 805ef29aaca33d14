"""What both commands do first: refuse an environment with another `pydra`, and end on SIGTERM."""

from __future__ import annotations

import os
import signal
from importlib import metadata

from pydra.errors import SettingsError

DISTRIBUTION = "pydra-dra"


def check_package_conflict() -> None:
    """Do so before the command does anything: each of the two projects breaks the other.

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
            f"pip uninstall pydra, and install {DISTRIBUTION} again"
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
