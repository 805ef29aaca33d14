"""NVIDIA display functions as sysfs shows them, from real trees of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pydra_nvidia.hardware_types import PciFunction, VfioHost
from pydra_nvidia.host.filesystem import Roots, Tree
from pydra_nvidia.host.pci import PciBus, PciIds, addressable_memory, find_root, is_vfio, read_vfio_host

H100_RESOURCE = """\
0x00000387ff000000 0x00000387ffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000038000000000 0x0000039fffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000038800000000 0x0000038801ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000038802000000 0x00000388020fffff 0x000000000014220c
"""


def tree(tmp_path: Path) -> Tree:
    return Tree(Roots(host=str(tmp_path), sys=str(tmp_path / "sys"), proc=str(tmp_path / "proc")))


def add(
    tmp_path: Path, address: str, *, driver: str = "nvidia", links: dict[str, str] | None = None, **files: str
) -> Path:
    """A function as the kernel lays it out: an entry that links to where it is below its root complex."""
    place = tmp_path / "sys/devices/pci0000:50/0000:50:01.0" / address
    place.mkdir(parents=True)
    told = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200", "numa_node": "1", **files}
    for name, text in told.items():
        (place / name).write_text(text + "\n")
    for name, target in (links or {}).items():
        (place / name).symlink_to(target)
    entries = tmp_path / "sys/bus/pci/devices"
    entries.mkdir(parents=True, exist_ok=True)
    (entries / address).symlink_to(f"../../../devices/pci0000:50/0000:50:01.0/{address}")
    if driver:
        bind(tmp_path, address, driver)
    return place


def bind(tmp_path: Path, address: str, driver: str) -> None:
    link = tmp_path / "sys/bus/pci/devices" / address / "driver"
    link.unlink(missing_ok=True)
    if driver:
        link.symlink_to(f"../../../../bus/pci/drivers/{driver}")


def test_a_function_is_read_with_all_that_sysfs_tells(tmp_path: Path) -> None:
    add(
        tmp_path,
        "0000:53:00.0",
        resource=H100_RESOURCE,
        modalias="pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00",
        sriov_numvfs="0",
        links={"iommu_group": "../../../../kernel/iommu_groups/46"},
    )
    assert PciBus(tree(tmp_path)).functions() == {
        "0000:53:00.0": PciFunction(
            address="0000:53:00.0",
            vendor="0x10de",
            device="0x2330",
            pci_class="0x030200",
            driver="nvidia",
            root="pci0000:50",
            numa=1,
            group="46",
            addressable=1 << 38,  # 16 MiB + 128 GiB + 32 MiB, rounded up
            modalias="pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00",
        )
    }


def test_only_nvidias_display_functions_count_and_come_in_the_order_of_their_addresses(tmp_path: Path) -> None:
    add(tmp_path, "0000:9a:00.0")
    add(tmp_path, "0000:18:00.0", **{"class": "0x030000"})
    add(tmp_path, "0000:18:00.1", **{"class": "0x040300"})  # the audio function of the same card
    add(tmp_path, "0000:2a:00.0", vendor="0x1002")
    add(tmp_path, "0000:06:00.0", device="0x22a3", **{"class": "0x068000"})  # an NVSwitch
    assert list(PciBus(tree(tmp_path)).functions()) == ["0000:18:00.0", "0000:9a:00.0"]


def test_virtual_functions_and_their_parents_are_told_apart(tmp_path: Path) -> None:
    add(tmp_path, "0000:41:00.0", sriov_numvfs="2")
    add(tmp_path, "0000:41:00.4", links={"physfn": "../0000:41:00.0"})
    parent, virtual = PciBus(tree(tmp_path)).functions().values()
    assert (parent.is_virtual, parent.has_virtual) == (False, True)
    assert (virtual.is_virtual, virtual.has_virtual) == (True, False)


def test_what_sysfs_does_not_tell_is_left_at_none(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices/0000:53:00.0").mkdir(parents=True)
    for name, text in {"vendor": "0x10de", "class": "0x030200"}.items():
        (tmp_path / "sys/bus/pci/devices/0000:53:00.0" / name).write_text(text)
    (function,) = PciBus(tree(tmp_path)).functions().values()
    assert function == PciFunction(address="0000:53:00.0", vendor="0x10de", device="", pci_class="0x030200")


def test_a_machine_without_pci_has_no_functions(tmp_path: Path) -> None:
    assert PciBus(tree(tmp_path)).functions() == {}
    assert PciBus(tree(tmp_path)).drivers() == ()


def test_a_new_function_a_lost_one_and_another_driver_show(tmp_path: Path) -> None:
    bus = PciBus(tree(tmp_path))
    add(tmp_path, "0000:53:00.0")
    seen = [bus.drivers()]
    bind(tmp_path, "0000:53:00.0", "vfio-pci")
    seen.append(bus.drivers())
    bind(tmp_path, "0000:53:00.0", "")
    seen.append(bus.drivers())
    add(tmp_path, "0000:54:00.0")
    seen.append(bus.drivers())
    (tmp_path / "sys/bus/pci/devices/0000:53:00.0").unlink()
    seen.append(bus.drivers())
    assert [[(address, driver) for address, _, driver in one] for one in seen] == [
        [("0000:53:00.0", "nvidia")],
        [("0000:53:00.0", "vfio-pci")],
        [("0000:53:00.0", "")],
        [("0000:53:00.0", ""), ("0000:54:00.0", "nvidia")],
        [("0000:54:00.0", "nvidia")],
    ]


def test_another_card_at_the_same_address_is_looked_at_anew(tmp_path: Path) -> None:
    bus = PciBus(tree(tmp_path))
    place = add(tmp_path, "0000:53:00.0")
    assert list(bus.functions()) == ["0000:53:00.0"]
    entry = tmp_path / "sys/bus/pci/devices/0000:53:00.0"
    replacement = tmp_path / "sys/bus/pci/devices/new"
    replacement.symlink_to(os.readlink(entry))  # while the old one is there, so that its inode is another
    (place / "vendor").write_text("0x1002")
    os.replace(replacement, entry)
    assert bus.functions() == {}


@pytest.mark.parametrize(
    ("resource", "bytes_"),
    [
        ("", 0),
        (H100_RESOURCE, 1 << 38),
        ("0x00000000f8000000 0x00000000f8ffffff 0x0000000000040200", 0),
        ("0x0000000000000000 0x000000000000ffff 0x000000000014220c", 1 << 16),
        ("0x0000000000000000 0x0000000000010000 0x000000000014220c", 1 << 17),
        ("not a line", 0),
        ("0x0 0x0 0x14220c\n" * 6 + "0x0 0xffff 0x14220c", 0),
    ],
    ids=["nothing", "h100", "32 bits", "a power of two", "above one", "nonsense", "the seventh is the ROM"],
)
def test_addressable_memory_is_that_of_the_64_bit_regions(resource: str, bytes_: int) -> None:
    assert addressable_memory(resource) == bytes_


@pytest.mark.parametrize(
    ("link", "root"),
    [
        ("../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:00"),
        ("../../../devices/pci10000:e0/10000:e0:01.0", "pci10000:e0"),
        ("../../../devices/platform/soc/pcie0/pci0008:00/0008:00:00.0", ""),
        ("", ""),
    ],
)
def test_the_root_is_the_first_part_of_the_devices_place(link: str, root: str) -> None:
    assert find_root(link) == root


@pytest.mark.parametrize("driver", ["vfio-pci", "nvgrace-gpu-vfio-pci", "mlx5_vfio_pci"])
def test_variants_of_vfio_are_known_by_their_names(driver: str) -> None:
    assert is_vfio(driver)
    assert not is_vfio("nvidia")


def test_the_host_tells_whether_it_can_pass_devices_through(tmp_path: Path) -> None:
    node = tree(tmp_path)
    groups = tmp_path / "sys/kernel/iommu_groups"
    groups.mkdir(parents=True)
    assert read_vfio_host(node) == VfioHost(iommu=False, iommufd=False)
    (groups / "0").mkdir()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/iommu").touch()
    assert read_vfio_host(node) == VfioHost(iommu=True, iommufd=True)


PCI_IDS = """\
# a comment
10dd  Evans & Sutherland
	1e30  Not this one
