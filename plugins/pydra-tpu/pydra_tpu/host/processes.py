"""Which processes have a TPU open, from /proc: the node's, where the agent shares its PID namespace, else none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydra_pci import Tree, list_users
from pydra_tpu.hardware_types import Chip, Process


def read_chip_users(tree: Tree, chips: Sequence[Chip]) -> Mapping[int, Sequence[Process]]:
    """The processes that have each chip open, by its index, in the order of their ids."""
    found: dict[int, list[Process]] = {chip.index: [] for chip in chips}
    for pid, used in list_users(tree, {node for chip in chips for node in chip.nodes}):
        if process := _read_process(tree, pid):
            for chip in chips:
                if not used.isdisjoint(chip.nodes):
                    found[chip.index].append(process)
    return found


def _read_process(tree: Tree, pid: int) -> Process | None:
    """Its name is between the first and the last parenthesis, and may have any of them; field 22 is its start."""
    before, _, after = tree.read(tree.proc(f"{pid}/stat")).rpartition(")")
    fields = after.split()
    if len(fields) < 20 or not fields[19].isdecimal():
        return None
    return Process(pid=pid, started=int(fields[19]), command=before.partition("(")[2])
