"""The attributes of a device: those of AMD's drivers, old and new, and the standard ones. Pure.

Where AMD's drivers disagree the new one counts: `deviceID` is the PCI device id. Docs: design.md has the table.
"""

from __future__ import annotations

import re

from pydra import AttributeValue, Version
from pydra_amd.devices import Offered
from pydra_amd.hardware_types import Reading
from pydra_amd.models import name_product
from pydra_pci import PciFunction

_FAMILIES = {9: "AI", 10: "NV"}
"""AMDGPU_FAMILY_* by the major version of the instruction set, as far as AMD's old driver has a name."""


def build_attributes(offered: Offered, reading: Reading) -> dict[str, AttributeValue]:
    """What is known; what is not is left out."""
    gpu, one, mode = offered.gpu, offered.partition, offered.mode
    unique_id = str(gpu.unique_id) if gpu.unique_id else None
    attributes: dict[str, AttributeValue | None] = {
        "type": "amdgpu" if offered.is_whole else "amdgpu-partition",
        "pciAddr": gpu.address,
        "deviceID": gpu.device or None,
        "productName": _cut(re.sub(r"[()]", "", gpu.product).replace(" ", "_")),
        "family": _FAMILIES.get(gpu.gfx // 10000),
        "driverVersion": parse_version(reading.driver_version),
        "driverVersionFull": _cut(reading.driver_version),
        "driverSrcVersion": _cut(reading.source_version),
        "gpuIndex": gpu.index,
        "gfxVersion": f"gfx{name_version(gpu.gfx)}" if gpu.gfx else None,
        "uniqueID": unique_id,
        "xgmiHive": str(gpu.hive) if gpu.hive else None,
        "xgmiNeighbours": len(gpu.neighbours) if gpu.hive else None,
        "numaNode": gpu.numa_node,
        "partitionProfile": str(mode) if mode else None,
        "computePartition": mode.compute if mode else None,
        "memoryPartition": mode.memory if mode else None,
        "cardIndex": one.card if one else None,
        "renderIndex": one.render if one else None,
        "parentPciAddr": None if offered.is_whole else gpu.address,
        "parentDeviceID": None if offered.is_whole else unique_id,
        "resource.kubernetes.io/pciBusID": gpu.address,
        "resource.kubernetes.io/pcieRoot": gpu.pcie_root or None,
        "resource.kubernetes.io/numaNode": gpu.numa_node,
    }
    return {key: value for key, value in attributes.items() if value is not None}


def build_function_attributes(function: PciFunction) -> dict[str, AttributeValue]:
    """Of a function for guests: what is known whatever driver has it."""
    attributes: dict[str, AttributeValue | None] = {
        "type": "vfio",
        "pciAddr": function.address,
        "deviceID": function.device or None,
        "vendorID": function.vendor,
        "productName": name_product(function.device).replace(" ", "_") or None,
        "iommuGroup": function.group,
        "isVF": function.is_virtual,
        "numaNode": function.numa,
        "resource.kubernetes.io/pciBusID": function.address,
        "resource.kubernetes.io/pcieRoot": function.root or None,
        "resource.kubernetes.io/numaNode": function.numa,
    }
    return {key: value for key, value in attributes.items() if value is not None}


def parse_version(text: str) -> Version | None:
    """The first three numbers: drivers have four since 6.19.14, not a semantic version. None if there is no version.

    AMD's driver publishes the text as it is, which the API server refuses with the whole slice.
    """
    match = re.match(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", text)
    return Version(".".join(str(int(part or 0)) for part in match.groups())) if match else None


def name_version(gfx: int) -> str:
    """`942` for 90402: the minor version and the stepping are a hexadecimal digit each."""
    return f"{gfx // 10000}{gfx // 100 % 100:x}{gfx % 100:x}"


def _cut(text: str) -> str | None:
    """As much as the API takes of a text, which it counts in bytes; None if there is none."""
    return text.encode()[:64].decode(errors="ignore") or None
