"""What the loaded kernel driver shows in /proc."""

from __future__ import annotations

import re

from pydra_nvidia.host.tree import Tree

_VERSION = re.compile(r"\b\d{3}\.\d+(?:\.\d+)?\b")


def read_module_version(tree: Tree) -> str:
    """The version of the NVIDIA module that is loaded (`580.105.08`); empty when none is.

    Source: /proc/driver/nvidia/version, whose first line is NVRM's, in two wordings (open and closed module).
    """
    text = tree.read(tree.proc("driver/nvidia/version")) or ""
    found = _VERSION.search(text.partition("\n")[0])
    return found[0] if found else ""


def read_majors(tree: Tree) -> dict[str, int]:
    """The major numbers of character devices by driver name (`nvidia-caps`), from /proc/devices."""
    majors: dict[str, int] = {}
    for line in (tree.read(tree.proc("devices")) or "").splitlines():
        if line.startswith("Block devices"):
            break
        number, _, name = line.strip().partition(" ")
        if number.isdecimal() and name:
            majors.setdefault(name.strip(), int(number))
    return majors
