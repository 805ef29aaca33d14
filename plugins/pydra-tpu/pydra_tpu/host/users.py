"""Which processes have a TPU open, from /proc: the node's, where the agent shares its PID namespace, else none."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from pydra_tpu.hardware import Process
from pydra_tpu.host.tree import Tree, list_names, read_text


def read_users(tree: Tree, paths: Collection[str]) -> Mapping[str, tuple[Process, ...]]:
    """The processes that have each of these files open, in the order of their ids.

    Paths are compared as the processes see them: containers have device nodes where the host has them.
    """
    found: dict[str, list[Process]] = {}
    for pid in sorted(int(name) for name in list_names(tree.proc) if name.isdecimal()):
        for path in _list_open(f"{tree.proc}/{pid}/fd").intersection(paths):
            if process := _read_process(tree, pid):
                found.setdefault(path, []).append(process)
    return {path: tuple(processes) for path, processes in found.items()}


def _list_open(directory: str) -> set[str]:
    """Where the links of the directory lead; a process may end, or not be ours to look at."""
    opened = set()
    try:
        for name in os.listdir(directory):
            try:
                opened.add(os.readlink(f"{directory}/{name}"))
            except OSError:
                continue
    except OSError:
        return opened
    return opened


def _read_process(tree: Tree, pid: int) -> Process | None:
    """Its name is between the first and the last parenthesis, and may have any of them; field 22 is its start."""
    before, _, after = read_text(f"{tree.proc}/{pid}/stat").rpartition(")")
    fields = after.split()
    if len(fields) < 20 or not fields[19].isdecimal():
        return None
    return Process(pid=pid, started=int(fields[19]), command=before.partition("(")[2])