10de  NVIDIA Corporation
	1e30  TU102GL [Quadro RTX 6000/8000]
		10de 129e  Quadro RTX 8000
# a comment between
	2330  An old name
10df  Emulex Corporation
	1e36  Nor this one
"""


def test_a_device_that_is_not_known_here_is_called_what_the_hosts_list_says(tmp_path: Path) -> None:
    names = PciIds(tree(tmp_path))
    assert names.name("0x1e30") == ""
    lists = tmp_path / "usr/share/hwdata"
    lists.mkdir(parents=True)
    (lists / "pci.ids").write_text(PCI_IDS)
    found = [names.name(device) for device in ("0x1e30", "0x1e36", "0x129e")]
    assert found == ["TU102GL [Quadro RTX 6000/8000]", "", ""]
    (lists / "pci.ids").write_text(PCI_IDS.replace("TU102GL", "Renamed"))
    assert names.name("0x1e30") == "Renamed [Quadro RTX 6000/8000]"


def test_a_data_centre_gpu_has_the_same_name_whatever_list_the_host_has(tmp_path: Path) -> None:
    names = PciIds(tree(tmp_path))
    assert (names.name("0x2330"), names.name("0x2901")) == ("GH100 [H100 SXM5 80GB]", "GB100 [B200]")
    lists = tmp_path / "usr/share/misc"
    lists.mkdir(parents=True)
    (lists / "pci.ids").write_text(PCI_IDS)
    assert names.name("0x2330") == "GH100 [H100 SXM5 80GB]"
