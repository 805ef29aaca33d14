"""The whole reading, over simulated machines: NVML below the unmodified pynvml and a tree of files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pydra_nvidia.hardware_types import Architecture, Driver, Placement
from pydra_nvidia.host.device_nodes import find_partition_nodes
from pydra_nvidia.host.driver_root import find_driver_root
from pydra_pci import VfioHost

Open = Callable[[str], Any]

ONE = "gpus: [{model: h100-80gb}]\n"
TWO = "gpus: [{model: h100-80gb, count: 2, minors: [1, 0]}]\n"


@pytest.mark.parametrize(
    ("scenario", "models", "offers"),
    [
        ("hgx-h100", ["NVIDIA H100 80GB HBM3"] * 8, [25] * 8),
        ("hgx-h200", ["NVIDIA H200"] * 8, [25] * 8),
        ("hgx-b200", ["NVIDIA B200"] * 8, [25] * 8),
        ("gb200", ["NVIDIA GB200"] * 4, [25] * 4),
        ("dgx-a100", ["NVIDIA A100-SXM4-40GB"] * 8, [0] * 6 + [25] * 2),
        ("t4", ["Tesla T4"] * 4, [None] * 4),
    ],
)
async def test_each_bundled_machine_is_read(
    node: Open, scenario: str, models: list[str], offers: list[int | None]
) -> None:
    """`offers` are the places for partitions of each GPU; an A100 tells them in MIG mode only."""
    reading = await node(scenario).hardware.read()
    assert [gpu.name for gpu in reading.gpus] == models
    assert reading.lost == ()
    assert [gpu.pci for gpu in reading.gpus] == list(reading.functions) == sorted(reading.functions)
    assert len({gpu.uuid for gpu in reading.gpus}) == len({gpu.minor for gpu in reading.gpus}) == len(models)
    assert [gpu.index for gpu in reading.gpus] == list(range(len(models)))
    assert [gpu.mig and sum(len(one.placements) for one in gpu.mig.profiles) for gpu in reading.gpus] == offers
    assert all(gpu.condition.monitored for gpu in reading.gpus)
    for function in reading.functions.values():
        assert function.driver == "nvidia"
        assert function.root.startswith("pci")
        assert function.addressable >= 1 << 28


async def test_an_h100_is_read_with_all_its_figures(node: Open) -> None:
    reading = await node("hgx-h100").hardware.read()
    gpu = reading.gpus[0]
    assert reading.driver == Driver(version="580.105.08", cuda=13000)
    assert (gpu.index, gpu.minor, gpu.module, gpu.pci) == (0, 2, 3, "0000:1b:00.0")
    assert (gpu.architecture, gpu.compute, gpu.memory) == (Architecture.HOPPER, (9, 0), 81559 * 2**20)
    assert (gpu.addressing, gpu.virtualization, gpu.persistence) == (1, 0, True)
    assert gpu.links is not None
    assert (gpu.links.total, gpu.links.up, gpu.links.switched, gpu.links.peers) == (18, 18, True, ())
    assert gpu.fabric is None  # its cluster has no UUID
    assert gpu.mig is not None
    assert (gpu.mig.enabled, gpu.mig.pending, gpu.mig.resetless, gpu.mig.instances) == (False, False, True, ())
    profiles = {profile.name: profile for profile in gpu.mig.profiles}
    assert {name: profile.id for name, profile in profiles.items()} == {
        "1g.10gb": 19, "1g.10gb+me": 20, "1g.20gb": 15, "2g.20gb": 14, "3g.40gb": 9, "4g.40gb": 5, "7g.80gb": 0,
    }  # fmt: skip
    assert profiles["3g.40gb"].placements == (Placement(0, 4), Placement(4, 4))
    assert (profiles["7g.80gb"].slices, profiles["7g.80gb"].multiprocessors, profiles["7g.80gb"].most) == (7, 132, 1)
    assert (reading.functions[gpu.pci].numa, reading.functions[gpu.pci].root) == (0, "pci0000:15")
    assert reading.vfio == VfioHost(iommu=True, iommufd=True)


async def test_a_mixed_node_has_partitions_that_exist_with_all_that_is_in_them(node: Open) -> None:
    reading = await node("mixed").hardware.read()
    a100 = next(gpu for gpu in reading.gpus if gpu.minor == 3)
    assert a100.mig is not None
    assert (a100.mig.enabled, a100.mig.resetless) == (True, False)
    assert len(a100.mig.profiles) == 7
    four, three = sorted(a100.mig.instances, key=lambda one: one.placement)
    assert (four.profile, four.placement, [one.slices for one in four.compute]) == (5, Placement(0, 4), [4])
    assert (three.profile, three.placement, [one.slices for one in three.compute]) == (9, Placement(4, 4), [1, 2])
    assert len({one.uuid for instance in a100.mig.instances for one in instance.compute}) == 3
    assert [gpu.mig is None for gpu in reading.gpus] == [False, False, False, True, True, True]
    t4 = reading.gpus[-1]
    assert (t4.links, t4.fabric, t4.condition.remap_pending) == (None, None, None)
    assert (t4.module, t4.addressing, t4.condition.recovery) == (6, 1, 0)
    assert t4.condition.retirement_pending is False


async def test_a_gb200_is_in_its_racks_fabric(node: Open) -> None:
    reading = await node("gb200").hardware.read()
    fabrics = {gpu.fabric for gpu in reading.gpus}
    (fabric,) = fabrics
    assert fabric is not None
    assert fabric.healthy is True
    assert [gpu.addressing for gpu in reading.gpus] == [2] * 4
    assert reading.gpus[0].pci == "0008:01:00.0"


async def test_what_does_not_change_is_not_asked_for_again(node: Open) -> None:
    machine = node("hgx-h100")
    first = await machine.hardware.read()
    once = machine.calls
    assert await machine.hardware.read() == first
    twice = machine.calls
    assert await machine.hardware.reread([first.gpus[0].minor]) == first
    assert machine.calls - twice < 5 < twice - once < once / 2


async def test_a_driver_without_newer_functions_leaves_their_fields_out(node: Open) -> None:
    missing = ("nvmlDeviceGetAddressingMode", "nvmlDeviceGetGpuFabricInfo*", "nvmlDeviceGetModuleId", "nvmlDevice*V")
    machine = node(f"driver: {{version: 535.54.03, cuda: 12020, missing: [{', '.join(missing)}]}}\n{ONE}")
    (gpu,) = (await machine.hardware.read()).gpus
    assert (gpu.addressing, gpu.fabric, gpu.module) == (None, None, None)
    assert gpu.mig is not None
    assert {profile.name for profile in gpu.mig.profiles} >= {"1g.10gb", "1g.10gb+me", "3g.40gb"}  # derived


async def test_passthrough_names_functions_and_their_drivers_from_the_hosts_lists(node: Open) -> None:
    machine = node(
        "settings: {vfio: true}\n"
        'host:\n  files: {/usr/share/misc/pci.ids: "10de  NVIDIA\\n\\t2330  GH100 [H100 SXM5 80GB]\\n"}\n'
        "  vfioVariants: {'v000010DEd00002330sv*sd*bc*sc*i*': nvgrace_gpu_vfio_pci}\n" + ONE
    )
    (function,) = (await machine.hardware.read()).functions.values()
    assert function.name == "GH100 [H100 SXM5 80GB]"
    assert function.vfio_driver == "nvgrace_gpu_vfio_pci"


async def test_samples_tell_what_is_used_and_what_has_failed(node: Open) -> None:
    machine = node("mixed")
    reading = await machine.hardware.read()
    machine.inject.count(5, ecc_corrected=7, pcie_replays=3, nvlink_replays=2)
    samples = await machine.samples(reading)
    found = {(one.name, one.device, *sorted(one.labels.items())): one for one in samples}
    assert len(found) == len(samples)
    assert found["temperature_celsius", "gpu-5"].value > 0
    assert found["memory_temperature_celsius", "gpu-5"].value > 0
    assert ("memory_temperature_celsius", "gpu-0") not in found  # 0 where the memory has no sensor
    assert found["power_limit_watts", "gpu-5"].value == 700
    assert found["ecc_errors_total", "gpu-5", ("counter", "aggregate"), ("error", "corrected")].value == 7
    assert found["pcie_replays_total", "gpu-5"].value == 3
    assert found["nvlink_errors_total", "gpu-5", ("kind", "replay")].value == 2
    assert found["clock_hertz", "gpu-5", ("clock", "memory")].value > 1e9
    assert ("utilization_ratio", "gpu-5") in found
    assert ("utilization_ratio", "gpu-3") not in found  # in MIG mode nobody tells
    assert found["memory_free_bytes", "gpu-3-mig-4g40gb-5-0"].value > 2**34
    assert ("retired_pages_total", "gpu-0", ("cause", "double_bit")) in found
    assert ("remapped_rows_total", "gpu-0", ("error", "corrected")) not in found
    for one in samples:
        assert one.help.endswith(".")
    assert {one.device.split("-mig-")[0] for one in samples} == {f"gpu-{gpu.minor}" for gpu in reading.gpus}


async def test_a_lost_gpu_has_no_samples_and_the_others_have(node: Open) -> None:
    machine = node(TWO)
    reading = await machine.hardware.read()
    machine.inject.lose(1)
    assert {one.device for one in await machine.samples(reading)} == {"gpu-0"}


async def test_many_readings_at_once_are_all_whole(node: Open) -> None:
    machine = node("hgx-h100")
    first = await machine.hardware.read()
    readings = await asyncio.gather(
        *(machine.hardware.reread([minor]) for minor in range(8)),
        *(machine.hardware.read() for _ in range(3)),
    )
    assert set(map(id, readings)) != {id(first)}
    assert all(reading == first for reading in readings)
    assert machine.session.generation == 1


async def test_the_nodes_of_a_partition_and_the_drivers_files_are_found(node: Open) -> None:
    machine = node("host: {driverRoot: /run/nvidia/driver}\n" + ONE)
    machine.inject.set_mig_mode(0, True, force=True)
    machine.inject.create_mig(0, "2g.20gb", 2)
    (gpu,) = (await machine.hardware.read()).gpus
    assert gpu.mig is not None
    (instance,) = gpu.mig.instances
    nodes = find_partition_nodes(machine.simulation.tree, gpu.minor, instance.id, instance.compute[0].id)
    assert [one.minor for one in nodes] == [3 + 9 * instance.id, 4 + 9 * instance.id]
    root = find_driver_root(machine.simulation.tree, machine.settings)
    assert root.host_path.endswith("/run/nvidia/driver")
    assert root.version == "580.105.08"
    assert root.resolve(f"{root.library_dir}/libcuda.so.1") == f"{root.library_dir}/libcuda.so.580.105.08"


async def test_the_signature_is_the_same_while_nothing_happens(node: Open) -> None:
    machine = node("mixed")
    before = machine.hardware.signature()
    await machine.hardware.read()
    assert machine.hardware.signature() == before
    installed = Path(machine.simulation.tree.here("/usr/lib64"))
    os.makedirs(installed, exist_ok=True)
    (installed / "libnvidia-ml.so.1").write_bytes(b"another driver was installed")
    assert machine.hardware.signature() != before
