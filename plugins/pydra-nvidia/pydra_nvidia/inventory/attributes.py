"""The attributes of devices, with the names and spellings of NVIDIA's own driver; those of NVLink are ours. Pure.

All devices of a GPU have `productName`, `brand`, `architecture`, `cudaComputeCapability`, `driverVersion`,
`cudaDriverVersion`, `addressingMode`, and the standard `resource.kubernetes.io/pciBusID`, `pcieRoot`, `numaNode`.
`docs/devices.md` has them all. Versions are strictly semantic, which NVIDIA's are not.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, and go-nvlib for the spellings.

NVLink and the multi-node fabric are attributes of whole GPUs; NVIDIA's driver publishes nothing of them:

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
start, NVML does not report where its links end, but the node's other GPUs do.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from pydra import AttributeValue, Version
from pydra_nvidia.hardware_types import Architecture, Gpu, NvLinks, Reading, SharedFabric
from pydra_pci import PciFunction

STANDARD = "resource.kubernetes.io"
LONGEST = 64
"""Bytes of a string attribute."""

_BRANDS = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}
_ARCHITECTURES = {one.value: one.name.capitalize() for one in Architecture} | {Architecture.ADA: "Ada Lovelace"}
_ADDRESSING = {0: "None", 1: "HMM", 2: "ATS"}
_NUMBERS = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?")


def describe_hardware(gpu: Gpu, reading: Reading) -> dict[str, AttributeValue]:
    """What a GPU and its partitions have in common."""
    attributes: dict[str, AttributeValue] = {
        "productName": clip(gpu.name),
        "brand": _BRANDS.get(gpu.brand, "Unknown"),
        "architecture": _ARCHITECTURES.get(gpu.architecture, "Unknown"),
    }
    versions = {"cudaComputeCapability": parse_version("{}.{}".format(*gpu.compute))}
    if reading.driver is not None:
        versions["driverVersion"] = parse_version(reading.driver.version)
        versions["cudaDriverVersion"] = cuda_version(reading.driver.cuda)
    attributes |= {name: version for name, version in versions.items() if version is not None}
    if gpu.addressing in _ADDRESSING:
        attributes["addressingMode"] = _ADDRESSING[gpu.addressing]
    return attributes | _describe_place(gpu.pci, reading.functions.get(gpu.pci))


def describe_gpu(gpu: Gpu, hardware: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """A whole GPU. `gpuModuleID` is its position on the baseboard, as Fabric Manager counts."""
    module: dict[str, AttributeValue] = {"gpuModuleID": gpu.module} if gpu.module else {}
    return {"type": "gpu", "uuid": gpu.uuid, **hardware, **module}


def describe_partition(
    gpu: Gpu, profile_name: str, hardware: Mapping[str, AttributeValue], *, uuid: str = ""
) -> dict[str, AttributeValue]:
    """A partition. It has a `uuid` only if it exists independently of claims: one for a claim gets its own later."""
    own: dict[str, AttributeValue] = {"uuid": uuid} if uuid else {}
    return {"type": "mig", "parentUUID": gpu.uuid, "profile": clip(profile_name), **hardware, **own}


def describe_fabric(address: str, fabric: SharedFabric | None) -> dict[str, AttributeValue]:
    """`partition2`: the ID of Fabric Manager's partition of two GPUs that has this one. Two of one size say nothing."""
    mine = [one for one in fabric.partitions if address in one.gpus] if fabric is not None else []
    sizes = Counter(len(one.gpus) for one in mine)
    return {f"partition{size}": one.id for one in mine if sizes[size := len(one.gpus)] == 1}


def describe_function(function: PciFunction, *, iommufd: bool, module: int | None) -> dict[str, AttributeValue]:
    """A GPU to pass through; only what is known whatever driver it is bound to. `module` as of a whole GPU."""
    position: dict[str, AttributeValue] = {"gpuModuleID": module} if module else {}
    return {
        "type": "vfio",
        "uuid": passthrough_uuid(function.address),
        "deviceID": function.device,
        "vendorID": function.vendor,
        "productName": clip(function.name) or "UNKNOWN_DEVICE",
        "iommuFDEnabled": iommufd,
        **position,
        **_describe_place(function.address, function),
    }


