"""Names of the machine are replaced: alike within a recording, different between recordings, with no way back."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pydra_nvidia.hardware_types import Gpu, LostGpu, Reading
from pydra_nvidia.simulation.boards import find_boards
from pydra_nvidia.simulation.recording.anonymise import Names
from pydra_nvidia.simulation.scenario_file import ScenarioFile, bundled_scenarios

Simulate = Callable[..., Any]
ORIGINALS = st.text(min_size=1)


@given(ORIGINALS, ORIGINALS, st.binary(min_size=1), st.binary(min_size=1))
def test_a_name_follows_from_the_original_and_the_salt_alone(one: str, other: str, salt: bytes, pepper: bytes) -> None:
    names = Names(salt)
    for kind in ("gpu", "partition", "serial", "cluster"):
        name: Callable[[str], str] = getattr(names, kind)
        assert name(one) == name(one)
        assert (name(one) == name(other)) == (one == other)
        if salt.rstrip(b"\0") != pepper.rstrip(b"\0"):  # a key is filled up with zeros
            assert name(one) != getattr(Names(pepper), kind)(one)


@given(ORIGINALS, st.binary(min_size=1))
def test_names_have_the_form_of_what_they_stand_for(original: str, salt: bytes) -> None:
    names = Names(salt)
    assert uuid.UUID(names.gpu(original).removeprefix("GPU-")).version == 4
    assert uuid.UUID(names.partition(original).removeprefix("MIG-")).version == 4
    assert uuid.UUID(names.cluster(original))
    assert re.fullmatch(r"\d{13}", names.serial(original))
    assert names.gpu(original)[4:] != names.partition(original)[4:], "one does not tell the other"


def test_what_is_not_told_stays_untold() -> None:
    names = Names(b"salt")
    assert names.serial("") == ""
    assert names.cluster(str(uuid.UUID(int=0))) == str(uuid.UUID(int=0))


def test_the_message_of_a_lost_gpu_has_its_new_name() -> None:
    gpu = Gpu(index=0, minor=0, uuid="GPU-1", name="X", brand=0, architecture=9, compute=(9, 0), pci="", memory=None)
    lost = LostGpu(index=0, code=15, message="nvmlDeviceGetUUID for GPU-1 failed", last=gpu)
    (found,) = Names(b"salt").reading(Reading(lost=(lost,))).lost
    assert found.message == f"nvmlDeviceGetUUID for {Names(b'salt').gpu('GPU-1')} failed"
    assert found.last is None


async def test_nothing_of_the_machine_is_in_its_recording(simulate: Simulate) -> None:
    cluster = "0e1d2c3b-4a59-4687-9706-152433425160"
    fabric = {"state": 3, "clique": 7, "cluster": cluster}
    presets = [{"profile": "1g.10gb", "start": 0, "compute": [{"slices": 1, "uuid": "MIG-aaaa"}]}]
    scenario = {
        "seed": "acme",
        "gpus": [
            {"model": "h100-80gb", "count": 2, "fabric": fabric},
            {"model": "h100-80gb", "mig": True, "instances": presets},
        ],
    }
    rig = simulate(scenario)
    reading = await rig.read()
    rig.inject.lose(1)
    text = (await rig.record()).text
    originals = [name for gpu in reading.gpus for name in (gpu.uuid, gpu.serial)]
    for original in (*originals, cluster, "MIG-aaaa", "acme", "simulated", rig.simulation.machine.path):
        assert original.removeprefix("GPU-") not in text
    machine = rig.simulation.tree.read(rig.simulation.tree.proc("sys/kernel/random/boot_id"))
    assert machine
    assert machine not in text


async def test_another_salt_makes_another_recording_of_the_same_machine(simulate: Simulate) -> None:
    rig = simulate("t4")
    first, again, other = await rig.record(b"one"), await rig.record(b"one"), await rig.record(b"two")
    assert first.text == again.text
    assert not set(_uuids(first.scenario)) & set(_uuids(other.scenario))
    assert first.scenario.models == other.scenario.models


async def test_partitions_of_one_gpu_stay_apart(simulate: Simulate) -> None:
    scenario = (await simulate("dgx-a100").record()).scenario
    made = [ci.uuid for group in scenario.gpus for one in group.instances for ci in one.compute or ()]
    assert len(made) == len(set(made)) == 10


def _uuids(scenario: Any) -> list[str]:
    return [one for group in scenario.gpus for one in group.uuids]


def test_no_recorded_name_is_one_of_a_bundled_machine() -> None:
    """The seeds are different, so two simulated machines can stand beside each other."""
    names = Names(b"salt")
    bundled = {board.uuid for name in bundled_scenarios() for board in find_boards(ScenarioFile(name).read())}
    assert not bundled & {names.gpu(one) for one in bundled}
