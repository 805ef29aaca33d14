"""Builds the backend over the node's hardware, or over a simulated machine."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from pydra import PydraError
from pydra_amd.amdsmi.python_package import import_amdsmi
from pydra_amd.backend import AmdBackend
from pydra_amd.host.driver_module import DriverModule
from pydra_amd.settings import Partitioning, Settings
from pydra_pci import Roots, Tree, needs_simulation


class RightsMissing(PydraError):
    """What the admin has switched on needs more than this process may do."""

    reason = "RightsMissing"


_NUMBERS = {"DAC_READ_SEARCH": 2, "SYS_MODULE": 16, "SYS_CHROOT": 18, "SYS_PTRACE": 19}
"""Of capabilities. Source: capabilities(7), the kernel's include/uapi/linux/capability.h."""


def find_missing_rights(tree: Tree, settings: Settings) -> Iterator[str]:
    """What the node's files cannot be changed for, and who can change that; found out before anything is done."""
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


@asynccontextmanager
async def open_backend(settings: Settings) -> AsyncIterator[AmdBackend]:
    """The backend. Raises SimulationMissing, ScenarioError, RightsMissing."""
    importer: Callable[[], Any]
    if settings.scenario:
        # Imported only here: a node with hardware has no use for one without.
        with needs_simulation("pydra_amd"):
            from pydra_amd.simulation import amdgpu_driver, library, simulation  # noqa: PLC0415

        tree = simulation.open_simulation(settings)
        driver: DriverModule = amdgpu_driver.SimulatedModule(tree, settings.scenario)
        importer = partial(library.import_amdsmi, os.path.dirname(tree.roots.sys), settings.scenario)
    else:
        tree = Tree(
            Roots(host=settings.host_root, sys=settings.sys_root, dev=settings.dev_root, proc=settings.proc_root)
        )
        if problems := "; ".join(find_missing_rights(tree, settings)):
            raise RightsMissing(problems)
        driver = DriverModule(tree)
        importer = import_amdsmi
    backend = AmdBackend(settings, tree, driver, importer)
    try:
        yield backend
    finally:
        await backend.close()
