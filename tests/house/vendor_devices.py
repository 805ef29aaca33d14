"""Devices as the vendors' own DRA drivers publish them, which a cluster has beside ours while it migrates.

Names and types only; the values are made up. Sources: kubernetes-sigs/dra-driver-nvidia-gpu, ROCm/k8s-gpu-dra-driver
and kubernetes-sigs/dra-driver-google-tpu, each as of 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NVIDIA, COMPUTE_DOMAIN = "gpu.nvidia.com", "compute-domain.nvidia.com"
AMD, CPU, TPU = "gpu.amd.com", "dra.cpu", "tpu.google.com"


def _device(name: str, *capacity: str, **attributes: object) -> dict[str, Any]:
    return {
        "name": name,
        "attributes": {key: _attribute(value) for key, value in attributes.items()},
        "capacity": {one: {"value": "1Gi"} for one in capacity},
    }


def _attribute(value: object) -> dict[str, object]:
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case list():
            return {"ints": value}
        case _:
            return {"version" if str(value).count(".") == 2 else "string": value}


def _at(bus: int, **more: object) -> dict[str, object]:
    """Where a PCI function is, by the standard attributes."""
    place = {"pciBusID": f"0000:{bus:02x}:00.0", "pcieRoot": "pci0000:00", **more}
    return {f"resource.kubernetes.io/{name}": value for name, value in place.items()}


_GPU = {
    "productName": "NVIDIA H100 80GB HBM3",
    "brand": "Nvidia",
    "architecture": "Hopper",
    "cudaComputeCapability": "9.0.0",
    "driverVersion": "580.105.8",
    "cudaDriverVersion": "13.0.0",
}
_ENGINES = ("multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")


def _cpus(**attributes: object) -> dict[str, object]:
    """With the names of that driver, which have its domain."""
    return {f"dra.cpu/{name}": value for name, value in attributes.items()}


_AMD = {"pciAddr": "0000:05:00.0", "productName": "AMD_Instinct_MI300X_OAM", "driverVersion": "6.12.12"}
_AMD_2026 = {"productName": "AMD_Instinct_MI300X_OAM", "deviceID": "0x74a1", "driverVersionFull": "6.12.12"}
_AMD_SIZES = ("memory", "computeUnits", "simdUnits")
_CHIP = {"uuid": "a", "tpuGen": "v5e", "brand": "Google", "accelerator": "tpu-v5-lite-podslice", "chipCount": 4}

DEVICES: Mapping[str, list[Mapping[str, Any]]] = {
    NVIDIA: [
        _device("gpu-0", "memory", type="gpu", uuid="GPU-1", addressingMode="HMM", **_GPU, **_at(5, numaNode=0)),
        _device("gpu-1", "memory", "shares", *_ENGINES, type="gpu", uuid="GPU-2", **_GPU, **_at(6, numaNode=[0])),
        _device("gpu-2", type="gpu", uuid="GPU-3", partition1=1, gpuModuleID=1, **_GPU),  # memory is the processor's
        _device(
            "gpu-3-mig-1g10gb-19-0", "memory", *_ENGINES, type="mig", parentUUID="GPU-4", profile="1g.10gb", **_GPU
        ),
        _device(
            "gpu-vfio-4",
            "addressableMemory",
            type="vfio",
            uuid="5",
            deviceID="0x2330",
            vendorID="0x10de",
            iommuFDEnabled=True,
            **_at(9),
        ),
    ],
    COMPUTE_DOMAIN: [_device("channel-0", type="channel", id=0), _device("daemon-0", type="daemon", id=0)],
    AMD: [
        _device("gpu-0-128", *_AMD_SIZES, type="amdgpu", cardIndex=0, renderIndex=128, deviceID="1", **_AMD),  # MI210
        _device(
            "gpu-1-129", *_AMD_SIZES, type="amdgpu", partitionProfile="spx_nps1", family="AI", deviceID="2", **_AMD
        ),
        _device(
            "gpu-2-130",
            *_AMD_SIZES,
            type="amdgpu-partition",
            partitionProfile="cpx_nps1",
            parentPciAddr="0000:05:00.0",
            parentDeviceID="2",
            **_AMD,
        ),
        _device("gpu-3-131", *_AMD_SIZES, type="amdgpu", numaNode=0, **_AMD_2026, **_at(5)),
        _device("gpu-4-132", type="amdgpu", **_AMD_2026),  # without a size that it could read
        _device(
            "gpu-5-cpx-nps1",
            *_AMD_SIZES,
            "partitions",
            type="amdgpu-partition",
            computePartition="cpx",
            memoryPartition="nps1",
            gpuIndex=5,
            **_AMD_2026,
        ),
        _device("gpu-vfio-6", *_AMD_SIZES, type="vfio", iommuGroup="17", isVF=False, vendorID="0x1002", **_AMD_2026),
        _device("gpu-vfio-7", type="vfio", isVF=True, vendorID="0x1002", partitionProfile="cpx", **_AMD_2026),
    ],
    CPU: [
        _device("cpudevnuma000", "dra.cpu/cpu", **_cpus(socketID=0, smtEnabled=True, numCPUs=8, numaNodeID=0)),
        _device("cpudevsocket000", "dra.cpu/cpu", **_cpus(socketID=0, smtEnabled=True, numCPUs=8)),
        _device("cpudevmachine", "dra.cpu/cpu", **_cpus(smtEnabled=False, numCPUs=8)),
        _device("cpudev000", **_cpus(cpuID=0, coreID=0, cacheL3ID=-1, coreType="standard", socketID=0)),
    ],
    TPU: [
        _device("accel0", index=0, topology="2x2", **_CHIP),
        _device("17", index=1, **_CHIP),
    ],
}
"""By driver, in the form of the API."""
