"""From a claim's device to the container's edits, on a node made of files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from cdi_claims import HOOK, LIB, MIG, V, edits_of, gpu, nodes, partitioned, reading, settle, target
from pydra import ClaimError, DeviceNode
from pydra.cdi.host_path_checks import resolve
from pydra.cdi.spec import build_spec
from pydra_nvidia.cdi.edits import DeviceEdits
from pydra_nvidia.cdi.hooks import find_hook
from pydra_nvidia.cdi.libraries import DriverIncomplete
from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.host.device_nodes import CapabilityMissing
from pydra_nvidia.settings import Settings


async def test_two_gpus_and_a_partition_of_one_claim_make_one_spec(machine: Any) -> None:
    machine.put("/sys/bus/pci/devices/0000:00:00.0/drm/card1/dev", b"226:1")
    machine.put("/sys/class/drm/card1/dev", b"226:1\n")
    machine.devices("dri/card1")
    seen, maker = reading(), DeviceEdits(machine.tree, Settings())
    targets = [target(name, seen) for name in ("gpu-0", MIG, "gpu-2")]
    prepared = [one.allocated.prepared(own) for one, own in zip(targets, maker.build(targets, seen), strict=True)]
    present = await resolve(prepared, root=str(machine.path))
    assert list(present) == prepared, "nothing that was found is missing"
    content = build_spec("gpu.nvidia.com", "uid", present).content
    assert content is not None
    spec = json.loads(content)
    shared = spec["containerEdits"]
    assert shared["env"] == [f"NVIDIA_CTK_LIBCUDA_DIR={LIB}", "NVIDIA_VISIBLE_DEVICES=void"]
    assert [one["path"] for one in shared["deviceNodes"]] == [
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidiactl",
    ]
    assert {one["containerPath"] for one in shared["mounts"]} == {
        f"{LIB}/libcuda.so.{V}",
        f"{LIB}/libnvidia-ml.so.{V}",
        "/usr/bin/nvidia-smi",
    }
    assert [hook["args"][1] for hook in shared["hooks"]] == [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
    ]
    own = [one["containerEdits"] for one in spec["devices"]]
    assert [([node["path"] for node in one["deviceNodes"]], sorted(one)) for one in own] == [
        (["/dev/dri/card1", "/dev/nvidia0"], ["deviceNodes", "hooks"]),
        (["/dev/nvidia-caps/nvidia-cap201", "/dev/nvidia-caps/nvidia-cap202", "/dev/nvidia1"], ["deviceNodes"]),
        (["/dev/nvidia2"], ["deviceNodes"]),
    ]
    (hook,) = own[0]["hooks"]
    assert hook["args"][2:] == ["--link", "../card1::/dev/dri/by-path/pci-0000:00:00.0-card"]
    again = [one.allocated.prepared(edits_of(DeviceEdits(machine.tree, Settings()), one, seen)) for one in targets]
    assert build_spec("gpu.nvidia.com", "uid", again[::-1]).content == content


async def test_a_driver_beside_the_hosts_own_packages_is_given_whole(machine: Any) -> None:
    """As nvidia-installer leaves it with --utility-prefix and a line in ld.so.conf; other packages are where they are.

    Source: Azure/aks-gpu, install.sh before May 2025.
    """
    prefix = "/usr/local/nvidia"
    for stem in ("libcuda", "libnvidia-ml"):
        for name in (f"{stem}.so.{V}", f"{stem}.so.1"):
            machine.at(f"{LIB}/{name}").unlink()
    machine.driver_libraries(f"{prefix}/lib64")
    machine.ld_cache(*(f"{prefix}/lib64/{stem}.so.1" for stem in ("libcuda", "libnvidia-ml")))
    machine.put(f"{prefix}/bin/nvidia-smi", b"#!", 0o755)
    machine.put("/usr/bin/nvidia-smi", b"#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi", 0o755)
    host = (f"/lib/firmware/nvidia/{V}/gsp_ga10x.bin", "/etc/OpenCL/vendors/nvidia.icd", "/usr/bin/nvidia-imex-ctl")
    for path in host:
        machine.put(path, b"#!", 0o755)
    machine.socket("/run/nvidia-persistenced/socket")
    machine.at(HOOK).unlink()
    seen = reading()
    edits = edits_of(DeviceEdits(machine.tree, Settings()), target("gpu-0", seen), seen)
    assert edits.env["LD_LIBRARY_PATH"] == f"{prefix}/lib64:{prefix}/lib"
    assert {one.container_path: one.host_path for one in edits.mounts if "/lib64/" not in one.container_path} == {
        "/usr/bin/nvidia-smi": f"{prefix}/bin/nvidia-smi",
        **{path: path for path in (*host, "/run/nvidia-persistenced/socket")},
    }


async def test_a_partition_opens_its_own_capabilities_only(machine: Any) -> None:
    seen = reading()
    edits = edits_of(DeviceEdits(machine.tree, Settings()), target(MIG, seen), seen)
    assert {node.path: (node.major, node.minor, node.file_mode) for node in edits.device_nodes[3:]} == {
        "/dev/nvidia1": (195, 1, None),
        "/dev/nvidia-caps/nvidia-cap201": (235, 201, 0o444),
        "/dev/nvidia-caps/nvidia-cap202": (235, 202, 0o444),
    }


async def test_a_partition_has_its_gpus_nodes_for_graphics_whatever_its_profile(machine: Any) -> None:
    seen = reading()
    machine.devices("dri/renderD129")
    machine.put("/sys/bus/pci/devices/0000:01:00.0/drm/renderD129/dev", b"226:129")
    assert "/dev/dri/renderD129" in nodes(edits_of(DeviceEdits(machine.tree, Settings()), target(MIG, seen), seen))


@pytest.mark.parametrize(
    ("change", "seen", "error", "told"),
    [
        pytest.param(
            lambda node: (node.path / "proc/driver/nvidia/capabilities/gpu1/mig/gi7/access").unlink(),
            reading(),
            CapabilityMissing,
            "gi7/access",
            id="no capability",
        ),
        pytest.param(
            lambda node: node.put("/proc/devices", b"195 nvidia\n"),
            reading(),
            CapabilityMissing,
            "nvidia-caps",
            id="no capabilities at all",
        ),
        pytest.param(
            lambda _: None, reading(gpu(1, partitioned(compute=0))), ClaimError, MIG, id="no compute instance"
        ),
        pytest.param(
            lambda _: None, reading(gpu(1, partitioned(compute=2))), ClaimError, MIG, id="two compute instances"
        ),
    ],
)
async def test_a_partition_that_is_not_there_is_the_claims_error(
    machine: Any, change: Callable[[Any], Any], seen: Reading, error: type[ClaimError], told: str
) -> None:
    change(machine)
    with pytest.raises(error, match=told):
        edits_of(DeviceEdits(machine.tree, Settings()), target(MIG, seen), seen)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(lambda node: node.at(f"{LIB}/libcuda.so.{V}").unlink(), f"libcuda.so.{V}", id="libcuda"),
        pytest.param(lambda node: node.at(f"{LIB}/libnvidia-ml.so.{V}").unlink(), "libnvidia-ml", id="libnvidia-ml"),
        pytest.param(lambda node: node.at("/dev/nvidiactl").unlink(), "/dev/nvidiactl", id="nvidiactl"),
        pytest.param(lambda node: node.at("/dev/nvidia0").unlink(), "/dev/nvidia0", id="the GPU's node"),
    ],
)
async def test_what_is_missing_is_said_and_found_when_it_comes(
    machine: Any, change: Callable[[Any], Any], told: str
) -> None:
    seen, maker = reading(), DeviceEdits(machine.tree, Settings())
    whole = edits_of(maker, target("gpu-0", seen), seen)
    settle(machine)
    edits_of(maker, target("gpu-0", seen), seen)
    change(machine)
    for _ in range(2):
        with pytest.raises(DriverIncomplete, match=told):
            edits_of(maker, target("gpu-0", seen), seen)
    machine.put(f"{LIB}/libcuda.so.{V}")
    machine.put(f"{LIB}/libnvidia-ml.so.{V}")
    machine.devices("nvidiactl", "nvidia0")
    assert edits_of(maker, target("gpu-0", seen), seen) == whole


async def test_nodes_that_are_not_always_there_are_left_out(machine: Any) -> None:
    seen, maker = reading(), DeviceEdits(machine.tree, Settings())
    machine.put("/proc/devices", b"Character devices:\n195 nvidia\n")
    machine.at("/dev/nvidia-uvm").unlink()
    assert nodes(edits_of(maker, target("gpu-0", seen), seen)) == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia0",
    ]
    machine.put("/proc/devices", b"Character devices:\n195 nvidia\n511 nvidia-uvm\n")
    edits = edits_of(maker, target("gpu-0", seen), seen)
    assert DeviceNode(path="/dev/nvidia-uvm", type="c", major=511, minor=0) in edits.device_nodes, "nobody has made it"
    machine.devices("nvidia-uvm", "nvidia-modeset")
    assert set(nodes(edits_of(maker, target("gpu-0", seen), seen))) == {
        "/dev/nvidiactl",
        "/dev/nvidia-modeset",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia0",
    }


async def test_files_are_remembered_until_a_folder_changes(machine: Any) -> None:
    seen, maker = reading(), DeviceEdits(machine.tree, Settings())
    settle(machine)
    before = edits_of(maker, target("gpu-0", seen), seen)
    machine.library(LIB, "libnvidia-new", "libnvidia-new.so.1")
    settle(machine)
    assert edits_of(maker, target("gpu-0", seen), seen) == before, "nobody looks where no time stamp changed"
    os.utime(machine.at(LIB))
    assert f"{LIB}/libnvidia-new.so.{V}" in {
        mount.container_path for mount in (edits_of(maker, target("gpu-0", seen), seen)).mounts
    }


async def test_folders_that_changed_a_moment_ago_are_looked_at_again(machine: Any) -> None:
    seen, maker = reading(), DeviceEdits(machine.tree, Settings(), clock=lambda: 1_000_001.0)
    for folder, _, _ in os.walk(machine.path):
        os.utime(folder, (1_000_000, 1_000_000))
    edits_of(maker, target("gpu-0", seen), seen)
    machine.library(LIB, "libnvidia-new", "libnvidia-new.so.1")
    os.utime(machine.at(LIB), (1_000_000, 1_000_000))  # within the same tick of the file system's clock
    mounts = (edits_of(maker, target("gpu-0", seen), seen)).mounts
    assert f"{LIB}/libnvidia-new.so.{V}" in {mount.container_path for mount in mounts}


async def test_the_files_of_another_driver_are_searched_for_again(machine: Any) -> None:
    seen, maker = reading(), DeviceEdits(machine.tree, Settings())
    settle(machine)
    edits_of(maker, target("gpu-0", seen), seen)
    newer = reading(version="590.44.01")
    with pytest.raises(DriverIncomplete, match=r"libcuda\.so\.590\.44\.01"):
        edits_of(maker, target("gpu-0", newer), newer)
    machine.driver_libraries("/usr/lib64", "590.44.01")
    edits = edits_of(maker, target("gpu-0", newer), newer)
    assert edits.env["NVIDIA_CTK_LIBCUDA_DIR"] == "/usr/lib64"


async def test_a_node_without_a_driver_says_so(node: Any) -> None:
    seen = reading()
    with pytest.raises(DriverIncomplete, match="PYDRA_NVIDIA_DRIVER_ROOT"):
        edits_of(DeviceEdits(node.tree, Settings()), target("gpu-0", seen), seen)


async def test_a_driver_container_has_its_own_dev(node: Any) -> None:
    root = "/run/nvidia/driver"
    node.driver = root
    node.driver_libraries("/usr/lib64")
    node.devices("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", root=root)
    node.put("/usr/local/nvidia/toolkit/nvidia-cdi-hook", b"#!", 0o755)
    seen = reading()
    edits = edits_of(DeviceEdits(node.tree, Settings()), target("gpu-0", seen), seen)
    assert nodes(edits) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia0"]
    assert {mount.host_path: mount.container_path for mount in edits.mounts} == {
        f"{root}/usr/lib64/{name}.so.{V}": f"/usr/lib64/{name}.so.{V}" for name in ("libcuda", "libnvidia-ml")
    }
    assert {hook.path for hook in edits.hooks} == {"/usr/local/nvidia/toolkit/nvidia-cdi-hook"}


async def test_a_hook_that_goes_with_nvidias_own_driver_is_not_used(machine: Any) -> None:
    machine.at(HOOK).unlink()
    machine.put("/var/lib/kubelet/plugins/gpu.nvidia.com/nvidia-cdi-hook", b"#!", 0o755)
    assert not find_hook(machine.tree, Settings())
