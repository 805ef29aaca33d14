"""The attributes of devices, with the names and spellings of NVIDIA's own driver. Pure.

All devices of a GPU have `productName`, `brand`, `architecture`, `cudaComputeCapability`, `driverVersion`,
`cudaDriverVersion`, `addressingMode`, and the standard `resource.kubernetes.io/pciBusID`, `pcieRoot`, `numaNode`.
`docs/devices.md` has them all. Versions are strictly semantic, which NVIDIA's are not.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, and go-nvlib for the spellings.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

from pydra import AttributeValue, Version
from pydra_nvidia.hardware_types import Architecture, Gpu, PciFunction, Reading

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


def describe_function(function: PciFunction, *, iommufd: bool) -> dict[str, AttributeValue]:
    """A GPU to pass through; only what is known whatever driver it is bound to."""
    return {
        "type": "vfio",
        "uuid": passthrough_uuid(function.address),
        "deviceID": function.device,
        "vendorID": function.vendor,
        "productName": clip(function.name) or "UNKNOWN_DEVICE",
        "iommuFDEnabled": iommufd,
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
    if function is not None and function.numa >= 0:
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
