"""What the kernel driver shows in /proc: its version, majors, the capabilities of partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydra import DeviceNode
from pydra_nvidia.host.device_nodes import (
    CapabilityMissing,
    count_imex_channels,
    find_imex_channels,
    find_imex_management,
    find_partition_nodes,
    read_majors,
)
from pydra_nvidia.host.kernel_driver import list_instances, read_module_version
from pydra_pci import Roots, Tree

DEVICES = (
    "Character devices:\n  1 mem\n195 nvidia-frontend\n237 nvidia-caps\n\nBlock devices:\n259 blkext\n237 nvidia-caps\n"
)


def node(tmp_path: Path) -> Tree:
    return Tree(Roots(host=str(tmp_path), sys=str(tmp_path / "sys"), proc=str(tmp_path / "proc")))


def write(tmp_path: Path, path: str, text: str) -> None:
    file = tmp_path / "proc" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023", "535.54.03"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.105.08  Release Build  (root@x)\n"
            "GCC version:  gcc version 113.3.0 (Ubuntu 11.3.0-1ubuntu1~22.04)",
            "580.105.08",
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54  Tue", "550.54"),
        ("", ""),
        ("GCC version:  gcc 11.3.0", ""),
    ],
    ids=["closed", "open", "two parts", "empty", "no NVRM"],
)
def test_the_modules_version_is_read_in_both_wordings(tmp_path: Path, text: str, version: str) -> None:
    write(tmp_path, "driver/nvidia/version", text)
    assert read_module_version(node(tmp_path)) == version


def test_without_the_module_there_is_no_version(tmp_path: Path) -> None:
    assert read_module_version(node(tmp_path)) == ""


def test_majors_are_those_of_character_devices(tmp_path: Path) -> None:
    write(tmp_path, "devices", DEVICES)
    assert read_majors(node(tmp_path)) == {"mem": 1, "nvidia-frontend": 195, "nvidia-caps": 237}
    assert read_majors(node(tmp_path / "elsewhere")) == {}


def test_a_partition_has_one_node_for_each_of_its_instances(tmp_path: Path) -> None:
    write(tmp_path, "devices", DEVICES)
    place = "driver/nvidia/capabilities/gpu2/mig/gi9"
    write(tmp_path, f"{place}/access", "DeviceFileMinor: 354\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
    write(tmp_path, f"{place}/ci0/access", "DeviceFileMinor: 355\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    assert find_partition_nodes(node(tmp_path), 2, 9, 0) == (
        DeviceNode(path="/dev/nvidia-caps/nvidia-cap354", type="c", major=237, minor=354, file_mode=0o400),
        DeviceNode(path="/dev/nvidia-caps/nvidia-cap355", type="c", major=237, minor=355, file_mode=0o444),
    )
    with pytest.raises(CapabilityMissing, match=r"gi9/ci1/access does not name"):
        find_partition_nodes(node(tmp_path), 2, 9, 1)


@pytest.mark.parametrize("text", ["", "DeviceFileMinor: 354\n", "DeviceFileMinor: x\nDeviceFileMode: 256\n", "garbage"])
def test_a_capability_file_that_says_too_little_is_reported(tmp_path: Path, text: str) -> None:
    write(tmp_path, "devices", DEVICES)
    write(tmp_path, "driver/nvidia/capabilities/gpu0/mig/gi1/access", text)
    with pytest.raises(CapabilityMissing, match="gi1/access does not name the device node"):
        find_partition_nodes(node(tmp_path), 0, 1, 0)


def test_without_the_major_the_driver_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CapabilityMissing, match="has no nvidia-caps: the NVIDIA kernel driver is not loaded"):
        find_partition_nodes(node(tmp_path), 0, 1, 0)


def test_the_instances_that_exist_are_listed_for_comparison(tmp_path: Path) -> None:
    tree = node(tmp_path)
    assert list_instances(tree) == ()
    root = "driver/nvidia/capabilities"
    write(tmp_path, f"{root}/mig/config", "")
    write(tmp_path, f"{root}/gpu0/mig/gi1/access", "")
    before = list_instances(tree)
    write(tmp_path, f"{root}/gpu0/mig/gi1/ci0/access", "")
    assert list_instances(tree) != before
    assert list_instances(tree) == (("gpu0", (("gi1", ("access", "ci0")),)),)


IMEX_DEVICES = (
    "Character devices:\n195 nvidia\n236 nvidia-caps-imex-channels\n237 nvidia-caps\n\nBlock devices:\n  8 sd\n"
)


def test_imex_channels_are_as_many_as_the_drivers_parameter_says(tmp_path: Path) -> None:
    tree = node(tmp_path)
    write(tmp_path, "driver/nvidia/params", "EnableMSI: 1\nImexChannelCount: 3\nCreateImexChannel0: 0\n")
    assert count_imex_channels(tree) == 0
    with pytest.raises(CapabilityMissing, match=r"found 0 .*, needed: 1"):
        find_imex_channels(tree, 1)
    write(tmp_path, "devices", IMEX_DEVICES)
    assert count_imex_channels(tree) == 3
    assert find_imex_channels(tree, 3)[2] == DeviceNode(
        path="/dev/nvidia-caps-imex-channels/channel2", type="c", major=236, minor=2, file_mode=0o666
    )
    with pytest.raises(CapabilityMissing, match=r"found 3 .*, needed: 4"):
        find_imex_channels(tree, 4)


def test_the_management_of_imex_has_a_node_where_the_driver_has_it(tmp_path: Path) -> None:
    write(tmp_path, "devices", IMEX_DEVICES)
    with pytest.raises(CapabilityMissing, match="fabric-imex-mgmt does not name the device node of IMEX"):
        find_imex_management(node(tmp_path))
    write(tmp_path, "driver/nvidia/capabilities/fabric-imex-mgmt", "DeviceFileMinor: 4323\nDeviceFileMode: 256\n")
    assert find_imex_management(node(tmp_path)).path == "/dev/nvidia-caps/nvidia-cap4323"