def passthrough_uuid(address: str) -> str:
    """The identity of a PCI address: a UUID of version 5 in the namespace of DNS, as NVIDIA's driver has it."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, address))


def clip(text: str) -> str:
    """What fits in an attribute."""
    return text.encode()[:LONGEST].decode(errors="ignore")


def _describe_place(address: str, function: PciFunction | None) -> dict[str, AttributeValue]:
    place: dict[str, AttributeValue] = {f"{STANDARD}/pciBusID": address}
    if function is not None and function.root:
        place[f"{STANDARD}/pcieRoot"] = function.root
    if function is not None and function.numa is not None:
        place[f"{STANDARD}/numaNode"] = function.numa
    return place


def parse_version(text: str) -> Version | None:
    """Three numbers without leading zeros: `580.105.08` is 580.105.8, `9.0` is 9.0.0. None: there is no number.

    What comes after the third number is left out.
    """
    match = _NUMBERS.match(text.strip())
    return None if match is None else Version(".".join(str(int(number or 0)) for number in match.groups()))


def cuda_version(number: int) -> Version:
    """From CUDA's own counting: 13000 is 13.0.0, 12080 is 12.8.0."""
    return Version(f"{number // 1000}.{number % 1000 // 10}.0")


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
            attributes["nvlinkLinksUp"] = _links_up(gpu, gpu.links)
            attributes["nvlinkPeers"] = (sizes[island] - 1 if gpu.links.switched else direct) if island else 0
            if island:
                attributes["nvlinkIsland"] = island
        if attributes:
            described[gpu.uuid] = attributes
    return described


def _describe_fabric(gpu: Gpu) -> dict[str, AttributeValue]:
    if gpu.fabric is None:
        return {}
    return {
        "fabricClusterUUID": gpu.fabric.cluster,
        "fabricCliqueID": gpu.fabric.clique,
        "cliqueID": f"{gpu.fabric.cluster}.{gpu.fabric.clique}",
    }


def _with_ends(gpu: Gpu, gpus: Sequence[Gpu]) -> Gpu:
    """With the ends of links that rest in MIG mode, as far as the others report about their own."""
    links = gpu.links
    if links is None or links.switched or links.peers or gpu.mig is None or not gpu.mig.enabled:
        return gpu
    switched = any(other.links.switched for other in gpus if other.links and other.name == gpu.name)
    peers = tuple(sorted(other.pci for other in gpus if other.links and gpu.pci in other.links.peers))
    return replace(gpu, links=replace(links, switched=switched, peers=peers))


def _links_up(gpu: Gpu, links: NvLinks) -> int:
    """In MIG mode links may rest; they are back when the GPU is available as a whole, which is what is described."""
    return links.total if gpu.mig is not None and gpu.mig.enabled else links.up


def _find_islands(gpus: Sequence[Gpu]) -> Mapping[str, str]:
    """The island of each GPU that is in one, by PCI address."""
    islands: dict[str, str] = {}
    groups: list[set[str]] = []
    for gpu in gpus:
        if gpu.links is None or not _links_up(gpu, gpu.links):
            continue
        if gpu.links.switched:
            islands[gpu.pci] = str(_describe_fabric(gpu).get("cliqueID", "nvswitch"))
        elif gpu.links.peers:
            islands[gpu.pci] = ""
            group = {gpu.pci, *gpu.links.peers}
            group.update(*(other for other in groups if other & group))
            groups.append(group)  # and counts for those that it contains, which came before
    # A peer's address counts although the peer is not there now, so that islands keep their names.
    lowest = {address: min(group) for group in groups for address in group}
    return {address: island or lowest[address] for address, island in islands.items()}
