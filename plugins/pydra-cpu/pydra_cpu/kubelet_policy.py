"""Whether the kubelet's own CPU manager pins containers, too: it and a driver do not see each other.

Source: kubelet, pkg/kubelet/cm/cpumanager: the checkpoint `cpu_manager_state`.
"""

from __future__ import annotations

import msgspec

from pydra_pci import Tree


def read_cpu_policy(tree: Tree, kubelet_root: str) -> str:
    """Return the policy that the kubelet's checkpoint names, such as `none` or `static`; "" without a checkpoint."""
    try:
        state = msgspec.json.decode(tree.read(tree.here(f"{kubelet_root}/cpu_manager_state")))
    except msgspec.DecodeError:
        return ""
    policy = state.get("policyName") if isinstance(state, dict) else ""
    return policy if isinstance(policy, str) else ""
