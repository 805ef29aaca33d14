"""The privileges that the settings require of this process: a writable /sys, and capabilities."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from pydra import PydraError
from pydra_amd.settings import Partitioning, Settings
from pydra_pci import Tree


class RightsMissing(PydraError):
    """What the admin has switched on needs more than this process may do."""

    reason = "RightsMissing"


_NUMBERS = {"DAC_READ_SEARCH": 2, "SYS_MODULE": 16, "SYS_CHROOT": 18, "SYS_PTRACE": 19}
"""Of capabilities. Source: capabilities(7), the kernel's include/uapi/linux/capability.h."""


def require_privileges(tree: Tree, settings: Settings) -> None:
    """Raise RightsMissing, before anything is done, if this process may not do what the settings have it do."""
    if problems := "; ".join(_find_missing(tree, settings)):
        raise RightsMissing(problems)


def _find_missing(tree: Tree, settings: Settings) -> Iterator[str]:
    """What is missing, and who can change that."""
    if settings.partitioning is not Partitioning.EXISTING or settings.vfio:
        written = tree.sys("bus/pci" if settings.vfio else "devices")
        with suppress(OSError):
            if os.statvfs(written).f_flag & os.ST_RDONLY:
                yield (
                    f"partitioning {settings.partitioning.value} and vfio {str(settings.vfio).lower()} need the host's "
                    f"/sys writable, and {written} is read-only: mount it at another place, and set "
                    "PYDRA_AMD_SYS_ROOT to that (the chart does both)"
                )
    found = re.search(r"^CapEff:\s*(\w+)$", tree.read(tree.proc("self/status")), re.MULTILINE)
    held = int(found[1], 16) if found else 0

    def tell(what: str, purpose: str, *needed: str) -> Iterator[str]:
        if missing := [name for name in needed if not held >> _NUMBERS[name] & 1]:
            yield (
                f"{what} needs the capabilities {' and '.join(missing)}, {purpose}: give them to the agent (in the "
                f"chart backends.amd.capabilities), or do without {what}"
            )

    if settings.partitioning is Partitioning.MEMORY:
        own_root = ("SYS_CHROOT",) if tree.roots.host != "/" else ()
        yield from tell("partitioning memory", "to reload amdgpu with the node's modprobe", "SYS_MODULE", *own_root)
    if settings.vfio:
        yield from tell("vfio", "to see which processes have a GPU open", "SYS_PTRACE", "DAC_READ_SEARCH")
