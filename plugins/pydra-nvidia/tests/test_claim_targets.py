"""From the devices of a claim to hardware."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_values import find_profile, make_instance
from gpu_values import gpu as h100
from pydra import AllocatedDevice, PydraError, TerminalError, UnknownDevice
from pydra_nvidia.claim_targets import Partition, Passthrough, WholeGpu, find_targets
from pydra_nvidia.hardware_types import Gpu, LostGpu, Mig, Placement, Reading
from pydra_pci import PciFunction

SMALL = find_profile("1g.10gb")
INSTANCE = replace(make_instance(SMALL, 3), id=9)


def gpu(minor: int, mig: Mig | None) -> Gpu:
    return h100(minor, str(minor), f"0000:{minor:02x}:00.0", index=7 - minor, mig=mig)


def function(address: str, parent: str = "") -> PciFunction:
    return PciFunction(address=address, vendor="0x10de", device="0x2330", pci_class="0x030200", parent=parent)


HOPPER = Mig(enabled=True, pending=True, resetless=True, profiles=(SMALL,), instances=(INSTANCE,))
READING = Reading(
    gpus=(
        gpu(0, HOPPER),
        gpu(1, None),
        gpu(2, Mig(enabled=False, pending=False, resetless=False)),
        gpu(3, Mig(enabled=False, pending=True, resetless=False)),
        gpu(4, Mig(enabled=True, pending=True, resetless=True, instances=(INSTANCE,))),
    ),
    lost=(LostGpu(index=2, code=15, message="it has fallen off the bus", last=gpu(6, None)),),
    functions={
        address: function(address, "0000:01:00.0" if address.endswith("1") else "")
        for address in ("10000:00:00.0", "0000:01:00.0", "0000:01:00.1", "0000:02:00.0")
    },
)


def find(name: str) -> WholeGpu | Partition | Passthrough:
    (target,) = find_targets([AllocatedDevice(request="r", pool="p", device=name)], READING)
    return target


def test_a_gpu_is_found_by_its_minor_number_and_not_by_its_index() -> None:
    target = find("gpu-1")
    assert isinstance(target, WholeGpu)
    assert target.gpu.uuid == "GPU-1"


def test_a_partition_that_exists_brings_its_instance() -> None:
    target = find("gpu-0-mig-1g10gb-19-3")
    assert isinstance(target, Partition)
    assert (target.placement, target.profile, target.instance, target.uuid) == (
        Placement(3, 1),
        SMALL,
        INSTANCE,
        "MIG-1-0",
    )


def test_a_partition_that_does_not_exist_has_its_place() -> None:
    target = find("gpu-0-mig-1g10gb-19-6")
    assert isinstance(target, Partition)
    assert (target.placement, target.instance, target.uuid) == (Placement(6, 1), None, "")


def test_a_partition_whose_profile_is_not_reported_is_known_by_its_instance() -> None:
    target = find("gpu-4-mig-1g10gb-19-3")
    assert isinstance(target, Partition)
    assert (target.profile, target.placement, target.uuid) == (None, Placement(3, 1), "MIG-1-0")


def test_functions_are_counted_by_address_without_virtual_ones() -> None:
    found = [find(f"gpu-vfio-{index}") for index in range(3)]
    assert [one.function.address for one in found if isinstance(one, Passthrough)] == [
        "0000:01:00.0",
        "0000:02:00.0",
        "10000:00:00.0",
    ]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("gpu-5", UnknownDevice, "minor numbers of its GPUs are 0, 1, 2, 3, 4"),
        ("gpu-6", UnknownDevice, "fallen off the bus"),
        ("gpu-6-mig-1g10gb-19-0", UnknownDevice, "fallen off the bus"),
        ("gpu-00", UnknownDevice, "is not the name of an NVIDIA device"),
        ("gpu-vfio-3", UnknownDevice, "it has 3 NVIDIA functions"),
        ("gpu-1-mig-1g10gb-19-0", UnknownDevice, "cannot be partitioned"),
        ("gpu-0-mig-1g10gb-19-7", UnknownDevice, r"offers: 1g\.10gb \(19\)"),
        ("gpu-0-mig-7g80gb-0-0", UnknownDevice, r"offers: 1g\.10gb \(19\)"),
        ("gpu-0-mig-1g18gb-19-3", UnknownDevice, "does not exist"),
        ("gpu-4-mig-1g10gb-19-0", UnknownDevice, "offers: none"),
        ("gpu-2-mig-1g10gb-19-0", TerminalError, r"is off; switch it on and reset the GPU: nvidia-smi -i GPU-2 -mig 1"),
        ("gpu-3-mig-1g10gb-19-0", TerminalError, "is on but pending; reset the GPU"),
    ],
)
def test_a_device_that_cannot_be_had_is_refused_with_what_there_is(
    name: str, error: type[PydraError], words: str
) -> None:
    with pytest.raises(error, match=words):
        find(name)
