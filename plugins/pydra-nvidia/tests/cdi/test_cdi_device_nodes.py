"""Device nodes as they are: real ones on this machine, files that stand for them, and what only looks like one."""

from __future__ import annotations

import stat
from typing import Any

import pytest

from pydra_nvidia.host.device_nodes import DevRoots, Node, find_group
from pydra_pci import Roots, Tree


def test_a_real_device_node_is_itself() -> None:
    assert DevRoots(Tree(Roots()), ("/",)).find("/dev/null") == Node(path="/dev/null", host="/dev/null")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        pytest.param(0o666, 0, id="for everybody"),
        pytest.param(0o660, 44, id="for the group"),
        pytest.param(0o664, 44, id="for everybody to read"),
        pytest.param(0o600, 0, id="for the owner"),
    ],
)
def test_a_process_needs_the_group_of_a_node_that_is_open_to_it_alone(mode: int, expected: int) -> None:
    assert find_group(stat.S_IFCHR | mode, 44) == expected


@pytest.mark.parametrize(
    ("path", "numbers"),
    [
        ("/dev/nvidia12", (195, 12)),
        ("/dev/nvidiactl", (195, 255)),
        ("/dev/nvidia-modeset", (195, 254)),
        ("/dev/nvidia-uvm", (511, 0)),
        ("/dev/nvidia-uvm-tools", (511, 1)),
        ("/dev/dri/card1", (226, 1)),
        ("/dev/vfio/11", (236, 0)),
        ("/dev/vfio/vfio", (10, 196)),
        ("/dev/iommu", None),
    ],
)
def test_what_stands_for_a_node_has_its_numbers_from_the_kernel(
    node: Any, path: str, numbers: tuple[int, int] | None
) -> None:
    for name, text in (("drm/card1", b"226:1"), ("vfio/11", b"236:0"), ("misc/vfio", b"10:196"), ("misc/iommu", b"")):
        node.put(f"/sys/class/{name}/dev", text)
    node.devices(path.removeprefix("/dev/"))
    assert DevRoots(node.tree, ("/",)).find(path) == Node(path=path, host=path, numbers=numbers)


def test_without_the_driver_in_the_kernel_there_are_no_numbers(node: Any) -> None:
    node.put("/proc/devices", b"Character devices:\n  1 mem\n")
    node.devices("nvidiactl")
    found = DevRoots(node.tree, ("/",)).find("/dev/nvidiactl")
    assert found == Node(path="/dev/nvidiactl", host="/dev/nvidiactl")


def test_the_first_root_that_has_a_node_counts(node: Any) -> None:
    dev = DevRoots(node.tree, ("/run/nvidia/driver", "/"))
    node.devices("nvidia0", "dri/card0")
    node.devices("nvidia0", root="/run/nvidia/driver")
    assert [found.host for path in ("/dev/nvidia0", "/dev/dri/card0") if (found := dev.find(path))] == [
        "/run/nvidia/driver/dev/nvidia0",
        "/dev/dri/card0",
    ]


def test_a_link_is_no_node(node: Any) -> None:
    node.link("/dev/nvidia0", "null")
    assert DevRoots(node.tree, ("/",)).find("/dev/nvidia0") is None


def test_only_cards_and_render_nodes_are_for_graphics(node: Any) -> None:
    for name in ("card1", "renderD128", "controlD64", "card1-DP-1"):
        node.put(f"/sys/bus/pci/devices/0000:65:00.0/drm/{name}/dev", b"")
        node.devices(f"dri/{name}")
    node.put("/sys/bus/pci/devices/0000:65:00.0/drm/card7/dev", b"")
    found = DevRoots(node.tree, ("/",)).find_drm("0000:65:00.0")
    assert [one.path for one in found] == ["/dev/dri/card1", "/dev/dri/renderD128"]
