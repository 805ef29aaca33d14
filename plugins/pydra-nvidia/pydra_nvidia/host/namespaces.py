"""Whether this process, and the /proc that it sees, are the node's own or a container's.

Source: the kernel's include/linux/proc_ns.h: the first namespaces of a node have fixed numbers. A kernel without
namespaces of a kind has no link for it, and all that runs there is the node's own.
"""

from __future__ import annotations

from pydra_nvidia.host.tree import Tree

_FIRST = {"pid": "pid:[4026531836]", "cgroup": "cgroup:[4026531835]"}


def shows_all_processes(tree: Tree) -> bool:
    """Whether the tree's /proc has the processes of the whole node."""
    shown = tree.link(tree.proc("1/ns/pid")) or tree.link(tree.proc("self/ns/pid"))
    return shown in (None, _FIRST["pid"])


def find_own(tree: Tree) -> tuple[str, ...]:
    """The kinds of namespaces, of `pid` and `cgroup`, that this process does not have from the node."""
    return tuple(kind for kind, first in _FIRST.items() if tree.link(tree.proc(f"self/ns/{kind}")) not in (None, first))
