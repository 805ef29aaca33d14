"""Binding a function for passthrough and giving it back, over a simulated machine whose kernel answers the writes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pydra import ClaimError, LeftBehind
from pydra_pci import DeviceBusy, KernelRefused

WRITES = 3
"""Override, unbind, bind."""


async def apply(node: Any, step: Any = None, *ours: str, **options: Any) -> None:
    await node.apply(step or node.step(), *ours, **options)


async def undo(node: Any, step: Any = None) -> None:
    await node.undo(step or node.step())


async def test_both_may_be_repeated_and_the_second_time_writes_nothing(node: Any) -> None:
    before = node.picture()
    await apply(node)
    bound = node.picture()
    node.tree.writes.clear()
    await apply(node)
    assert (node.picture(), node.tree.writes) == (bound, [])
    await undo(node)
    node.tree.writes.clear()
    await undo(node)
    assert (node.picture(), node.tree.writes) == (before, [])


async def test_undoing_what_was_never_done_changes_nothing(node: Any) -> None:
    before = node.picture()
    await undo(node)
    assert (node.picture(), node.tree.writes) == (before, [])


async def test_a_function_without_a_driver_gets_none_back(node: Any) -> None:
    node.tree.write(node.tree.sys("bus/pci/drivers/nvidia/unbind"), node.GPU)
    before = node.picture()
    await apply(node, node.step(before=""))
    assert node.driver() == "vfio-pci"
    await undo(node, node.step(before=""))
    assert node.picture() == before


async def test_what_the_admin_bound_stays_bound(node: Any) -> None:
    await apply(node)
    bound, step = node.picture(), node.step(before="vfio-pci")
    node.tree.writes.clear()
    await apply(node, step)
    await undo(node, step)
    assert (node.picture(), node.tree.writes) == (bound, [])


async def test_what_the_admin_took_back_meanwhile_is_told(node: Any) -> None:
    with pytest.raises(ClaimError, match="was bound to vfio-pci and is now bound to nvidia; try again"):
        await apply(node, node.step(before="vfio-pci"))


async def test_a_variant_is_loaded_and_bound_as_the_kernel_spells_it(node: Any) -> None:
    step = node.step(target="nvgrace_gpu_vfio_pci")
    before = node.picture()
    await apply(node, step, load=lambda module: node.kernel.load(module.replace("_", "-")))
    assert (node.driver(), node.override()) == ("nvgrace-gpu-vfio-pci", "nvgrace-gpu-vfio-pci")
    await undo(node, step)
    assert node.picture() == before


@pytest.mark.parametrize("number", range(1, WRITES + 1))
async def test_a_refused_write_leaves_everything_as_it_was(node: Any, number: int) -> None:
    if number == WRITES:
        node.refuse_writes(number, number + 1)  # probing would find the driver too
    else:
        node.refuse_writes(number)
    before = node.picture()
    with pytest.raises(KernelRefused, match="Input/output error") as caught:
        await apply(node)
    assert node.tree.writes[number - 1][0] in str(caught.value)
    assert node.picture() == before


async def test_a_refused_write_after_a_kill_does_not_lose_the_override_of_before(node: Any) -> None:
    step = msgspec.structs.replace(node.step(), override="nvidia")
    node.set(node.GPU, "driver_override", "vfio-pci")  # by the process that was killed
    node.refuse_writes(2)
    with pytest.raises(LeftBehind):
        await apply(node, step)
    await undo(node, step)
    assert (node.driver(), node.override()) == ("nvidia", "nvidia")


async def test_probing_helps_where_binding_is_refused(node: Any) -> None:
    node.refuse_writes(WRITES)
    await apply(node)
    assert node.driver() == "vfio-pci"


@pytest.mark.parametrize("number", [2, WRITES], ids=["taken", "bound"])
async def test_what_another_program_did_at_the_same_time_is_no_refusal(node: Any, number: int) -> None:
    def refuse(written: int) -> None:
        if written == number:
            raise OSError(errno.ENODEV, "No such device")

    node.tree.after = refuse
    await apply(node)
    assert (node.driver(), len(node.tree.writes)) == ("vfio-pci", WRITES)


async def test_what_could_not_be_given_back_is_left_for_the_undoing(node: Any) -> None:
    before = node.picture()
    node.refuse_writes(*range(WRITES, WRITES + 9))
    with pytest.raises(LeftBehind, match="and giving it back failed"):
        await apply(node)
    assert node.driver() == ""
    node.refuse_writes()
    await undo(node)
    assert node.picture() == before


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_an_undoing_that_fails_succeeds_the_next_time(node: Any, number: int) -> None:
    before = node.picture()
    await apply(node)
    node.refuse_writes(number, *([number + 1] if number == WRITES else []))
    with pytest.raises(KernelRefused):
        await undo(node)
    node.refuse_writes()
    await undo(node)
    assert node.picture() == before


async def test_a_node_that_does_not_appear_is_told_and_the_gpu_given_back(node: Any) -> None:
    before = node.picture()

    def lose_nodes(number: int) -> None:
        if number == WRITES:
            (node.root / "host/dev/vfio/17").unlink()
            (node.root / "host/dev/vfio/devices/vfio0").unlink()

    node.tree.after = lose_nodes
    with pytest.raises(KernelRefused, match=r"no /dev/vfio/17 or /dev/vfio/devices/vfio0 .*PYDRA_HOST_ROOT"):
        await apply(node)
    assert node.picture() == before


@pytest.mark.parametrize("opened", ["/dev/vfio/17", "/dev/vfio/devices/vfio0"])
async def test_a_function_that_a_guest_still_has_is_not_taken_from_it(node: Any, opened: str) -> None:
    before = node.picture()
    await apply(node)
    bound = node.picture()
    node.run(33, "qemu-system-x86", "/dev/kvm", opened)
    node.tree.writes.clear()
    with pytest.raises(DeviceBusy, match=r"function 0000:53:00.0 is still in use .* qemu-system-x86 \(pid 33\)"):
        await undo(node)
    assert (node.picture(), node.tree.writes) == (bound, [])
    node.stop(33)
    await undo(node)
    assert node.picture() == before


@pytest.mark.parametrize("other", ["nouveau", "pci-stub"])
async def test_undoing_leaves_a_function_to_whoever_took_it(node: Any, other: str) -> None:
    await apply(node)
    node.kernel.load(other)
    node.tree.write(node.tree.sys("bus/pci/drivers/vfio-pci/unbind"), node.GPU)
    node.tree.write(node.tree.sys(f"bus/pci/devices/{node.GPU}/driver_override"), other)
    node.tree.write(node.tree.sys(f"bus/pci/drivers/{other}/bind"), node.GPU)
    taken = node.picture()
    await undo(node)
    assert node.picture() == taken


async def test_a_function_that_was_unplugged_has_nothing_to_undo(node: Any) -> None:
    await apply(node)
    (node.root / f"sys/bus/pci/devices/{node.GPU}").unlink()
    await undo(node)


async def test_a_driver_that_was_unloaded_takes_the_function_when_it_is_back(node: Any) -> None:
    await apply(node)
    node.tree.write(node.tree.sys("bus/pci/drivers/nvidia/unbind"), node.OTHER)
    folder = node.root / "sys/bus/pci/drivers/nvidia"
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    await undo(node)
    assert (node.driver(), node.override()) == ("", "(null)")
    node.kernel.load("nvidia")
    assert node.driver() == "nvidia"


async def test_functions_of_the_group_that_the_host_uses_are_told(node: Any) -> None:
    node.plug(node.AUDIO, pci_class="0x040300", driver="snd_hda_intel")
    node.plug("0000:50:01.0", pci_class="0x060400", driver="")
    before = node.picture()
    with pytest.raises(ClaimError, match=r"shares IOMMU group 17 with 0000:53:00.1 \(snd_hda_intel\), so"):
        await apply(node)
    assert (node.picture(), node.tree.writes) == (before, [])


async def test_a_function_of_the_group_without_a_driver_is_no_stranger(node: Any) -> None:
    node.plug(node.AUDIO, pci_class="0x040300")
    await apply(node)
    assert node.driver() == "vfio-pci"


async def test_two_gpus_of_one_group_go_together(node: Any) -> None:
    third = "0000:53:00.4"
    node.plug(third, driver="nvidia")
    steps = [node.step(), node.step(address=third)]
    with pytest.raises(ClaimError, match=rf"{third} \(nvidia\)"):
        await apply(node)
    for step in steps:
        await apply(node, step, *(one.address for one in steps))
    assert (node.driver(), node.driver(third)) == ("vfio-pci", "vfio-pci")


async def test_without_an_iommu_nothing_is_touched(make_node: Callable[..., Any]) -> None:
    node = make_node(iommu=False)
    before = node.picture()
    with pytest.raises(ClaimError, match="in no IOMMU group"):
        await apply(node)
    assert (node.picture(), node.tree.writes) == (before, [])


async def test_virtual_functions_that_came_since_the_plan_are_told(node: Any) -> None:
    node.set(node.GPU, "sriov_numvfs", "2")
    with pytest.raises(ClaimError, match=r"2 virtual functions of 0000:53:00.0 exist"):
        await apply(node)


async def test_a_gpu_whose_driver_changed_since_the_plan_is_left_alone(node: Any) -> None:
    with pytest.raises(ClaimError, match=r"bound to nvidia, no longer to no driver; try again"):
        await apply(node, node.step(before=""))
    assert node.tree.writes == []


@pytest.mark.parametrize("override", ["nvidia", "some-driver", "vfio-pci"])
async def test_an_override_of_the_admin_is_there_again(node: Any, override: str) -> None:
    node.set(node.GPU, "driver_override", override)
    before, step = node.picture(), msgspec.structs.replace(node.step(), override=override)
    await apply(node, step)
    assert node.driver() == "vfio-pci"
    await undo(node, step)
    assert node.driver() == "nvidia"
    assert node.picture() == before
