"""Which processes have a TPU open, from /proc: the node's, where the agent shares its PID namespace, else none."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pydra_pci import Tree, list_users
from pydra_tpu.hardware_types import Process


def read_users(tree: Tree, nodes: Collection[str]) -> Mapping[str, tuple[Process, ...]]:
    """The processes that have each of these nodes open, in the order of their ids."""
    found: dict[str, list[Process]] = {}
    for pid, used in list_users(tree, nodes):
        if process := _read_process(tree, pid):
            for node in sorted(used):
                found.setdefault(node, []).append(process)
    return {node: tuple(processes) for node, processes in found.items()}


def _read_process(tree: Tree, pid: int) -> Process | None:
    """Its name is between the first and the last parenthesis, and may have any of them; field 22 is its start."""
    before, _, after = tree.read(tree.proc(f"{pid}/stat")).rpartition(")")
    fields = after.split()
    if len(fields) < 20 or not fields[19].isdecimal():
        return None
    return Process(pid=pid, started=int(fields[19]), command=before.partition("(")[2])
