"""Names of ComputeDomains in the Kubernetes API, all of them NVIDIA's: group, labels, finalizer, names of objects.

Source: kubernetes-sigs/dra-driver-nvidia-gpu, api/nvidia.com/resource/v1beta1 and cmd/compute-domain-controller.
"""

from __future__ import annotations

DRIVER = "compute-domain.nvidia.com"
GROUP, VERSION = "resource.nvidia.com", "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"

DOMAIN_LABEL = "resource.nvidia.com/computeDomain"
"""On all objects, pods and nodes of a ComputeDomain; the value is its UID. It is also the name of the finalizer."""
FINALIZER = DOMAIN_LABEL
CLIQUE_LABEL = "resource.nvidia.com/computeDomain.cliqueID"
"""On ComputeDomainCliques, and on the pods of NVIDIA's daemon: empty on a node without a clique."""
TARGET_LABEL = "resource.nvidia.com/computeDomainTarget"
DAEMON_TARGET, WORKLOAD_TARGET = "Daemon", "Workload"

DAEMON_CLASS = "compute-domain-daemon.nvidia.com"
CHANNEL_CLASS = "compute-domain-default-channel.nvidia.com"
CHANNEL_KIND, DAEMON_KIND = "ComputeDomainChannelConfig", "ComputeDomainDaemonConfig"

CONTAINER = "compute-domain-daemon"
"""The container of a daemon's pod, and the claim in it."""
IMEX_CONDITION = "resource.nvidia.com/imex"
"""The condition of a daemon's pod that says what its IMEX daemon is waiting for: pydra's."""

PEER_PORT, COMMAND_PORT = 50000, 50005
READY_PORT = 50006
"""Where a daemon tells the kubelet whether it is ready."""
MAX_NODES = 18
"""Of one clique, unless the admin says otherwise: the number of names that every daemon knows."""


def daemon_name(uid: str) -> str:
    """The name of a domain's DaemonSet, and of the claim template of its daemons."""
    return f"computedomain-daemon-{uid}"


def clique_name(uid: str, clique: str) -> str:
    """The name of a domain's ComputeDomainClique."""
    return f"{uid}.{clique}"


def peer_name(index: int) -> str:
    """The host name by which a daemon knows the one with this index."""
    return f"compute-domain-daemon-{index:04d}"
