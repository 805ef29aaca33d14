"""Kinds of GPU are taken together where they are alike, and guessed where NVML tells nothing. Pure."""

from __future__ import annotations

from msgspec.structs import fields, replace

from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.simulation.model import ComputeProfile, Model, PciModel
from pydra_nvidia.simulation.recording.host import Slot, read_regions
from pydra_nvidia.simulation.recording.record import find_differences
from pydra_nvidia.simulation.recording.scenario import guess, merge_groups, name_models, unify
from pydra_nvidia.simulation.scenario import GroupPart
from pydra_nvidia.simulation.scenario_file import bundled_model
from pydra_pci import PciFunction

H100 = bundled_model("h100-80gb", "test")
A100 = bundled_model("a100-40gb", "test")


def slot(device: str, **more: object) -> Slot:
    pci = PciModel(device=device, subsystem_device="0x9999", regions=(64, 32768))
    function = PciFunction(address="0000:01:00.0", vendor="0x10de", device=device, pci_class="0x030200", name="GB999")
    return Slot(function=function, bridges=(), pci=pci, **more)  # type: ignore[arg-type]


def test_what_varies_from_board_to_board_makes_no_other_kind() -> None:
    other = replace(H100, vbios="96.00.00.00.99", reserved=11, power_limit=350, gsp_firmware="")
    assert unify([H100, other], ()) == (H100, H100)


def test_what_is_answered_differently_makes_another_kind() -> None:
    other = replace(H100, unsupported=("nvmlDeviceGetPersistenceMode",))
    first, second = unify([H100, other], ())
    assert (first, second) == (H100, other)
    assert list(name_models((first, second, first))) == ["h100-80gb-hbm3", "h100-80gb-hbm3-2"]


def test_profiles_that_are_told_in_one_mode_only_come_from_another_gpu_of_the_product() -> None:
    assert A100.mig is not None
    off = replace(A100, mig=replace(A100.mig, profiles=(), memory_slices=8, tells_profiles_when_off=False))
    on = replace(A100, mig=replace(A100.mig, tells_profiles_when_off=False))
    assert unify([off, on], ()) == (on, on)
    assert unify([on, off], ()) == (on, on)


def test_or_from_what_is_known_of_the_product() -> None:
    assert A100.mig is not None
    off = replace(A100, mig=replace(A100.mig, profiles=(), tells_profiles_when_off=False))
    (found,) = unify([off], [H100, A100])
    assert found.mig is not None
    assert found.mig.profiles == A100.mig.profiles
    (unknown,) = unify([off], [H100])
    assert unknown.mig is not None
    assert unknown.mig.profiles == ()


def test_kinds_of_compute_instances_are_gathered_from_all_gpus() -> None:
    assert H100.mig is not None
    kind = ComputeProfile(enum=7, id=7, slices=1, most=1, multiprocessors=16, starts=(0,))
    first, second, *rest = H100.mig.profiles
    one = replace(H100, mig=replace(H100.mig, profiles=(replace(first, compute=(kind,)), second, *rest)))
    other = replace(H100, mig=replace(H100.mig, profiles=(first, replace(second, compute=(kind,)), *rest)))
    unified, same = unify([one, other], ())
    assert unified == same
    assert unified.mig is not None
    assert [bool(profile.compute) for profile in unified.mig.profiles[:3]] == [True, True, False]


def test_a_gpu_that_nvml_cannot_reach_is_of_a_kind_that_is_here() -> None:
    here = replace(H100, pci=replace(H100.pci, device="0x1111", subsystem_device="0x9999"))
    assert guess(slot("0x1111"), [A100, here], [H100]) is here


def test_or_of_one_that_is_known_with_the_ids_that_it_has() -> None:
    found = guess(slot("0x2330"), [A100], [H100])
    assert (found.name, found.pci.subsystem_device, found.pci.regions) == (H100.name, "0x9999", (64, 32768))
    assert found.mig == H100.mig


def test_or_of_one_that_nothing_is_known_of() -> None:
    found = guess(slot("0x2222"), [A100], [H100])
    assert (found.name, found.compute, found.memory, found.mig) == ("GB999", (0, 0), 32768, None)
    assert guess(slot("0x2222", model="NVIDIA X"), [], []).name == "NVIDIA X"


def test_groups_are_of_neighbours_that_are_alike() -> None:
    def group(address: str, **more: object) -> GroupPart:
        return GroupPart(model="x", addresses=(address,), numa=(0,), **more)  # type: ignore[arg-type]

    first, second, third, fourth = (f"0000:0{number}:00.0" for number in range(1, 5))
    merged = merge_groups([group(first), group(second), group(third, driver="vfio-pci"), group(fourth)])
    assert [(one.count, one.addresses) for one in merged] == [
        (2, (first, second)),
        (1, (third,)),
        (1, (fourth,)),
    ]


def test_a_value_that_one_gpu_lacks_keeps_it_apart() -> None:
    merged = merge_groups([GroupPart(model="x", iommu_groups=(1,)), GroupPart(model="x")])
    assert [one.count for one in merged] == [1, 1]


def test_regions_are_the_memory_of_the_base_registers() -> None:
    resource = """
0x00000000fa000000 0x00000000faffffff 0x0000000000040200
0x0000380000000000 0x000039ffffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x00003a0000000000 0x00003a0001ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000000000007000 0x000000000000707f 0x0000000000040101
0x00000000fb000000 0x00000000fb07ffff 0x0000000000046200
""".strip()
    assert read_regions(resource) == (16, 2097152, 32)
    assert read_regions("nonsense\n\n") == ()


def test_differences_are_told_by_their_place() -> None:
    function = PciFunction(address="a", vendor="0x10de", device="0x1", pci_class="0x030200", numa=1)
    one = Reading(functions={"a": function})
    other = Reading(functions={"a": replace(function, numa=0, root="pci0000:00")})
    assert find_differences(one, one) == ()
    assert find_differences(one, other) == (
        "functions.a.root: , reads back as pci0000:00",
        "functions.a.numa: 1, reads back as 0",
    )
    facts = len(fields(function))
    assert find_differences(one, Reading()) == (f"functions.a: {facts} of them, reads back as nothing",)


def test_a_model_of_another_product_is_left_alone() -> None:
    other: Model = replace(H100, name="NVIDIA H100 PCIe", reserved=1)
    assert unify([H100, other], ()) == (H100, other)
