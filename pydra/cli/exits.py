"""What both commands say when they cannot go on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata

from pydra.errors import SettingsError

DISTRIBUTION = "pydra-dra"


def refuse_foreign_pydra() -> None:
    """Two projects install a package called `pydra`; together in one environment, each breaks the other.

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


def complain(program: str, problems: Sequence[str], *, code: int) -> int:
    """One line for each problem on stderr; returns the exit code."""
    for problem in problems:
        print(f"{program}: {problem}", file=sys.stderr)
    if code == 2:
        print(f"{program}: see {program} --help", file=sys.stderr)
    return code
