"""Which modes a GPU can have, and what its partitions are then."""

from __future__ import annotations

import pytest

from amd_values import GIB, gpu_of, reading_of
from pydra_amd.inventory.build import build_inventory
from pydra_amd.models import list_modes
from pydra_amd.settings import Partitioning


@pytest.mark.parametrize(
    ("model", "modes"),
    [
        ("0x74a1", "spx_nps1 dpx_nps1 dpx_nps2 qpx_nps1 qpx_nps4 cpx_nps1 cpx_nps4"),
        ("0x74a5", "spx_nps1 dpx_nps1 dpx_nps2 qpx_nps1 qpx_nps4 cpx_nps1 cpx_nps4"),
        ("0x74a2", "spx_nps1 dpx_nps1 dpx_nps2 cpx_nps1 cpx_nps4"),
        ("0x74a0", "spx_nps1 tpx_nps1 tpx_nps4 cpx_nps1 cpx_nps4"),
        ("0x75a3", "spx_nps1 dpx_nps1 dpx_nps2 qpx_nps1 qpx_nps2 cpx_nps1 cpx_nps2"),
    ],
    ids=["MI300X", "MI325X", "MI308X", "MI300A", "MI355X"],
)
def test_a_model_has_the_modes_that_its_xccs_and_memory_allow(model: str, modes: str) -> None:
    gpu = gpu_of(model)
    assert [str(one) for one in list_modes(gpu)] == modes.split()
    here = [one for one in modes.split() if one.endswith("nps1")]
    assert [str(one) for one in list_modes(gpu, "nps1")] == here


def test_what_the_driver_does_not_offer_is_left_out() -> None:
    told = gpu_of(compute_modes=("spx", "cpx"), memory_modes=("nps1", "nps4"))
    assert [str(one) for one in list_modes(told)] == ["spx_nps1", "qpx_nps4", "cpx_nps1", "cpx_nps4"]
    assert list_modes(gpu_of(memory_modes=())).keys() == list_modes(gpu_of(), "nps1").keys()


def test_a_gpu_that_cannot_be_partitioned_or_is_unknown_has_no_modes() -> None:
    assert list_modes(gpu_of("0x740f", mode="")) == {}
    assert list_modes(gpu_of(gfx=130000)) == {}


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("0x74a1", {"spx": (304, 192), "dpx": (152, 96), "qpx": (76, 48), "cpx": (38, 24)}),
        ("0x74a5", {"spx": (304, 256), "dpx": (152, 128), "qpx": (76, 64), "cpx": (38, 32)}),
        ("0x74a2", {"spx": (80, 192), "dpx": (40, 96), "cpx": (20, 48)}),
        ("0x75a3", {"spx": (256, 288), "dpx": (128, 144), "qpx": (64, 72), "cpx": (32, 36)}),
    ],
    ids=["MI300X", "MI325X", "MI308X", "MI355X"],
)
@pytest.mark.parametrize("present", ["spx_nps1", "cpx_nps1"])
def test_a_partition_is_its_part_of_the_gpu_whatever_mode_that_has_now(
    model: str, sizes: dict[str, tuple[int, int]], present: str
) -> None:
    inventory = build_inventory(reading_of(gpu_of(model, present)), Partitioning.COMPUTE)
    found = {
        (
            one.attributes["computePartition"],
            int(one.capacity["computeUnits"].value),
            int(one.capacity["memory"].value) // GIB,
        )
        for one in inventory.devices
    }
    assert found == {(mode, *size) for mode, size in sizes.items()}
