"""A machine that is new as its scenario says: ids, UUIDs and places of instances, and GPUs that are not well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pydra_nvidia.simulation.scenario import ScenarioError
from pydra_nvidia.simulation.scenario_file import parse_scenario

Simulate = Callable[..., Any]
LOST, RECOVERY = 15, 230


def test_instances_have_the_ids_uuids_and_places_that_are_given(simulate: Simulate) -> None:
    uuid = "MIG-11111111-2222-3333-4444-555555555555"
    preset = {
        "profile": "3g.40gb",
        "start": 4,
        "id": 9,
        "compute": [{"slices": 1, "id": 2, "start": 2, "uuid": uuid}, 1],
    }
    group = {"model": "h100-80gb", "mig": True, "instances": [preset, {"profile": "1g.10gb", "start": 0}]}
    (gpu,) = simulate({"gpus": [group]}).machine.read().state.gpus.values()
    first, second = gpu.instances
    assert (first.id, second.id) == (9, 1)
    assert [(one.id, one.start, one.slices) for one in first.compute] == [(2, 2, 1), (1, 3, 1)]
    assert first.compute[0].uuid == uuid
    assert first.compute[1].uuid.startswith("MIG-")


def test_an_id_that_is_given_later_is_not_made_up_before(simulate: Simulate) -> None:
    instances = [{"profile": "1g.10gb", "start": 0}, {"profile": "1g.10gb", "start": 1, "id": 1}]
    rig = simulate({"gpus": [{"model": "h100-80gb", "mig": True, "instances": instances}]})
    (gpu,) = rig.machine.read().state.gpus.values()
    assert [one.id for one in gpu.instances] == [2, 1]


@pytest.mark.parametrize(
    ("instances", "says"),
    [
        ("[{profile: 1g.10gb, start: 0, id: 1}, {profile: 1g.10gb, start: 1, id: 1}]", "two have the id 1"),
        ("[{profile: 7g.80gb, start: 0, compute: [5]}]", "has no compute instance of 5 slices, but of [1, 2, 3, 4, 7]"),
    ],
)
def test_instances_that_cannot_be_are_refused(instances: str, says: str) -> None:
    text = f"gpus: [{{model: h100-80gb, mig: true, instances: {instances}}}]"
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text.encode(), "s")
    assert says in str(caught.value)


def test_instances_with_uuids_are_of_one_gpu_only() -> None:
    compute = "[{slices: 1, uuid: MIG-1}]"
    instances = f"[{{profile: 1g.10gb, start: 0, compute: {compute}}}]"
    text = f"gpus: [{{model: h100-80gb, count: 2, mig: true, instances: {instances}}}]"
    with pytest.raises(ScenarioError, match="count must be 1"):
        parse_scenario(text.encode(), "s")


def test_a_new_machine_can_have_a_sick_gpu_and_another_driver(simulate: Simulate) -> None:
    rig = simulate(
        {
            "gpus": [
                {"model": "a100-40gb", "condition": {"lost": True}},
                {
                    "model": "h100-80gb",
                    "mig": False,
                    "migPending": True,
                    "condition": {"recovery": 1, "eccUncorrectedVolatile": 7},
                },
                {"model": "a100-40gb", "driver": "vfio-pci"},
            ]
        }
    )
    nvml: Any = rig.init()
    assert nvml.nvmlDeviceGetCount() == 2
    assert rig.code(nvml.nvmlDeviceGetHandleByIndex, 0) == LOST
    sick = nvml.nvmlDeviceGetHandleByIndex(1)
    assert nvml.nvmlDeviceGetMigMode(sick) == [0, 1]
    assert nvml.nvmlDeviceGetFieldValues(sick, [RECOVERY])[0].value.uiVal == 1
    assert nvml.nvmlDeviceGetTotalEccErrors(sick, 1, 0) == 7
