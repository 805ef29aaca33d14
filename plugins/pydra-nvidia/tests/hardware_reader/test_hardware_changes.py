"""What changes while it is read: GPUs that are lost, drivers that come and go, partitions that others make."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pydra_nvidia.hardware_reader import HardwareReader
from pydra_nvidia.hardware_types import Driver, Placement, Reading
from pydra_nvidia.host.driver_root import DriverMissing
from pydra_nvidia.nvml.errors import Code, NvmlError
from pydra_nvidia.waiting import Busy

Open = Callable[[str], Any]

ONE = "host: {onlyGpus: true}\ngpus: [{model: h100-80gb}]\n"
TWO = "host: {onlyGpus: true}\ngpus: [{model: h100-80gb, count: 2, minors: [1, 0]}]\n"


async def test_a_lost_gpu_costs_the_others_nothing_and_is_remembered(node: Open) -> None:
    machine = node(TWO)
    before = await machine.hardware.read()
    machine.inject.lose(1)
    reading = await machine.hardware.read()
    assert [gpu.minor for gpu in reading.gpus] == [0]
    (lost,) = reading.lost
    assert (lost.index, lost.code, lost.last) == (0, Code.GPU_IS_LOST, before.gpus[0])
    assert "GPU_IS_LOST" in lost.message
    machine.inject.reset(1, force=True)
    assert await machine.hardware.reread([1]) == before


async def test_a_gpu_that_falls_off_the_bus_in_mid_reading_is_lost_alone(node: Open) -> None:
    machine = node(TWO + "faults: [{op: nvmlDeviceGetNvLinkState, device: 1, do: lost, after: 3}]\n")
    reading = await machine.hardware.read()
    assert [gpu.minor for gpu in reading.gpus] == [0]
    assert [one.code for one in reading.lost] == [Code.GPU_IS_LOST]


async def test_a_driver_that_comes_up_late_is_awaited_in_words(node: Open) -> None:
    machine = node(f"driver: {{state: unloaded}}\n{ONE}")
    before = machine.hardware.signature()
    with pytest.raises(DriverMissing, match=r"the NVIDIA driver is not loaded on this node yet: 0000:.*no driver"):
        await machine.hardware.read()
    machine.inject.load_driver(force=True)
    assert machine.hardware.signature() != before
    assert len((await machine.hardware.read()).gpus) == 1


async def test_a_driver_that_is_replaced_is_taken_up(node: Open) -> None:
    machine = node(ONE)
    first = await machine.hardware.read()
    before = machine.hardware.signature()
    machine.inject.load_driver("590.1.2", force=True)
    assert machine.hardware.signature() != before
    reading = await machine.hardware.read()
    assert reading == replace(first, driver=Driver(version="590.1.2", cuda=13000))


async def test_a_driver_that_was_reloaded_is_found_again_at_once(node: Open) -> None:
    machine = node(ONE)
    first = await machine.hardware.read()
    machine.inject.load_driver(force=True)
    assert await machine.hardware.reread([first.gpus[0].minor]) == first
    machine.inject.load_driver(force=True)
    assert await machine.hardware.read() == first


async def test_a_driver_that_is_gone_is_an_error_of_the_whole_node(node: Open) -> None:
    machine = node(ONE)
    await machine.hardware.read()
    machine.inject.unload_driver(force=True)
    with pytest.raises((DriverMissing, NvmlError)):
        await machine.hardware.read()


async def test_a_node_without_nvidia_hardware_needs_no_driver(node: Open) -> None:
    machine = node("driver: {state: absent}\ngpus: []\n")
    reading = await machine.hardware.read()
    assert (reading.driver, reading.gpus, reading.functions) == (None, (), {})
    assert machine.session.generation == 0


async def test_the_position_of_a_gpu_that_is_bound_for_a_guest_is_known_after_a_restart(
    node: Open, tmp_path: Path
) -> None:
    machine = node(f"settings: {{vfio: true}}\n{TWO}")

    async def read() -> Reading:
        baseboard = str(tmp_path / "baseboard.json")
        reader = HardwareReader(
            machine.session, machine.simulation.tree, settings=machine.settings, baseboard=baseboard
        )
        return await reader.read()

    before = await read()
    assert before.modules == {gpu.pci: gpu.module for gpu in before.gpus}
    assert len(before.modules) == 2
    for address in before.functions:
        machine.bind(address, "vfio-pci")
    after = await read()
    assert (after.gpus, after.modules) == ((), before.modules)


async def test_the_position_of_a_gpu_is_known_although_the_reading_that_found_it_came_to_nothing(
    node: Open, tmp_path: Path
) -> None:
    machine = node("settings: {vfio: true}\ngpus: [{model: h100-80gb, count: 2}]\n")
    functions = [*(await machine.hardware.read()).functions]
    driver = ""

    def list_groups() -> tuple[()]:
        if driver == "nvidia":
            raise Busy("Fabric Manager is busy with something else")
        return ()

    partitions: Any = SimpleNamespace(list_groups=list_groups)
    baseboard = str(tmp_path / "baseboard.json")
    reader = HardwareReader(
        machine.session, machine.simulation.tree, settings=machine.settings, baseboard=baseboard, partitions=partitions
    )
    found = []
    for driver in ("vfio-pci", "nvidia", "vfio-pci"):
        machine.session.close()
        for address in functions:
            machine.bind(address, driver)
        with contextlib.suppress(Busy):
            found.append(len((await reader.read()).modules))
    assert found == [0, 2]


async def test_a_gpu_whose_driver_changes_while_it_is_read_is_read_with_the_new_one(node: Open) -> None:
    machine = node(f"settings: {{vfio: true}}\n{TWO}")
    one = (await machine.hardware.read()).gpus[0].pci
    machine.session.close()
    machine.while_opening = lambda: machine.bind_unused(one, "vfio-pci")
    reading = await machine.hardware.read()
    assert (len(reading.gpus), reading.functions[one].driver) == (1, "vfio-pci")


async def test_a_gpu_on_vfio_is_a_function_only_and_needs_no_driver_when_all_are(node: Open) -> None:
    machine = node(TWO)
    first = await machine.hardware.read()
    one, other = first.functions
    before = machine.hardware.signature()
    machine.bind(one, "vfio-pci")
    assert machine.hardware.signature() != before
    reading = await machine.hardware.reread([first.gpus[1].minor])
    assert [gpu.pci for gpu in reading.gpus] == [other]
    assert (reading.lost, reading.functions[one].driver) == ((), "vfio-pci")
    machine.bind(other, "vfio-pci")
    reading = await machine.hardware.read()
    assert (reading.driver, reading.gpus, list(reading.functions)) == (None, (), [one, other])
    machine.bind(one, "nvidia")
    machine.bind(other, "nvidia")
    reading = await machine.hardware.read()
    assert reading.functions == first.functions
    assert reading.gpus == tuple(replace(gpu, persistence=False) for gpu in first.gpus)  # as every new driver has it


async def test_a_function_without_a_driver_beside_others_is_not_waited_for(node: Open) -> None:
    machine = node(TWO)
    first = await machine.hardware.read()
    machine.bind(first.gpus[0].pci, "")
    reading = await machine.hardware.read()
    assert [gpu.uuid for gpu in reading.gpus] == [first.gpus[1].uuid]
    assert (reading.lost, reading.functions[first.gpus[0].pci].driver) == ((), "")
    machine.bind(first.gpus[1].pci, "")
    with pytest.raises(DriverMissing, match=r"is loaded but has none of this node's GPUs: .* waiting until one"):
        await machine.hardware.read()


async def test_gpus_that_are_plugged_and_unplugged_are_noticed(node: Open) -> None:
    machine = node(TWO)
    first = await machine.hardware.read()
    before = machine.hardware.signature()
    machine.inject.unplug(0)
    between = machine.hardware.signature()
    assert between != before
    reading = await machine.hardware.read()
    assert [gpu.minor for gpu in reading.gpus] == [1]
    assert reading.lost == ()
    machine.inject.plug(0)
    assert machine.hardware.signature() != between
    assert await machine.hardware.read() == first


async def test_partitions_that_somebody_else_makes_are_noticed_and_read(node: Open) -> None:
    machine = node(TWO)
    first = await machine.hardware.read()
    uuid = next(gpu.uuid for gpu in first.gpus if gpu.minor == 0)
    machine.inject.set_mig_mode(0, True, force=True)
    signatures = [machine.hardware.signature()]
    made = machine.inject.create_mig(0, "3g.40gb", 4)
    signatures.append(machine.hardware.signature())
    reading = await machine.hardware.reread([0])
    gpu = reading.gpu(uuid)
    assert gpu is not None
    assert gpu.mig is not None
    (instance,) = gpu.mig.instances
    assert (instance.placement, instance.profile, instance.compute[0].uuid) == (Placement(4, 4), 9, made)
    assert [one for one in reading.gpus if one.uuid != uuid] == [one for one in first.gpus if one.uuid != uuid]
    machine.inject.destroy_mig(0, 4)
    signatures.append(machine.hardware.signature())
    assert signatures[0] != signatures[1] != signatures[2]
    gpu = (await machine.hardware.reread([uuid])).gpu(uuid)
    assert gpu is not None
    assert gpu.mig is not None
    assert (gpu.mig.enabled, gpu.mig.instances) == (True, ())


async def test_an_ampere_gpu_tells_its_profiles_once_it_is_in_mig_mode(node: Open) -> None:
    machine = node("gpus: [{model: a100-40gb}]\n")
    (gpu,) = (await machine.hardware.read()).gpus
    assert gpu.mig is not None
    assert (gpu.mig.resetless, gpu.mig.profiles) == (False, ())
    machine.inject.set_mig_mode(0, True, force=True)
    (gpu,) = (await machine.hardware.reread([gpu.uuid])).gpus
    assert gpu.mig is not None
    assert {profile.name for profile in gpu.mig.profiles} >= {"1g.5gb", "7g.40gb"}


async def test_a_gpu_that_is_lost_while_it_is_reread_is_lost_alone(node: Open) -> None:
    machine = node(TWO)
    first = await machine.hardware.read()
    machine.inject.lose(first.gpus[0].minor)
    reading = await machine.hardware.reread([gpu.minor for gpu in first.gpus])
    assert [gpu.uuid for gpu in reading.gpus] == [first.gpus[1].uuid]
    assert [(one.last, one.code) for one in reading.lost] == [(first.gpus[0], Code.GPU_IS_LOST)]


async def test_where_links_end_is_still_known_while_they_rest_in_mig_mode(node: Open) -> None:
    machine = node(ONE)
    await machine.hardware.read()
    machine.inject.set_mig_mode(0, True, force=True)
    (gpu,) = (await machine.hardware.read()).gpus
    assert gpu.links is not None
    assert (gpu.links.total, gpu.links.up, gpu.links.switched) == (18, 0, True)


async def test_links_that_go_down_and_what_is_wrong_are_read_again(node: Open) -> None:
    machine = node(ONE)
    await machine.hardware.read()
    machine.inject.links_down(0, [3, 4])
    machine.inject.count(0, ecc_uncorrected_volatile=2, remap_pending=True)
    machine.inject.recovery_action(0, 4)
    (gpu,) = (await machine.hardware.read()).gpus
    assert gpu.links is not None
    assert (gpu.links.total, gpu.links.up, gpu.links.switched) == (18, 16, True)
    assert (gpu.condition.recovery, gpu.condition.ecc_uncorrected, gpu.condition.remap_pending) == (4, 2, True)


async def test_a_gpu_that_fails_once_is_asked_again(node: Open) -> None:
    machine = node(TWO + "faults: [{op: nvmlDeviceGetMigMode, device: 0, do: raise, code: TIMEOUT, count: 1}]\n")
    reading = await machine.hardware.read()
    assert [gpu.condition.silence for gpu in reading.gpus] == ["", ""]
    assert reading.lost == ()


async def test_a_gpu_that_does_not_answer_for_a_while_is_not_lost(node: Open) -> None:
    fault = "{op: nvmlDeviceGetMigMode, device: 0, do: raise, code: TIMEOUT, after: 1, count: 2}"
    machine = node(f"{TWO}faults: [{fault}]\n")
    before = await machine.hardware.read()
    during = await machine.hardware.read()
    after = await machine.hardware.read()
    assert (before, during.lost) == (after, ())
    (silent,) = [gpu for gpu in during.gpus if gpu.condition.silence]
    assert silent.minor == 0
    assert "NVML_ERROR_TIMEOUT (10)" in silent.condition.silence


@pytest.mark.parametrize(("state", "awaited"), [("absent", False), ("unloaded", True)])
async def test_a_node_for_passthrough_waits_for_a_driver_only_if_one_is_installed(
    node: Open, state: str, awaited: bool
) -> None:
    machine = node(f"settings: {{vfio: true}}\ndriver: {{state: {state}}}\n{ONE}")
    if awaited:
        with pytest.raises(DriverMissing):
            await machine.hardware.read()
    else:
        machine.hardware.signature()
        reading = await machine.hardware.read()
        assert (len(reading.functions), reading.gpus) == (1, ())
        assert await machine.hardware.reread([]) == reading


async def test_a_session_that_was_opened_before_the_first_reading_is_not_believed_to_count_all(node: Open) -> None:
    machine = node(TWO)
    machine.inject.unplug(0)
    assert await machine.session.run(lambda nvml: nvml.call("nvmlDeviceGetCount")) == 1
    machine.inject.plug(0)
    assert len((await machine.hardware.read()).gpus) == 2
