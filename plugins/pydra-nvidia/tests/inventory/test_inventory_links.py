"""NVLink and fabric, as attributes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pydra_nvidia.hardware_types import Fabric, Gpu, NvLinks

CLUSTER = "3b1f8a52-9f5e-4c1d-8a77-0d2b6c9e4f10"


def describe(boards: Any, *gpus: Gpu, **settings: Any) -> list[dict[str, Any]]:
    names = ("nvlinkLinksUp", "nvlinkPeers", "nvlinkIsland", "fabricClusterUUID", "fabricCliqueID", "cliqueID")
    devices = boards.inventory(boards.reading(*gpus), **settings).devices
    return [{name: device.attributes[name] for name in names if name in device.attributes} for device in devices]


def wired(boards: Any, *pairs: tuple[int, int], count: int = 4) -> list[Gpu]:
    """GPUs with a direct link for each pair."""
    gpus = [boards.gpu("A100", minor=minor) for minor in range(count)]
    joined = {minor: [b if a == minor else a for a, b in pairs if minor in (a, b)] for minor in range(count)}
    return [
        replace(
            gpu, links=NvLinks(total=4, up=len(joined[gpu.minor]), peers=tuple(gpus[n].pci for n in joined[gpu.minor]))
        )
        for gpu in gpus
    ]


def test_a_gpu_without_nvlink_says_nothing_of_it(boards: Any) -> None:
    assert describe(boards, boards.gpu("T4")) == [{}]


def test_switched_gpus_are_peers_of_each_other(boards: Any) -> None:
    gpus = [boards.gpu(minor=minor, links=NvLinks(total=18, up=18, switched=True)) for minor in range(8)]
    assert describe(boards, *gpus) == [{"nvlinkLinksUp": 18, "nvlinkPeers": 7, "nvlinkIsland": "nvswitch"}] * 8


def test_a_gpu_whose_links_are_all_down_is_in_no_island(boards: Any) -> None:
    gpus = [
        boards.gpu(minor=minor, links=NvLinks(total=18, up=18 if minor else 0, switched=True)) for minor in range(3)
    ]
    up = {"nvlinkLinksUp": 18, "nvlinkPeers": 1, "nvlinkIsland": "nvswitch"}
    assert describe(boards, *gpus) == [{"nvlinkLinksUp": 0, "nvlinkPeers": 0}, up, up]


def test_a_fabric_names_its_clique_as_compute_domains_do(boards: Any) -> None:
    links = NvLinks(total=18, up=18, switched=True)
    gpus = [
        boards.gpu(minor=minor, links=links, fabric=Fabric(cluster=CLUSTER, clique=32766 + minor // 2))
        for minor in range(4)
    ]
    found = describe(boards, *gpus)
    assert found[0] == {
        "nvlinkLinksUp": 18,
        "nvlinkPeers": 1,
        "nvlinkIsland": f"{CLUSTER}.32766",
        "fabricClusterUUID": CLUSTER,
        "fabricCliqueID": 32766,
        "cliqueID": f"{CLUSTER}.32766",
    }
    assert [one["nvlinkIsland"] for one in found] == [f"{CLUSTER}.32766"] * 2 + [f"{CLUSTER}.32767"] * 2


@pytest.mark.parametrize(
    ("pairs", "islands", "peers"),
    [
        pytest.param([(0, 1), (2, 3)], [0, 0, 2, 2], [1, 1, 1, 1], id="two bridged pairs"),
        pytest.param([(0, 1), (1, 2), (2, 3)], [0, 0, 0, 0], [1, 2, 2, 1], id="a chain"),
        pytest.param([(2, 3), (0, 3), (0, 1)], [0, 0, 0, 0], [2, 1, 1, 2], id="a chain, listed in another order"),
        pytest.param([(1, 3)], [None, 1, None, 1], [0, 1, 0, 1], id="one pair"),
        pytest.param([], [None] * 4, [0] * 4, id="no bridge"),
    ],
)
def test_directly_linked_gpus_are_one_island_where_links_connect_them(
    boards: Any, pairs: list[tuple[int, int]], islands: list[int | None], peers: list[int]
) -> None:
    gpus = wired(boards, *pairs)
    found = describe(boards, *gpus)
    assert [one.get("nvlinkIsland") for one in found] == [None if n is None else gpus[n].pci for n in islands]
    assert [one["nvlinkPeers"] for one in found] == peers


def test_an_island_keeps_its_name_when_its_first_gpu_is_passed_through(boards: Any) -> None:
    gpus = wired(boards, (0, 1), (1, 2), count=3)
    assert [one["nvlinkIsland"] for one in describe(boards, *gpus[1:])] == [gpus[0].pci] * 2


def test_partitioning_a_gpu_changes_no_ones_attributes(boards: Any) -> None:
    links = NvLinks(total=18, up=18, switched=True)
    gpus = [boards.gpu(minor=minor, links=links) for minor in range(4)]
    resting = boards.gpu(minor=0, mig=True, links=replace(links, up=0))
    before = boards.inventory(boards.reading(*gpus), dynamic_mig=True)
    assert boards.inventory(boards.reading(resting, *gpus[1:]), dynamic_mig=True) == before
    partitions = [device for device in before.devices if device.attributes["type"] == "mig"]
    assert not any(name.startswith(("nvlink", "fabric")) for device in partitions for name in device.attributes)


def test_where_the_links_of_a_gpu_in_mig_mode_end_is_known_from_the_others(boards: Any) -> None:
    links = NvLinks(total=18, up=18, switched=True)
    switched = [boards.gpu(minor=minor, links=links) for minor in range(3)]
    unknown = boards.gpu(minor=3, mig=True, links=NvLinks(total=18, up=0))
    whole = {"nvlinkLinksUp": 18, "nvlinkPeers": 3, "nvlinkIsland": "nvswitch"}
    assert [one for one in describe(boards, *switched, unknown, dynamic_mig=True) if one] == [whole] * 4
    bridged = boards.gpu(minor=0, mig=True, links=NvLinks(total=18, up=0))
    other = boards.gpu(minor=1, links=NvLinks(total=18, up=18, peers=(bridged.pci,)))
    pair = {"nvlinkLinksUp": 18, "nvlinkPeers": 1, "nvlinkIsland": bridged.pci}
    assert [one for one in describe(boards, bridged, other, dynamic_mig=True) if one] == [pair, pair]
