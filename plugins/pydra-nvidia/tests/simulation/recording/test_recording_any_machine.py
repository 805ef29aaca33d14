"""Whatever machine a scenario describes, its recording reads the same."""

from __future__ import annotations

import asyncio
import datetime
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pydra_nvidia.nvml.library import use_library
from pydra_nvidia.settings import parse_settings
from pydra_nvidia.simulation.recording.read_only_guard import SCALAR
from pydra_nvidia.simulation.recording.record import record
from pydra_nvidia.simulation.recording.scenario import HANDLE
from pydra_nvidia.simulation.scenario_file import bundled_model, bundled_models
from pydra_nvidia.simulation.simulation import open_simulation

NEEDED = {"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo_v3"}
"""Without these nothing is known of a GPU."""

CODES = ("NOT_SUPPORTED", "UNKNOWN", "NO_PERMISSION", "NO_DATA", "INVALID_ARGUMENT", "TIMEOUT")
"""What one call may answer while the GPU is not lost."""

SMALL = st.integers(0, 3)
FLAGS = ("lost", "remapPending", "remapFailed", "retirementPending")
COUNTS = ("recovery", "eccUncorrectedVolatile", "eccCorrected", "remappedUncorrected")


@pytest.fixture(autouse=True)
def _library() -> Iterator[None]:
    before = pynvml.nvmlLib
    yield
    use_library(pynvml, before)


@st.composite
def instances(draw: st.DrawFn, model: str) -> list[dict[str, Any]]:
    """As many as fit, with any ids and compute instances."""
    mig = bundled_model(model, "test").mig
    assert mig is not None
    taken: set[int] = set()
    found: list[dict[str, Any]] = []
    ids = draw(st.permutations(range(14)))
    for profile in draw(st.permutations(mig.profiles)):
        start = draw(st.sampled_from(profile.starts))
        place = set(range(start, start + profile.size))
        if not place & taken and draw(st.booleans()):
            taken |= place
            compute: list[int | dict[str, Any]] = draw(
                st.sampled_from([[], [profile.slices], [1] * min(profile.slices, 4)])
            )
            found.append({"profile": profile.name, "start": start, "id": ids[len(found)], "compute": compute})
    return found


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Any]:
    model = draw(st.sampled_from(bundled_models()))
    group: dict[str, Any] = {
        "model": model,
        "count": draw(st.integers(1, 2)),
        "driver": draw(st.sampled_from(["nvidia", "nvidia", "nvidia", "vfio-pci", ""])),
        "persistence": draw(st.booleans()),
        "condition": {
            **{name: draw(st.booleans()) for name in draw(st.sets(st.sampled_from(FLAGS), max_size=2))},
            **{name: draw(SMALL) for name in draw(st.sets(st.sampled_from(COUNTS)))},
        },
    }
    if bundled_model(model, "test").mig is not None:
        group["mig"] = draw(st.booleans())
        group["migPending"] = draw(st.booleans())
        if group["mig"]:
            group["instances"] = draw(instances(model))
    return group


@st.composite
def machines(draw: st.DrawFn) -> dict[str, Any]:
    found = draw(st.lists(groups(), max_size=3))
    count = sum(group["count"] for group in found)
    refusals = st.fixed_dictionaries(
        {
            "op": st.sampled_from(sorted(SCALAR - NEEDED)),
            "device": st.integers(0, max(count - 1, 0)),
            "do": st.just("raise"),
            "code": st.sampled_from(CODES),
        }
    )
    silent = st.fixed_dictionaries(
        {
            "op": st.just(HANDLE),
            "device": st.integers(0, max(count - 1, 0)),
            "do": st.just("raise"),
            "code": st.sampled_from([*CODES, "RESET_REQUIRED"]),
        }
    )
    missing = st.sets(st.sampled_from(sorted(SCALAR - NEEDED)), max_size=3)
    return {
        "driver": {
            "state": draw(st.sampled_from(["loaded", "loaded", "loaded", "unloaded", "absent"])),
            "missing": sorted(draw(missing)),
            "privileged": draw(st.booleans()),
        },
        "host": {
            "iommu": draw(st.booleans()),
            "driverRoot": draw(st.sampled_from(["/", "/run/nvidia/driver", "/usr/local/nvidia"])),
            "cdiHook": draw(st.sampled_from(["", "/usr/bin/nvidia-cdi-hook"])),
        },
        "gpus": found,
        "faults": [*draw(st.lists(refusals, max_size=2)), *draw(st.lists(silent, max_size=1))] if count else [],
    }


SILENT = {"op": "nvmlDeviceGetMigMode", "device": 0, "do": "raise", "code": "NO_PERMISSION"}


@settings(max_examples=6, deadline=None)
@example({"gpus": [{"model": "a100-40gb"}], "faults": [SILENT]})
@given(machines())
def test_any_machine_reads_as_recorded(machine: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "scenario.json"
        file.write_text(json.dumps(machine))
        simulation = open_simulation(str(file), f"{place}/machine")
        recording = asyncio.run(
            record(
                parse_settings({}, simulation.settings),
                simulation.tree,
                simulation.load,
                salt=b"salt",
                day=datetime.date(2026, 11, 21),
            )
        )
        assert recording.differences == ()
