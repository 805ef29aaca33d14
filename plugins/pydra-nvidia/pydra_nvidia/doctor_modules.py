"""What `pydra doctor` says of the driver's kernel modules. Blocks."""

from __future__ import annotations

from collections.abc import Iterator

from pydra_nvidia.host.device_nodes import UVM_NOT_LOADED, lacks_uvm
from pydra_nvidia.host.pci import DRIVER, find_gpus
from pydra_nvidia.settings import Settings
from pydra_pci import Roots, Tree


def examine_node(settings: Settings) -> Iterator[str]:
    """Yield which module the node's GPUs lack; those that are passed through need none."""
    if settings.scenario:
        return  # nothing runs on a simulated machine
    tree = Tree(Roots(host=settings.host_root, sys=settings.sys_root, proc=settings.proc_root))
    if lacks_uvm(tree) and any(one.driver == DRIVER for one in find_gpus(tree).functions().values()):
        yield UVM_NOT_LOADED
