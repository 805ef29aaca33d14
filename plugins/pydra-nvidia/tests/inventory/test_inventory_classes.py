"""Claims that name NVIDIA's classes, attributes and counters get the right devices from a first-fit scheduler."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from pydra import Inventory
from pydra.slices.build import build_wanted
from pydra_dev.api import schema
from pydra_dev.scheduler.allocator import AllocationError, NamedClaim, allocate, read_in_use
from pydra_dev.scheduler.pools import NamedSlice
from pydra_nvidia import DEVICE_CLASSES
from pydra_nvidia.hardware_types import Fabric, NvLinks
from pydra_nvidia.settings import Shares

NODE = {"metadata": {"name": "node-1", "labels": {}}, "spec": {}}
OWN = "device.attributes['gpu.nvidia.com']"


def publish(boards: Any, inventory: Inventory) -> list[NamedSlice]:
    wanted = build_wanted(boards.publish(inventory).pool, driver="gpu.nvidia.com", node="node-1")
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": len(wanted.slices)}
    bodies = [{"driver": "gpu.nvidia.com", "pool": pool, "nodeName": wanted.node, **one} for one in wanted.slices]
    return [
        NamedSlice(f"slice-{number}", schema.parse_fields("ResourceSlice", schema.SliceSpec, body))
        for number, body in enumerate(bodies)
    ]


class Scheduler:
    """Gives devices to one claim after another; what was given stays given."""

    def __init__(self, slices: Sequence[NamedSlice]) -> None:
        self._slices = slices
        self._held: list[schema.ClaimStatus] = []
        self._share_ids = itertools.count()

    def give(
        self, class_name: str, *selectors: str, count: int = 1, match: str = "", capacity: Any = None
    ) -> list[str]:
        exactly = {
            "deviceClassName": class_name,
            "allocationMode": "ExactCount",
            "count": count,
            "selectors": [{"cel": {"expression": text}} for text in selectors],
            **({"capacity": {"requests": capacity}} if capacity else {}),
        }
        devices: dict[str, Any] = {"requests": [{"name": "r", "exactly": exactly}]}
        if match:
            devices["constraints"] = [{"matchAttribute": match}]
        spec = schema.parse_fields("ResourceClaim", schema.ClaimSpec, {"devices": devices})
        classes = {
            name: schema.parse_fields("DeviceClass", schema.ClassSpec, dict(one))
            for name, one in DEVICE_CLASSES.items()
        }
        (allocation,) = allocate(
            [NamedClaim("default/claim", spec)],
            node=NODE,
            slices=self._slices,
            classes=classes,
            in_use=read_in_use(self._held),
            build_uid=lambda: f"share-{next(self._share_ids)}",
        )
        self._held.append(schema.ClaimStatus(allocation=allocation))
        return [result.device for result in allocation.devices.results]


@pytest.mark.parametrize(
    ("class_name", "selectors", "device"),
    [
        ("gpu.nvidia.com", (), "gpu-0"),
        ("gpu.nvidia.com", (f"{OWN}.productName.startsWith('NVIDIA A100')",), "gpu-1"),
        ("gpu.nvidia.com", (f"{OWN}.architecture == 'Turing' && {OWN}.brand == 'Tesla'",), "gpu-2"),
        ("gpu.nvidia.com", (f"{OWN}.cudaComputeCapability.compareTo(semver('8.0.0')) < 0",), "gpu-2"),
        ("gpu.nvidia.com", (f"{OWN}.driverVersion.isGreaterThan(semver('580.105.7'))",), "gpu-0"),
        ("mig.nvidia.com", (), "gpu-0-mig-1g10gb-19-6"),
        ("mig.nvidia.com", (f"{OWN}.profile == '1g.10gb+me'",), "gpu-0-mig-1g10gb-me-20-6"),
        (
            "mig.nvidia.com",
            ("device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('39Gi')) >= 0",),
            "gpu-0-mig-3g40gb-9-4",
        ),
        ("vfio.gpu.nvidia.com", (), "gpu-vfio-0"),
        ("vfio.gpu.nvidia.com", ("device.attributes['resource.kubernetes.io'].numaNode == 1",), "gpu-vfio-4"),
    ],
)
def test_expressions_written_for_nvidias_driver_find_devices(
    boards: Any, class_name: str, selectors: tuple[str, ...], device: str
) -> None:
    gpus = [boards.gpu(), boards.gpu("A100", minor=1), *(boards.gpu("T4", minor=minor, brand=2) for minor in (2, 3, 4))]
    inventory = boards.inventory(boards.reading(*gpus), dynamic_mig=True, vfio=True)
    assert Scheduler(publish(boards, inventory)).give(class_name, *selectors) == [device]


def test_small_partitions_leave_room_for_a_large_one(boards: Any) -> None:
    inventory = boards.inventory(boards.reading(boards.gpu()), dynamic_mig=True)
    scheduler = Scheduler(publish(boards, inventory))
    given = [scheduler.give("mig.nvidia.com", f"{OWN}.profile == '1g.10gb'") for _ in range(3)]
    given.append(scheduler.give("mig.nvidia.com", f"{OWN}.profile == '4g.40gb'"))
    assert given[-1] == ["gpu-0-mig-4g40gb-5-0"]
    with pytest.raises(AllocationError):
        scheduler.give("mig.nvidia.com")


@pytest.mark.parametrize("first", ["gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"])
@pytest.mark.parametrize("second", ["gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"])
def test_a_gpu_is_given_in_one_way_only(boards: Any, first: str, second: str) -> None:
    inventory = boards.inventory(boards.reading(boards.gpu()), dynamic_mig=True, vfio=True)
    scheduler = Scheduler(publish(boards, inventory))
    scheduler.give(first)
    if first == second == "mig.nvidia.com":
        assert scheduler.give(second)
    else:
        with pytest.raises(AllocationError):
            scheduler.give(second)


def test_a_claim_gets_gpus_of_one_island(boards: Any) -> None:
    links = NvLinks(total=18, up=18, switched=True)
    cliques = [Fabric(cluster="3b1f8a52-9f5e-4c1d-8a77-0d2b6c9e4f10", clique=clique) for clique in (1, 2, 2)]
    gpus = [boards.gpu(minor=minor, links=links, fabric=fabric) for minor, fabric in enumerate(cliques)]
    slices = publish(boards, boards.inventory(boards.reading(boards.gpu("T4", minor=3), *gpus)))
    given = Scheduler(slices).give("gpu.nvidia.com", count=2, match="gpu.nvidia.com/nvlinkIsland")
    assert given == ["gpu-1", "gpu-2"]
    with pytest.raises(AllocationError):
        Scheduler(slices).give("gpu.nvidia.com", count=3, match="gpu.nvidia.com/nvlinkIsland")


def test_shares_are_given_until_there_are_none(boards: Any) -> None:
    inventory = boards.inventory(boards.reading(boards.gpu("T4")), consumable_shares=3)
    scheduler = Scheduler(publish(boards, inventory))
    assert [scheduler.give("gpu.nvidia.com") for _ in range(3)] == [["gpu-0"]] * 3
    with pytest.raises(AllocationError):
        scheduler.give("gpu.nvidia.com")


def test_claims_share_a_partition_by_its_memory(boards: Any) -> None:
    inventory = boards.inventory(boards.reading(boards.gpu(mig=True, made=[(9, 0)])), consumable_shares=Shares.MEMORY)
    scheduler = Scheduler(publish(boards, inventory))
    given = [scheduler.give("mig.nvidia.com", capacity={"memory": "19Gi"}) for _ in range(2)]
    assert given == [["gpu-0-mig-3g40gb-9-0"]] * 2
    with pytest.raises(AllocationError):
        scheduler.give("mig.nvidia.com", capacity={"memory": "19Gi"})
