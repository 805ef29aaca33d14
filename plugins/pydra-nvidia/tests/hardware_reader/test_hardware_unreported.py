"""Places of partitions that NVML does not report, as to others than root: the GPU stays, with what exists on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.health.diagnosis import Diagnosis
from pydra_nvidia.inventory.build import build_inventory

Open = Callable[[str], Any]

PLACES = "nvmlDeviceGetGpuInstancePossiblePlacements"
GPUS = """
gpus:
- {model: h100-80gb, minors: [0]}
- {model: h100-80gb, minors: [1], mig: true, instances: [{profile: 1g.10gb, start: 2}]}
"""


def machine_of(node: Open, code: str, *, dynamic: bool) -> Any:
    fault = f"faults: [{{op: {PLACES}_v2, do: raise, code: {code}}}]"
    return node(f"settings: {{dynamic_mig: {str(dynamic).lower()}}}\n{fault}\n{GPUS}")


def published(machine: Any, reading: Reading) -> list[str]:
    inventory = build_inventory(reading, settings=machine.settings, owned=(), diagnosis=Diagnosis())
    return [device.name for device in inventory.devices]


@pytest.mark.parametrize("code", ["NO_PERMISSION", "INVALID_ARGUMENT"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
async def test_a_gpu_stays_with_its_partitions_and_others_are_not_offered(
    node: Open, code: str, dynamic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    machine = machine_of(node, code, dynamic=dynamic)
    reading = await machine.hardware.read()
    assert (len(reading.gpus), reading.lost) == (2, ())
    assert {gpu.condition.silence for gpu in reading.gpus} == {""}
    assert published(machine, reading) == ["gpu-0", "gpu-1-mig-1g10gb-19-2"]
    await machine.hardware.read()
    messages = [one.getMessage() for one in caplog.records if one.name.startswith("pydra_nvidia")]
    if not dynamic:
        assert messages == []
        return
    (said,) = messages
    assert said.startswith("no partitions are made for claims on gpu-0, gpu-1, since their places are not known: ")
    assert f"{PLACES} for GPU-" in said
    assert f"failed with NVML_ERROR_{code}" in said


async def test_places_that_are_reported_later_are_offered_then(node: Open, tmp_path: Path) -> None:
    machine = machine_of(node, "INVALID_ARGUMENT", dynamic=True)
    assert len(published(machine, await machine.hardware.read())) == 2
    scenario = tmp_path / "scenario.yaml"
    draft = tmp_path / "draft"
    draft.write_text("".join(line for line in scenario.read_text().splitlines(True) if not line.startswith("faults")))
    draft.replace(scenario)
    names = published(machine, await machine.hardware.read())
    assert {"gpu-0", "gpu-0-mig-1g10gb-19-2", "gpu-1-mig-3g40gb-9-4", "gpu-1-mig-1g10gb-19-2"} < set(names)
