"""Facts of real machines' KFD topologies, which are read as they are.

Source: ROCm/k8s-device-plugin, testdata: topo-mi210-xgmi-pcie, topo-mi300-cpx, topology-parsing-mi308.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydra_amd.host.kfd import NODES, KfdNode, read_nodes
from pydra_pci import Roots, Tree

PROCESSOR = {"cpu_cores_count": 96, "simd_count": 0, "drm_render_minor": 0}
MI210 = {
    "simd_count": 416,
    "simd_per_cu": 4,
    "gfx_target_version": 90010,
    "location_id": 25344,
    "domain": 0,
    "drm_render_minor": 128,
    "hive_id": 12609507387757274807,
    "unique_id": 1801979520617338022,
    "num_xcc": 1,
}
MI300X_CPX = {
    "simd_count": 152,
    "simd_per_cu": 4,
    "gfx_target_version": 90402,
    "location_id": 9991,
    "domain": 0,
    "drm_render_minor": 143,
    "hive_id": 15188982192727901047,
    "unique_id": 2472748907779728154,
    "num_xcc": 1,
}
MI308X_CPX = {**MI300X_CPX, "simd_count": 80, "location_id": 2819, "domain": 1, "drm_render_minor": 163}
OLDER_KERNEL = {**MI300X_CPX, "location_id": 0x7000_2700}


def read(root: Path, *nodes: Mapping[str, int], bank: str = "") -> list[KfdNode]:
    for number, properties in enumerate(nodes):
        folder = root / NODES / str(number)
        folder.mkdir(parents=True)
        (folder / "properties").write_text("".join(f"{name} {value}\n" for name, value in properties.items()))
        if bank:
            (folder / "mem_banks" / "0").mkdir(parents=True)
            (folder / "mem_banks" / "0" / "properties").write_text(bank)
    return [*read_nodes(Tree(Roots(sys=str(root))))]


def test_a_gpu_that_is_not_divided_is_one_node_at_its_address(tmp_path: Path) -> None:
    (node,) = read(tmp_path, PROCESSOR, PROCESSOR, MI210)
    assert (node.number, node.address, node.index, node.render) == (2, "0000:63:00.0", 0, 128)
    assert (node.simds // node.simds_per_unit, node.unique_id) == (104, 1801979520617338022)


def test_a_partition_has_the_address_of_its_gpu_and_its_number_in_the_place_of_the_function(tmp_path: Path) -> None:
    node, older, other = read(tmp_path, MI300X_CPX, OLDER_KERNEL, MI308X_CPX)
    assert (node.address, node.index, node.render) == (older.address, older.index, 143) == ("0000:27:00.0", 7, 143)
    assert (other.address, other.index) == ("0001:0b:00.0", 3)


def test_a_compute_unit_has_as_many_simd_units_as_its_family_where_kfd_does_not_tell(tmp_path: Path) -> None:
    instinct = {name: value for name, value in MI210.items() if name != "simd_per_cu"}
    radeon = {**instinct, "simd_count": 192, "gfx_target_version": 110000}
    nodes = read(tmp_path, instinct, radeon)
    assert [one.simds // one.simds_per_unit for one in nodes] == [104, 96]


def test_memory_is_that_of_the_gpu_and_0_where_it_is_not_told(tmp_path: Path) -> None:
    (without,) = read(tmp_path / "without", MI300X_CPX)
    assert without.memory == 0
    bank = "heap_type {}\nsize_in_bytes 51522830336\nflags 0\nwidth 8192\n"
    (vram,) = read(tmp_path / "vram", MI308X_CPX, bank=bank.format(1))
    (system,) = read(tmp_path / "system", MI308X_CPX, bank=bank.format(0))
    assert (vram.memory, system.memory) == (51522830336, 0)
