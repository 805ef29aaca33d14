"""The bundled kinds of GPU, against what is documented of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pydra_nvidia.nvml.mig_state import derive_name, read_offer
from pydra_nvidia.nvml.pynvml_library import Nvml
from pydra_nvidia.simulation.scenario_file import bundled_model

Simulate = Callable[..., Any]

PARTITIONED = ("a100-40gb", "a100-80gb", "a30", "h100-80gb", "h200-141gb", "b200-180gb", "gb200-186gb")
EIGHT = {
    19: (1, 7, (0, 1, 2, 3, 4, 5, 6)),
    20: (1, 1, (0, 1, 2, 3, 4, 5, 6)),
    15: (2, 4, (0, 2, 4, 6)),
    14: (2, 3, (0, 2, 4)),
    9: (4, 2, (0, 4)),
    5: (4, 1, (0,)),
    0: (8, 1, (0,)),
}
"""Hardware id of a profile: memory slices, most instances, where it can start. MIG user guide; hardware captures."""


@pytest.mark.parametrize("name", [name for name in PARTITIONED if name != "a30"])
def test_a_gpu_of_eight_memory_slices_has_the_documented_profiles(name: str) -> None:
    mig = bundled_model(name, "test").mig
    assert mig is not None
    assert {one.id: (one.size, one.most, one.starts) for one in mig.profiles} == EIGHT


@pytest.mark.parametrize("name", PARTITIONED)
def test_the_names_of_profiles_follow_from_their_memory(name: str) -> None:
    model = bundled_model(name, "test")
    assert model.mig is not None
    derived = [derive_name(one.enum, one.slices, one.memory, model.memory << 20) for one in model.mig.profiles]
    assert derived == [one.name for one in model.mig.profiles]


@pytest.mark.parametrize("name", PARTITIONED)
def test_no_set_of_instances_has_more_than_the_whole_gpu(name: str) -> None:
    mig = bundled_model(name, "test").mig
    assert mig is not None
    whole = next(one for one in mig.profiles if one.size == mig.memory_slices)
    for one in mig.profiles:
        assert one.most * one.size <= mig.memory_slices
        assert one.most * one.memory <= whole.memory
        assert one.most * one.slices <= mig.compute_slices
        assert one.most * one.multiprocessors <= whole.multiprocessors


@pytest.mark.parametrize(
    ("scenario", "index", "expected"),
    [
        ("dgx-a100", 7, {"1g.5gb": 4864, "1g.10gb": 9856, "3g.20gb": 19968, "7g.40gb": 40192}),
        ("a30", 2, {"1g.6gb": 5836, "2g.12gb": 11672, "4g.24gb": 23344}),
        ("hgx-h100", 0, {"1g.10gb": 9984, "1g.10gb+me": 9984, "2g.20gb": 20096, "7g.80gb": 81152}),
        ("hgx-h200", 0, {"1g.18gb": 16384, "3g.71gb": 71424, "7g.141gb": 143360}),
        ("gb200", 0, {"1g.23gb": 22912, "1g.47gb": 46336, "7g.186gb": 188416}),
    ],
)
def test_nvml_reports_the_profiles(simulate: Simulate, scenario: str, index: int, expected: dict[str, int]) -> None:
    nvml: Any = simulate(scenario).init()
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    offer = read_offer(Nvml(nvml), handle, nvml.nvmlDeviceGetMemoryInfo(handle).total, subject="")
    told = {profile.name: profile.memory_mib for profile in offer.profiles}
    assert expected.items() <= told.items()
