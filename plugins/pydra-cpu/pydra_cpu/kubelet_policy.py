"""Whether the kubelet's own CPU or memory manager restricts containers, too: it and a driver do not see each other.

Source: kubelet, pkg/kubelet/cm/cpumanager and memorymanager: the checkpoints `cpu_manager_state` and
`memory_manager_state`.
"""

from __future__ import annotations

import msgspec

from pydra_pci import Tree

_MANAGERS = {
    "cpu_manager_state": (
        "CPU manager policy {}, which would give CPUs of claims to other containers; an admin must set "
        "cpuManagerPolicy: none"
    ),
    "memory_manager_state": (
        "memory manager policy {}, which would give containers with a claim the memory of other NUMA nodes; an admin "
        "must set memoryManagerPolicy: None"
    ),
}


def find_static_manager(tree: Tree, kubelet_root: str) -> str:
    """Return which of the kubelet's managers restricts containers by its checkpoint, and what to do; "" if none."""
    for file, text in _MANAGERS.items():
        try:
            state = msgspec.json.decode(tree.read(tree.here(f"{kubelet_root}/{file}")))
        except msgspec.DecodeError:
            continue
        policy = state.get("policyName") if isinstance(state, dict) else ""
        if isinstance(policy, str) and policy.lower() not in ("", "none"):
            return text.format(policy)
    return ""
