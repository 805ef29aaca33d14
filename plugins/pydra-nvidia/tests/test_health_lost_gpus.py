"""Which GPUs are lost, and which were only taken away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_values import gpu
from pydra_nvidia.hardware_types import Gpu, LostGpu, Reading
from pydra_nvidia.health.lost_gpus import find_lost
from pydra_nvidia.nvml.errors import Code, NvmlError
from pydra_pci import PciFunction


def functions(**drivers: str) -> dict[str, PciFunction]:
    return {
        f"0000:{bus[1:]}:00.0": PciFunction(
            address=f"0000:{bus[1:]}:00.0", vendor="0x10de", device="0x2330", pci_class="0x030200", driver=driver
        )
        for bus, driver in drivers.items()
    }


A, B, C = gpu(0, "01"), gpu(1, "02"), gpu(2, "03")
BOUND = functions(_01="nvidia", _02="nvidia", _03="nvidia")
LOST = NvmlError(Code.GPU_IS_LOST, "nvmlDeviceGetHandleByIndex", "GPU 1")


def before(*gpus: Gpu, lost: tuple[LostGpu, ...] = ()) -> Reading:
    return Reading(gpus=gpus, lost=lost)


@pytest.mark.parametrize(
    ("failures", "answering", "last", "seen", "expected"),
    [
        ({}, (A, B, C), None, BOUND, []),
        ({}, (A, B), None, BOUND, [(-1, 28, None)]),
        ({1: LOST}, (A,), None, BOUND, [(1, 15, None)]),
        ({1: LOST}, (A, C), None, BOUND, [(1, 15, None)]),
        ({1: LOST}, (A, C), before(A, B, C), BOUND, [(1, 15, B)]),
        ({1: LOST}, (A,), before(A, C), functions(_01="nvidia", _03="nvidia"), [(1, 15, C)]),
        ({0: LOST, 2: LOST}, (B,), before(A, B, C), BOUND, [(0, 15, A), (2, 15, C)]),
        ({}, (A, C), before(A, B, C), BOUND, [(1, 28, B)]),
        ({}, (A, C), before(A, lost=(LostGpu(index=1, code=15, message="", last=B),)), BOUND, [(1, 28, B)]),
        ({}, (A, C), before(A, B, C), functions(_01="nvidia", _02="vfio-pci", _03="nvidia"), []),
        ({}, (A, C), before(A, B, C), functions(_01="nvidia", _03="nvidia"), []),
        ({}, (A, C, gpu(1, "new", B.pci)), before(A, B), BOUND, []),
    ],
    ids=[
        "none",
        "never counted",
        "one of two that were never seen",
        "never seen",
        "seen before",
        "the index moved",
        "two",
        "no longer counted",
        "still not counted",
        "passed through",
        "unplugged",
        "replaced",
    ],
)
def test_a_lost_gpu_is_distinguished_from_one_that_was_taken_away(
    failures: dict[int, NvmlError],
    answering: tuple[Gpu, ...],
    last: Reading | None,
    seen: dict[str, PciFunction],
    expected: list[tuple[int, int, Gpu | None]],
) -> None:
    found = find_lost(failures, answering, last, seen)
    assert [(one.index, one.code, one.last) for one in found] == expected
    assert all(one.message for one in found)
    assert all(one.pci == one.last.pci for one in found if one.last)


def test_a_lost_gpu_that_was_never_seen_is_known_by_its_address_where_that_is_certain() -> None:
    (certain,) = find_lost({1: LOST}, (A, C), None, BOUND)
    assert certain.pci == B.pci
    (uncertain,) = find_lost({1: LOST}, (A,), None, BOUND)
    assert uncertain.pci == ""
    (uncounted,) = find_lost({}, (A, C), None, BOUND)
    assert uncounted.message == f"NVML does not count the GPU at {B.pci}, although it is bound to the NVIDIA driver"


@given(st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)))
def test_no_gpu_is_lost_twice_and_no_failure_is_forgotten(known: set[int], failing: set[int]) -> None:
    everything = {index: gpu(index, f"{index:02x}") for index in range(8)}
    last = before(*(everything[index] for index in sorted(known)))
    answering = [everything[index] for index in everything if index not in failing]
    bound = functions(**{f"_{index:02x}": "nvidia" for index in everything})
    found = find_lost(dict.fromkeys(failing, LOST), answering, last, bound)
    assert sorted(one.index for one in found) == sorted(failing)
    lasts = [one.last.uuid for one in found if one.last]
    assert sorted(lasts) == sorted(everything[index].uuid for index in known & failing)
