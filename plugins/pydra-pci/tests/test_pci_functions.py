"""PCI functions as sysfs shows them, from real trees of files."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from pydra_pci import PciBus, PciFunction, Roots, Tree, VfioHost, is_vfio, parse_regions, read_vfio_host
from pydra_pci.functions import find_root

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


def bus_of(tmp_path: Path) -> PciBus:
    return PciBus(tree(tmp_path), "0x10de", ("0x0300", "0x0302"))


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


def test_a_bus_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    add(tmp_path, "0000:53:00.0")
    bus, limits = bus_of(tmp_path), resource.getrlimit(resource.RLIMIT_NOFILE)
    before = bus.functions()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))  # no descriptor is left
        with pytest.raises(OSError, match="Too many open files"):
            bus.functions()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert bus.functions() == before


def test_a_function_is_read_with_all_that_sysfs_tells(tmp_path: Path) -> None:
    add(
        tmp_path,
        "0000:53:00.0",
        resource=H100_RESOURCE,
        modalias="pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00",
        sriov_numvfs="0",
        links={"iommu_group": "../../../../kernel/iommu_groups/46"},
    )
    assert bus_of(tmp_path).functions() == {
        "0000:53:00.0": PciFunction(
            address="0000:53:00.0",
            vendor="0x10de",
            device="0x2330",
            pci_class="0x030200",
            driver="nvidia",
            root="pci0000:50",
            numa=1,
            group="46",
            addressable=(16 << 20) + (128 << 30) + (32 << 20),
            modalias="pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00",
        )
    }


def test_functions_of_the_vendor_and_classes_come_in_the_order_of_their_addresses(
    tmp_path: Path,
) -> None:
    add(tmp_path, "0000:9a:00.0")
    add(tmp_path, "0000:18:00.0", **{"class": "0x030000"})
    add(tmp_path, "0000:18:00.1", **{"class": "0x040300"})  # the audio function of the same card
    add(tmp_path, "0000:2a:00.0", vendor="0x1002")
    add(tmp_path, "0000:06:00.0", device="0x22a3", **{"class": "0x068000"})  # an NVSwitch
    assert list(bus_of(tmp_path).functions()) == ["0000:18:00.0", "0000:9a:00.0"]


def test_virtual_functions_and_their_parents_are_told_apart(tmp_path: Path) -> None:
    add(tmp_path, "0000:41:00.0", sriov_numvfs="2")
    add(tmp_path, "0000:41:00.4", links={"physfn": "../0000:41:00.0"})
    parent, virtual = bus_of(tmp_path).functions().values()
    assert (parent.is_virtual, parent.has_virtual) == (False, True)
    assert (virtual.is_virtual, virtual.has_virtual) == (True, False)


def test_a_virtual_function_is_known_although_it_was_seen_before_the_kernel_says_so(tmp_path: Path) -> None:
    place = add(tmp_path, "0000:41:00.4")
    bus = bus_of(tmp_path)
    (seen_early,) = bus.functions().values()
    (place / "physfn").symlink_to("../0000:41:00.0")
    (virtual,) = bus.functions().values()
    assert (seen_early.is_virtual, virtual.is_virtual, virtual.parent) == (False, True, "0000:41:00.0")


def test_what_sysfs_does_not_tell_is_left_at_none(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices/0000:53:00.0").mkdir(parents=True)
    for name, text in {"vendor": "0x10de", "class": "0x030200"}.items():
        (tmp_path / "sys/bus/pci/devices/0000:53:00.0" / name).write_text(text)
    (function,) = bus_of(tmp_path).functions().values()
    assert function == PciFunction(address="0000:53:00.0", vendor="0x10de", device="", pci_class="0x030200")


def test_a_machine_without_pci_has_no_functions(tmp_path: Path) -> None:
    assert bus_of(tmp_path).functions() == {}
    assert bus_of(tmp_path).drivers() == ()


def test_a_new_function_a_lost_one_and_another_driver_show(tmp_path: Path) -> None:
    bus = bus_of(tmp_path)
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
    bus = bus_of(tmp_path)
    place = add(tmp_path, "0000:53:00.0")
    assert list(bus.functions()) == ["0000:53:00.0"]
    entry = tmp_path / "sys/bus/pci/devices/0000:53:00.0"
    replacement = tmp_path / "sys/bus/pci/devices/new"
    replacement.symlink_to(os.readlink(entry))  # while the old one is there, so that its inode is another
    (place / "vendor").write_text("0x1002")
    os.replace(replacement, entry)
    assert bus.functions() == {}


@pytest.mark.parametrize(
    ("resource", "sizes"),
    [
        ("", []),
        (H100_RESOURCE, [16 << 20, 128 << 30, 32 << 20]),
        ("0x00000000f8000000 0x00000000f8ffffff 0x0000000000040200", []),
        ("0x0000000000000000 0x000000000000ffff 0x000000000014220c", [1 << 16]),
        ("not a line", []),
        ("0x0 0x0 0x14220c\n" * 6 + "0x0 0xffff 0x14220c", []),
    ],
    ids=["nothing", "h100", "32 bits", "64 bits", "nonsense", "the seventh is the ROM"],
)
def test_regions_of_64_bits_are_told_from_others(resource: str, sizes: list[int]) -> None:
    assert [one.size for one in parse_regions(resource) if one.is_64_bit] == sizes


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
    assert not any(map(is_vfio, ("nvidia", "nvidia-vgpu-vfio", "vfio-pci-snoop")))


def test_the_host_tells_whether_it_can_pass_devices_through(tmp_path: Path) -> None:
    node = tree(tmp_path)
    groups = tmp_path / "sys/kernel/iommu_groups"
    groups.mkdir(parents=True)
    assert read_vfio_host(node) == VfioHost(iommu=False, iommufd=False)
    (groups / "0").mkdir()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/iommu").touch()
    assert read_vfio_host(node) == VfioHost(iommu=True, iommufd=True)


def test_a_function_that_changes_hands_is_read_anew_in_what_can_change(tmp_path: Path) -> None:
    bus = bus_of(tmp_path)
    place = add(tmp_path, "0000:53:00.0", sriov_numvfs="0")
    (first,) = bus.functions().values()
    bind(tmp_path, "0000:53:00.0", "vfio-pci")
    (place / "sriov_numvfs").write_text("4\n")
    (place / "iommu_group").symlink_to("../../../../kernel/iommu_groups/46")
    (second,) = bus.functions().values()
    assert (first.driver, first.group, first.has_virtual) == ("nvidia", "", False)
    assert (second.driver, second.group, second.has_virtual) == ("vfio-pci", "46", True)
