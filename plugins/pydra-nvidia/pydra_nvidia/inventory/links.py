"""NVLink and the multi-node fabric, as attributes of whole GPUs; NVIDIA's driver publishes nothing of them. Pure.

    nvlinkLinksUp      int     links that carry traffic
    nvlinkPeers        int     GPUs of this node that are reached over NVLink, directly or through switches
    nvlinkIsland       string  the same for GPUs of the node that NVLink connects: `matchAttribute` on it gives a claim
                               GPUs of one island. Directly linked: the lowest PCI address of those connected, by one
                               link or several. Switched: `cliqueID` where there is a fabric, else `nvswitch`
    fabricClusterUUID  string  the fabric's cluster
    fabricCliqueID     int     the clique within it
    cliqueID           string  both, as ComputeDomains name a clique: `<clusterUUID>.<cliqueID>`

They are absent where there is no NVLink, no link that is up, or no fabric. Partitions have none: a GPU in MIG mode
reaches no other. Nothing here changes when a GPU is partitioned for a claim; of one that was in MIG mode from the
start, NVML does not tell where its links end, but the node's other GPUs do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from pydra import AttributeValue
from pydra_nvidia.hardware_types import Gpu
from pydra_nvidia.inventory.attributes import clip

_NO_CLUSTER = "00000000-0000-0000-0000-000000000000"


def describe_links(gpus: Sequence[Gpu]) -> Mapping[str, dict[str, AttributeValue]]:
    """The attributes of each GPU by its UUID; GPUs without any are left out. `gpus` are all of the node."""
    gpus = [_with_ends(gpu, gpus) for gpu in gpus]
    islands = _find_islands(gpus)
    sizes = Counter(islands.values())
    described: dict[str, dict[str, AttributeValue]] = {}
    for gpu in gpus:
        attributes = _describe_fabric(gpu)
        if gpu.links is not None and gpu.links.total:
            island = islands.get(gpu.pci, "")
            direct = len(set(gpu.links.peers))
            attributes["nvlinkLinksUp"] = _links_up(gpu)
            attributes["nvlinkPeers"] = (sizes[island] - 1 if gpu.links.switched else direct) if island else 0
            if island:
                attributes["nvlinkIsland"] = clip(island)
        if attributes:
            described[gpu.uuid] = attributes
    return described


def _describe_fabric(gpu: Gpu) -> dict[str, AttributeValue]:
    if gpu.fabric is None or gpu.fabric.cluster in ("", _NO_CLUSTER):
        return {}
    return {
        "fabricClusterUUID": clip(gpu.fabric.cluster),
        "fabricCliqueID": gpu.fabric.clique,
        "cliqueID": clip(f"{gpu.fabric.cluster}.{gpu.fabric.clique}"),
    }


def _with_ends(gpu: Gpu, gpus: Sequence[Gpu]) -> Gpu:
    """With the ends of links that rest in MIG mode, as far as the others tell of their own."""
    links = gpu.links
    if links is None or links.switched or links.peers or gpu.mig is None or not gpu.mig.enabled:
        return gpu
    others = [other for other in gpus if other.links is not None]
    switched = any(other.links.switched for other in others if other.links and other.name == gpu.name)
    peers = tuple(sorted(other.pci for other in others if other.links and gpu.pci in other.links.peers))
    return replace(gpu, links=replace(links, switched=switched, peers=peers))


def _links_up(gpu: Gpu) -> int:
    """In MIG mode links may rest; they are back when the GPU can be had whole, which is what is described."""
    if gpu.links is None:
        return 0
    return gpu.links.total if gpu.mig is not None and gpu.mig.enabled else gpu.links.up


def _find_islands(gpus: Sequence[Gpu]) -> Mapping[str, str]:
    """The island of each GPU that is in one, by PCI address."""
    islands: dict[str, str] = {}
    groups: list[set[str]] = []
    for gpu in gpus:
        if gpu.links is None or not _links_up(gpu):
            continue
        if gpu.links.switched:
            islands[gpu.pci] = str(_describe_fabric(gpu).get("cliqueID", "nvswitch"))
        elif gpu.links.peers:
            islands[gpu.pci] = ""
            group = {gpu.pci, *gpu.links.peers}
            group.update(*(other for other in groups if other & group))
            groups = [*(other for other in groups if not other & group), group]
    # A peer's address counts although the peer is not there now, so that islands keep their names.
    lowest = {address: min(group) for group in groups for address in group}
    return {address: island or lowest[address] for address, island in islands.items()}
