"""What containers get without the hook, with a function passed through, and as clients of MPS."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cdi_claims import HOOK, LIB, edits_of, nodes, reading, settle, target
from pydra import ClaimError
from pydra.cdi.host_path_checks import resolve
from pydra.cdi.spec import build_spec
from pydra_nvidia.cdi.edits import DeviceEdits
from pydra_nvidia.cdi.hooks import HookMissing, describe_hooks, find_hook
from pydra_nvidia.claim_config import Iommu, VfioDeviceConfig
from pydra_nvidia.settings import Settings
from pydra_nvidia.steps import StartMps


async def test_without_the_hook_a_container_gets_names_and_a_path_and_the_log_a_statement(machine: Any) -> None:
    seen, maker = reading(), DeviceEdits(machine.tree, Settings())
    assert HOOK in describe_hooks(find_hook(machine.tree, Settings()))
    assert find_hook(machine.tree, Settings())
    machine.at(HOOK).unlink()
    edits = edits_of(maker, target("gpu-0", seen), seen)
    assert edits.hooks == ()
    assert edits.env["LD_LIBRARY_PATH"].startswith(f"{LIB}:")
    assert {f"{LIB}/libcuda.so.1", f"{LIB}/libnvidia-ml.so.1"} < {mount.container_path for mount in edits.mounts}
    for words in ("not on this node", HOOK, "LD_LIBRARY_PATH", "PYDRA_NVIDIA_CDI_HOOK"):
        assert words in describe_hooks(find_hook(machine.tree, Settings()))
    assert not find_hook(machine.tree, Settings())
    present = await resolve([target("gpu-0", seen).allocated.prepared(edits)], root=str(machine.path))
    assert build_spec("gpu.nvidia.com", "uid", present).content is not None


@pytest.mark.parametrize("mode", [pytest.param(None, id="absent"), pytest.param(0o644, id="not executable")])
async def test_a_hook_that_the_admin_named_must_be_there(machine: Any, mode: int | None) -> None:
    seen, maker = reading(), DeviceEdits(machine.tree, Settings(cdi_hook="/opt/hook/nvidia-cdi-hook"))
    if mode is not None:
        machine.put("/opt/hook/nvidia-cdi-hook", b"#!", mode)
    with pytest.raises(HookMissing, match="PYDRA_NVIDIA_CDI_HOOK is /opt/hook/nvidia-cdi-hook"):
        edits_of(maker, target("gpu-0", seen), seen)
    machine.put("/opt/hook/nvidia-cdi-hook", b"#!", 0o755)
    edits = edits_of(maker, target("gpu-0", seen), seen)
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
    edits = edits_of(DeviceEdits(node.tree, Settings()), target("gpu-vfio-0", seen, *configs), seen)
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
        edits_of(DeviceEdits(node.tree, Settings()), found, seen)


async def test_a_client_of_mps_gets_its_daemon_on_top_of_the_driver(machine: Any) -> None:
    seen, maker = reading(), DeviceEdits(machine.tree, Settings())
    plain = edits_of(maker, target("gpu-0", seen), seen)
    steps = (StartMps(id="uid-12345", devices=("GPU-0",), holds=("gpu-0",)),)
    shared = edits_of(maker, target("gpu-0", seen), seen, steps)
    assert shared.env.keys() - plain.env.keys() == {"CUDA_MPS_PIPE_DIRECTORY"}
    added = {mount.container_path: mount.host_path for mount in set(shared.mounts) - set(plain.mounts)}
    assert added.keys() == {"/dev/shm", shared.env["CUDA_MPS_PIPE_DIRECTORY"]}
    assert all("uid-12345" in host for host in added.values())
    assert edits_of(maker, target("gpu-2", seen), seen, steps) == edits_of(maker, target("gpu-2", seen), seen)


async def test_calls_side_by_side_agree(machine: Any) -> None:
    seen, maker = reading(), DeviceEdits(machine.tree, Settings())
    settle(machine)
    found = await asyncio.gather(*(asyncio.to_thread(edits_of, maker, target("gpu-0", seen), seen) for _ in range(8)))
    assert all(one == found[0] for one in found)
