"""`make lock` pins with uv what development needs; this takes out of constraints.txt what running needs.

The result, constraints-run.txt, is what `make run` installs. Hashes are kept; neither file names an index.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALL = ROOT / "constraints.txt"
RUN = ROOT / "constraints-run.txt"
PROJECTS = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
RUNNING = ("pydra-dra", "pydra-dev", "pydra-sim")
"""What `make run` installs from the sources."""
INSTALLING = ("pip", "hatchling", "editables")
"""What installs the pins, and the sources as they are."""


def chosen() -> str:
    """The text of constraints-run.txt: the pins of what running needs, without extras, in the order of the others."""
    needed = needs([*RUNNING, *INSTALLING])
    return "".join(f"{block}\n" for name, block in pins().items() if name in needed)


def project_names() -> list[str]:
    """The distributions of this repository."""
    return [tomllib.loads((one / "pyproject.toml").read_text())["project"]["name"] for one in PROJECTS]


def needs(names: Iterable[str]) -> set[str]:
    """The names of all pinned distributions that these need, without their extras."""
    known = {canonical(name) for name in project_names()} | pins().keys()
    needed: set[str] = set()
    waiting = [canonical(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in needed or name not in known:
            continue
        needed.add(name)
        try:
            requirements = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:  # pinned for another platform or Python
            requirements = ()
        waiting += [canonical(one) for one in requirements if "extra ==" not in one]
    return needed & pins().keys()


def own_needs(name: str) -> list[str]:
    """The names of the distributions of this repository that this one needs, without its extras."""
    requirements = [canonical(one) for one in metadata.requires(name) or () if "extra ==" not in one]
    return [one for one in project_names() if canonical(one) in requirements]


def pins() -> dict[str, str]:
    """The blocks of constraints.txt by name."""
    return {canonical(block): block for block in re.split(r"\n(?=\S)", ALL.read_text().strip())}


def canonical(requirement: str) -> str:
    """The name in a requirement or a pin, as indexes spell it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]).lower()


if __name__ == "__main__":
    RUN.write_text(chosen())
