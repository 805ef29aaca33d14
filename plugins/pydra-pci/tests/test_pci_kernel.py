"""The simulated kernel: what it does for a write, and what it refuses as a real one does."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from pydra_pci.simulation.kernel import Listener


def write(node: Any, path: str, text: str) -> None:
    node.tree.write(node.tree.sys(f"bus/pci/{path}"), text)


def hand_over(node: Any, address: str, driver: str) -> None:
    write(node, f"devices/{address}/driver_override", driver)
    if node.driver(address):
        write(node, f"devices/{address}/driver/unbind", address)
    write(node, f"drivers/{driver}/bind", address)


def names(node: Any, path: str) -> list[str]:
    folder = node.root / path
    return sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []


def test_a_function_that_is_bound_for_passthrough_has_links_a_group_node_and_one_of_its_own(node: Any) -> None:
    hand_over(node, node.GPU, "vfio-pci")
    assert node.driver() == "vfio-pci"
    assert names(node, "sys/bus/pci/drivers/nvidia")[:1] == [node.OTHER]
    assert names(node, "sys/bus/pci/drivers/vfio-pci")[:1] == [node.GPU]
    assert names(node, f"sys/bus/pci/devices/{node.GPU}/vfio-dev") == ["vfio0"]
    assert names(node, "host/dev/vfio") == ["17", "devices", "vfio"]
    assert names(node, "host/dev/vfio/devices") == ["vfio0"]
    assert (node.root / "sys/class/vfio/17/dev").read_text() == "242:17\n"
    assert (node.root / "sys/class/vfio-dev/vfio0/dev").read_text() == "243:0\n"


def test_all_of_it_goes_when_the_function_goes_back(node: Any) -> None:
    before = node.picture()
    hand_over(node, node.GPU, "vfio-pci")
    write(node, f"devices/{node.GPU}/driver/unbind", node.GPU)
    write(node, f"devices/{node.GPU}/driver_override", "\n")
    write(node, "drivers_probe", node.GPU)
    assert node.picture() == before


def test_the_group_node_stays_while_another_function_of_the_group_is_bound(node: Any) -> None:
    node.plug(node.AUDIO, pci_class="0x040300")
    hand_over(node, node.GPU, "vfio-pci")
    hand_over(node, node.AUDIO, "vfio-pci")
    assert names(node, "host/dev/vfio/devices") == ["vfio0", "vfio1"]
    write(node, "drivers/vfio-pci/unbind", node.GPU)
    assert names(node, "host/dev/vfio") == ["17", "devices", "vfio"]
    assert names(node, "host/dev/vfio/devices") == ["vfio1"]


def test_without_iommufd_there_is_the_group_node_only(make_node: Callable[..., Any]) -> None:
    node = make_node(iommufd=False)
    hand_over(node, node.GPU, "vfio-pci")
    assert names(node, "host/dev/vfio") == ["17", "vfio"]


def test_a_driver_that_is_loaded_takes_what_waits_for_it(node: Any) -> None:
    write(node, f"devices/{node.GPU}/driver_override", "nvgrace_gpu_vfio_pci")
    write(node, f"devices/{node.GPU}/driver/unbind", node.GPU)
    node.kernel.load("nvgrace_gpu_vfio_pci")
    assert node.driver() == "nvgrace_gpu_vfio_pci"


def test_a_function_without_a_driver_is_found_by_the_one_whose_ids_fit(node: Any) -> None:
    node.plug(node.AUDIO, pci_class="0x040300")
    write(node, "drivers_probe", node.AUDIO)
    assert node.driver(node.AUDIO) == "snd_hda_intel"


@pytest.mark.parametrize(
    ("path", "text", "answer"),
    [
        ("drivers/vfio-pci/bind", "0000:53:00.0", errno.ENODEV),
        ("drivers/nvidia/bind", "0000:53:00.0", errno.EBUSY),
        ("drivers/nvidia/bind", "0000:99:00.0", errno.ENODEV),
        ("drivers/vfio-pci/unbind", "0000:53:00.0", errno.ENODEV),
        ("drivers_probe", "0000:99:00.0", errno.EINVAL),
        ("devices/0000:53:00.0/driver_override", "x" * 4096, errno.EINVAL),
        ("drivers/nouveau/bind", "0000:53:00.0", errno.ENOENT),
        ("devices/0000:99:00.0/driver_override", "vfio-pci", errno.ENOENT),
    ],
)
def test_what_a_kernel_refuses_is_refused(node: Any, path: str, text: str, answer: int) -> None:
    with pytest.raises(OSError) as refused:  # noqa: PT011 - the errno says which
        write(node, path, text)
    assert refused.value.errno == answer
    assert node.driver() == "nvidia"


@pytest.mark.parametrize(("iommu", "virtual", "answer"), [(False, "0", errno.EINVAL), (True, "4", errno.EBUSY)])
def test_passthrough_needs_a_group_and_no_virtual_functions(
    make_node: Callable[..., Any], iommu: bool, virtual: str, answer: int
) -> None:
    node = make_node(iommu=iommu)
    node.set(node.GPU, "sriov_numvfs", virtual)
    with pytest.raises(OSError) as refused:  # noqa: PT011 - the errno says which
        hand_over(node, node.GPU, "vfio-pci")
    assert refused.value.errno == answer
    assert node.driver() == ""


def test_an_override_keeps_every_other_driver_away(node: Any) -> None:
    write(node, f"devices/{node.GPU}/driver_override", "vfio-pci")
    write(node, f"devices/{node.GPU}/driver/unbind", node.GPU)
    with pytest.raises(OSError, match="not for this driver"):
        write(node, "drivers/nvidia/bind", node.GPU)
    write(node, "drivers_probe", node.GPU)
    assert node.driver() == "vfio-pci"


class User(Listener):
    """Somebody has every device open."""

    def users(self, _address: str) -> tuple[int, ...]:
        return (4711,)


def test_a_function_in_use_is_not_taken_from_its_driver(make_node: Callable[..., Any]) -> None:
    node = make_node(listener=User())
    with pytest.raises(OSError, match="in use"):
        write(node, f"devices/{node.GPU}/driver/unbind", node.GPU)
