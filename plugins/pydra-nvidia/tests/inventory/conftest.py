"""Readings of made-up nodes: real GPUs' figures, as NVML tells them, put together as a test needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from pydra import Device, Inventory, TaintEffect
from pydra.inventory.health import HealthPolicy, Published, Snapshot, build_pool, observe
from pydra_nvidia.hardware_types import ComputeInstance, Driver, Gpu, GpuInstance, Mig, Placement, Profile, Reading
from pydra_nvidia.health.diagnosis import Diagnosis
from pydra_nvidia.inventory.build import build_inventory
from pydra_nvidia.settings import Settings
from pydra_pci import PciFunction, VfioHost

GIB = 1024**3

# id, name, slices, most, MiB, SMs, copy engines, decoders, encoders, JPEG, OFA, starts, size
PROFILES: Mapping[str, tuple[tuple[Any, ...], ...]] = {
    "H100": (
        (0, "7g.80gb", 7, 1, 81152, 132, 8, 7, 0, 7, 1, (0,), 8),
        (5, "4g.40gb", 4, 1, 40448, 64, 4, 4, 0, 4, 0, (0,), 4),
        (9, "3g.40gb", 3, 2, 40448, 60, 3, 3, 0, 3, 0, (0, 4), 4),
        (14, "2g.20gb", 2, 3, 20096, 32, 2, 2, 0, 2, 0, (0, 2, 4), 2),
        (15, "1g.20gb", 1, 4, 20096, 26, 1, 1, 0, 1, 0, (0, 2, 4, 6), 2),
        (19, "1g.10gb", 1, 7, 9984, 16, 1, 1, 0, 1, 0, range(7), 1),
        (20, "1g.10gb+me", 1, 1, 9984, 16, 1, 1, 0, 1, 1, range(7), 1),
    ),
    "A100": (
        (0, "7g.40gb", 7, 1, 40192, 98, 7, 5, 0, 1, 1, (0,), 8),
        (5, "4g.20gb", 4, 1, 19968, 56, 4, 2, 0, 0, 0, (0,), 4),
        (9, "3g.20gb", 3, 2, 19968, 42, 3, 2, 0, 0, 0, (0, 4), 4),
        (14, "2g.10gb", 2, 3, 9856, 28, 2, 1, 0, 0, 0, (0, 2, 4), 2),
        (15, "1g.10gb", 1, 4, 9856, 14, 1, 1, 0, 0, 0, (0, 2, 4, 6), 2),
        (19, "1g.5gb", 1, 7, 4864, 14, 1, 0, 0, 0, 0, range(7), 1),
        (20, "1g.5gb+me", 1, 1, 4864, 14, 1, 1, 0, 1, 1, range(7), 1),
    ),
    "A30": (
        (0, "4g.24gb", 4, 1, 23344, 56, 4, 4, 0, 1, 1, (0,), 4),
        (5, "2g.12gb", 2, 2, 11672, 28, 2, 2, 0, 0, 0, (0, 2), 2),
        (6, "2g.12gb+me", 2, 1, 11672, 28, 2, 2, 0, 1, 1, (0, 2), 2),
        (14, "1g.6gb", 1, 4, 5836, 14, 1, 0, 0, 0, 0, range(4), 1),
        (21, "1g.6gb+me", 1, 1, 5836, 14, 1, 1, 0, 1, 1, range(4), 1),
    ),
    "H200": (
        (0, "7g.141gb", 7, 1, 143360, 132, 8, 7, 0, 7, 1, (0,), 8),
        (5, "4g.71gb", 4, 1, 71424, 64, 4, 4, 0, 4, 0, (0,), 4),
        (9, "3g.71gb", 3, 2, 71424, 60, 3, 3, 0, 3, 0, (0, 4), 4),
        (14, "2g.35gb", 2, 3, 33280, 32, 2, 2, 0, 2, 0, (0, 2, 4), 2),
        (15, "1g.35gb", 1, 4, 33280, 26, 1, 1, 0, 1, 0, (0, 2, 4, 6), 2),
        (19, "1g.18gb", 1, 7, 16384, 16, 1, 1, 0, 1, 0, range(7), 1),
        (20, "1g.18gb+me", 1, 1, 16384, 16, 1, 1, 0, 1, 1, range(7), 1),
    ),
}
MODELS: Mapping[str, dict[str, Any]] = {
    "H100": {"name": "NVIDIA H100 80GB HBM3", "brand": 14, "architecture": 9, "compute": (9, 0), "memory": 81559 << 20},
    "H200": {"name": "NVIDIA H200", "brand": 14, "architecture": 9, "compute": (9, 0), "memory": 143771 << 20},
    "A100": {"name": "NVIDIA A100-SXM4-40GB", "brand": 14, "architecture": 7, "compute": (8, 0), "memory": 40 * GIB},
    "A30": {"name": "NVIDIA A30", "brand": 14, "architecture": 7, "compute": (8, 0), "memory": 24 * GIB},
    "T4": {"name": "Tesla T4", "brand": 2, "architecture": 7 - 1, "compute": (7, 5), "memory": 15 * GIB},
}


class Boards:
    """Builds GPUs, readings of them, and inventories."""

    def profiles(self, model: str) -> tuple[Profile, ...]:
        """All profiles of a model, empty where it cannot be partitioned."""
        return tuple(
            Profile(
                id=id_,
                name=name,
                slices=slices,
                most=most,
                memory_mib=memory,
                multiprocessors=sms,
                copy_engines=copy,
                decoders=decoders,
                encoders=encoders,
                jpeg_engines=jpeg,
                ofa_engines=ofa,
                placements=tuple(Placement(start, size) for start in starts),
            )
            for id_, name, slices, most, memory, sms, copy, decoders, encoders, jpeg, ofa, starts, size in PROFILES.get(
                model, ()
            )
        )

    def gpu(self, model: str = "H100", minor: int = 0, *, mig: bool = False, made: Any = (), **changes: Any) -> Gpu:
        """A GPU with the mode `mig`; `made` are (profile id, start) or instances that exist on it."""
        profiles = self.profiles(model)
        resetless = MODELS[model]["architecture"] >= 9
        state = Mig(
            enabled=mig,
            pending=mig,
            resetless=resetless,
            profiles=profiles if resetless or mig else (),  # Ampere tells none with the mode off
            instances=tuple(
                one if isinstance(one, GpuInstance) else self.instance(model, *one, id_=number + 1)
                for number, one in enumerate(made)
            ),
        )
        gpu = Gpu(
            index=minor,
            minor=minor,
            uuid=f"GPU-{minor:08d}-0000-0000-0000-000000000000",
            pci=f"0000:{0x10 + minor:02x}:00.0",
            mig=state if profiles else None,
            **MODELS[model],
        )
        return replace(gpu, **changes)

    def instance(self, model: str, profile: int, start: int, *, id_: int = 1, compute: Any = None) -> GpuInstance:
        """A GPU instance; `compute` are the slices of its compute instances, by default one that fills it."""
        kind = next(one for one in self.profiles(model) if one.id == profile)
        place = next(one for one in kind.placements if one.start == start)
        slices = (kind.slices,) if compute is None else compute
        return GpuInstance(
            id=id_,
            profile=profile,
            placement=place,
            compute=tuple(
                ComputeInstance(id=number, uuid=f"MIG-{id_}-{number}", slices=size)
                for number, size in enumerate(slices)
            ),
        )

    def function(self, gpu: Gpu, **changes: Any) -> PciFunction:
        """The PCI function of a GPU that its driver manages."""
        function = PciFunction(
            address=gpu.pci,
            vendor="0x10de",
            device="0x2330",
            pci_class="0x030200",
            driver="nvidia",
            root="pci0000:0c",
            numa=gpu.minor // 4,
            group=str(30 + gpu.minor),
            addressable=128 * GIB,
            name="GH100 [H100 SXM5 80GB]",
        )
        return replace(function, **changes)

    def reading(self, *gpus: Gpu, **changes: Any) -> Reading:
        """A node with these GPUs and an IOMMU."""
        reading = Reading(
            driver=Driver(version="580.105.08", cuda=13000),
            gpus=gpus,
            functions={gpu.pci: self.function(gpu) for gpu in gpus},
            vfio=VfioHost(iommu=True, iommufd=True),
        )
        return replace(reading, **changes)

    def inventory(
        self,
        reading: Reading,
        *,
        owned: Collection[tuple[str, Placement]] = (),
        diagnosis: Diagnosis | None = None,
        **settings: Any,
    ) -> Inventory:
        """The inventory, after a look that pydra would publish all of it."""
        inventory = build_inventory(
            reading, settings=Settings(**settings), owned=owned, diagnosis=diagnosis or Diagnosis()
        )
        published = self.publish(inventory)
        assert published.dropped == published.problems == ()
        assert len(published.pool.devices) == len(inventory.devices)
        return inventory

    def devices(self, reading: Reading, **options: Any) -> dict[str, Device]:
        """The inventory's devices by name, in their order."""
        return {device.name: device for device in self.inventory(reading, **options).devices}

    def publish(self, inventory: Inventory) -> Published:
        """What pydra makes of it, by the API's rules."""
        policy = HealthPolicy(
            effect=TaintEffect.NO_SCHEDULE,
            unhealthy_after=0.0,
            healthy_after=30.0,
            stale_effect=TaintEffect.NO_SCHEDULE,
            stale_after=60.0,
        )
        snapshot = observe(Snapshot(), inventory, now=0.0, policy=policy)
        return build_pool(snapshot, driver="gpu.nvidia.com", pool="node-1", policy=policy)


@pytest.fixture(scope="session")
def boards() -> Boards:
    return Boards()
