"""What containers get without the hook, with a function passed through, and as clients of MPS."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from pydra import AllocatedDevice, ClaimError, ContainerEdits
from pydra.cdi.presence import read_present
from pydra.cdi.spec import build_spec
from pydra_nvidia.cdi.injection import HookMissing, Injection
from pydra_nvidia.config import Iommu, VfioDeviceConfig
from pydra_nvidia.hardware import (
    Architecture,
    ComputeInstance,
    Driver,
    Gpu,
    GpuInstance,
    Mig,
    PciFunction,
    Placement,
    Profile,
    Reading,
    VfioHost,
)
from pydra_nvidia.settings import Settings
from pydra_nvidia.steps import StartMps
from pydra_nvidia.targets import Target, find_targets

V = "580.105.08"
LIB = "/usr/lib/x86_64-linux-gnu"
HOOK = "/usr/bin/nvidia-cdi-hook"
MIG = "gpu-1-mig-1g10gb-19-3"


def gpu(minor: int, mig: Mig | None = None) -> Gpu:
    return Gpu(
        index=minor,
        minor=minor,
        uuid=f"GPU-{minor}",
        name="NVIDIA H100 80GB HBM3",
        brand=2,
        architecture=Architecture.HOPPER,
        compute=(9, 0),
        pci=f"0000:{minor:02x}:00.0",
        memory=80 << 30,
        mig=mig,
    )


def partitioned(name: str = "1g.10gb", compute: int = 1) -> Mig:
    place = Placement(3, 1)
    profile = Profile(
        id=19,
        name=name,
        slices=1,
        most=7,
        memory_mib=9856,
        multiprocessors=16,
        copy_engines=1,
        decoders=1,
        encoders=0,
        jpeg_engines=1,
        ofa_engines=0,
        placements=(place,),
    )
    instances = tuple(ComputeInstance(id=index, uuid=f"MIG-{index}", slices=1) for index in range(compute))
    return Mig(
        enabled=True,
        pending=True,
        resetless=True,
        profiles=(profile,),
        instances=(GpuInstance(id=7, profile=19, placement=place, compute=instances),),
    )


def reading(*gpus: Gpu, version: str = V, iommufd: bool = False, group: str = "11") -> Reading:
    function = PciFunction(address="0000:65:00.0", vendor="0x10de", device="0x2330", pci_class="0x030200", group=group)
    return Reading(
        driver=Driver(version=version, cuda=13000),
        gpus=gpus or (gpu(0), gpu(1, partitioned()), gpu(2)),
        functions={function.address: function},
        vfio=VfioHost(iommu=True, iommufd=iommufd),
    )


def target(device: str, seen: Reading, *configs: Any) -> Target:
    (found,) = find_targets([AllocatedDevice(request="r", pool="n", device=device, configs=configs)], seen)
    return found


@pytest.fixture
def machine(node: Any) -> Any:
    """Three GPUs; the second has a partition. Nothing changed lately."""
    node.driver_libraries(LIB)
    node.put("/usr/bin/nvidia-smi", b"#!", 0o755)
    node.put(HOOK, b"#!", 0o755)
    node.devices("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidia2")
    node.partition(1, 7, 0, (201, 202))
    return node


def settle(node: Any) -> None:
    """As if nothing had changed for years."""
    for folder, _, _ in os.walk(node.path):
        os.utime(folder, (1_000_000_000, 1_000_000_000))


def nodes(edits: ContainerEdits) -> list[str]:
    return [one.path for one in edits.device_nodes]


async def test_without_the_hook_a_container_gets_names_and_a_path_and_the_log_a_statement(machine: Any) -> None:
    seen, injection = reading(), Injection(machine.tree, Settings())
    assert HOOK in await injection.statement()
    assert await injection.has_hook()
    machine.at(HOOK).unlink()
    edits = await injection.edits(target("gpu-0", seen), seen)
    assert edits.hooks == ()
    assert edits.env["LD_LIBRARY_PATH"].startswith(f"{LIB}:")
    assert {f"{LIB}/libcuda.so.1", f"{LIB}/libnvidia-ml.so.1"} < {mount.container_path for mount in edits.mounts}
    assert "not on this node" in await injection.statement()
    assert not await injection.has_hook()
    present = await read_present([target("gpu-0", seen).allocated.prepared(edits)], root=str(machine.path))
    assert build_spec("gpu.nvidia.com", "uid", present) is not None


@pytest.mark.parametrize("mode", [pytest.param(None, id="absent"), pytest.param(0o644, id="not executable")])
async def test_a_hook_that_the_admin_named_must_be_there(machine: Any, mode: int | None) -> None:
    seen, injection = reading(), Injection(machine.tree, Settings(cdi_hook="/opt/hook/nvidia-cdi-hook"))
    if mode is not None:
        machine.put("/opt/hook/nvidia-cdi-hook", b"#!", mode)
    with pytest.raises(HookMissing, match="PYDRA_NVIDIA_CDI_HOOK is /opt/hook/nvidia-cdi-hook"):
        await injection.edits(target("gpu-0", seen), seen)
    with pytest.raises(HookMissing):
        await injection.statement()
    machine.put("/opt/hook/nvidia-cdi-hook", b"#!", 0o755)
    edits = await injection.edits(target("gpu-0", seen), seen)
    assert {hook.path for hook in edits.hooks} == {"/opt/hook/nvidia-cdi-hook"}


@pytest.mark.parametrize(
    ("config", "iommufd", "expected"),
    [
        pytest.param(None, True, ["/dev/vfio/11"], id="no config"),
        pytest.param(VfioDeviceConfig(), True, ["/dev/vfio/11"], id="an empty config"),
        pytest.param(
            VfioDeviceConfig(iommu=Iommu(enable_api_device=True)),
            True,
            ["/dev/vfio/11", "/dev/vfio/vfio"],
            id="legacy, with the interface",
        ),
        pytest.param(
            VfioDeviceConfig(iommu=Iommu(backend_policy="PreferIommuFD")),
            True,
            ["/dev/vfio/devices/vfio4"],
            id="iommufd",
        ),
        pytest.param(
            VfioDeviceConfig(iommu=Iommu(backend_policy="PreferIommuFD", enable_api_device=True)),
            True,
            ["/dev/vfio/devices/vfio4", "/dev/iommu"],
            id="iommufd, with the interface",
        ),
        pytest.param(
            VfioDeviceConfig(iommu=Iommu(backend_policy="PreferIommuFD", enable_api_device=True)),
            False,
            ["/dev/vfio/11", "/dev/vfio/vfio"],
            id="iommufd preferred where there is none",
        ),
    ],
)
async def test_a_function_passed_through_needs_no_driver(
    node: Any, config: VfioDeviceConfig | None, iommufd: bool, expected: list[str]
) -> None:
    node.put("/sys/bus/pci/devices/0000:65:00.0/vfio-dev/vfio4/dev", b"511:4")
    node.put("/sys/class/vfio-dev/vfio4/dev", b"511:4\n")
    node.devices("vfio/devices/vfio4")
    seen = reading(iommufd=iommufd)
    configs = () if config is None else (config,)
    edits = await Injection(node.tree, Settings()).edits(target("gpu-vfio-0", seen, *configs), seen)
    assert nodes(edits) == expected
    assert edits.env == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert (edits.mounts, edits.hooks) == ((), ())
    numbers = {one.path: (one.major, one.minor) for one in edits.device_nodes if one.major is not None}
    assert numbers == ({expected[0]: (511, 4)} if "devices" in expected[0] else {})


@pytest.mark.parametrize("policy", ["LegacyOnly", "PreferIommuFD"])
async def test_a_function_without_a_vfio_device_is_the_claims_error(node: Any, policy: Any) -> None:
    seen = reading(iommufd=True, group="")
    found = target("gpu-vfio-0", seen, VfioDeviceConfig(iommu=Iommu(backend_policy=policy)))
    with pytest.raises(ClaimError, match=r"0000:65:00\.0.*IOMMU"):
        await Injection(node.tree, Settings()).edits(found, seen)


async def test_a_client_of_mps_gets_its_daemon_on_top_of_the_driver(machine: Any) -> None:
    seen, injection = reading(), Injection(machine.tree, Settings())
    plain = await injection.edits(target("gpu-0", seen), seen)
    steps = (StartMps(id="uid-12345", devices=("GPU-0",)),)
    shared = await injection.edits(target("gpu-0", seen), seen, steps)
    assert shared.env.keys() - plain.env.keys() == {"CUDA_MPS_PIPE_DIRECTORY"}
    added = {mount.container_path: mount.host_path for mount in set(shared.mounts) - set(plain.mounts)}
    assert added.keys() == {"/dev/shm", shared.env["CUDA_MPS_PIPE_DIRECTORY"]}
    assert all("uid-12345" in host for host in added.values())
    assert await injection.edits(target("gpu-2", seen), seen, steps) == await injection.edits(
        target("gpu-2", seen), seen
    )


async def test_calls_side_by_side_agree(machine: Any) -> None:
    seen, injection = reading(), Injection(machine.tree, Settings())
    settle(machine)
    found = await asyncio.gather(*(injection.edits(target("gpu-0", seen), seen) for _ in range(8)))
    assert all(one == found[0] for one in found)
