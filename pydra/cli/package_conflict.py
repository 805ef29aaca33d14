"""Refuses an environment with another project that installs a package called `pydra`."""

from __future__ import annotations

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
