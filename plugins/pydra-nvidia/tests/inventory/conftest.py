"""Readings of made-up nodes: real GPUs' figures, as NVML tells them, put together as a test needs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_values import find_profiles, make_instance
from gpu_values import gpu as make_gpu
from pydra import Device, Inventory, TaintEffect
from pydra.inventory.build_pool import Published, build_pool
from pydra.inventory.health_debounce import HealthPolicy, Snapshot, observe
from pydra_nvidia.hardware_types import Driver, Gpu, GpuInstance, Mig, Placement, Profile, Reading
from pydra_nvidia.health.diagnosis import Diagnosis
from pydra_nvidia.inventory.build import build_inventory
from pydra_nvidia.settings import Settings
from pydra_pci import PciFunction, VfioHost

GIB = 1024**3

MODELS = {"H100": "h100-80gb", "H200": "h200-141gb", "A100": "a100-40gb", "A30": "a30", "T4": "t4"}
PROFILES = {name: tuple(sorted(find_profiles(model), key=lambda one: one.id)) for name, model in MODELS.items()}


class Boards:
    """Builds GPUs, readings of them, and inventories."""

    def profiles(self, model: str) -> tuple[Profile, ...]:
        """All profiles of a model, empty where it cannot be partitioned."""
        return PROFILES[model]

    def gpu(self, model: str = "H100", minor: int = 0, *, mig: bool = False, made: Any = (), **changes: Any) -> Gpu:
        """A GPU with the mode `mig`; `made` are (profile id, start) or instances that exist on it."""
        profiles = self.profiles(model)
        resetless = model.startswith("H")
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
        uuid = f"{minor:08d}-0000-0000-0000-000000000000"
        gpu = make_gpu(minor, uuid, f"0000:{0x10 + minor:02x}:00.0", model=MODELS[model])
        return replace(gpu, mig=state if profiles else None, **changes)

    def instance(self, model: str, profile: int, start: int, *, id_: int = 1, compute: Any = None) -> GpuInstance:
        """A GPU instance; `compute` are the slices of its compute instances, by default one that fills it."""
        kind = next(one for one in self.profiles(model) if one.id == profile)
        return make_instance(kind, start, number=id_, compute=compute)

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
