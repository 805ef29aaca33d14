"""What a container gets, from what was found: no file is looked at here."""

from __future__ import annotations

import pytest

from pydra import ContainerEdits, DeviceNode, Hook, Mount
from pydra_nvidia.cdi.driver_files import DriverFiles
from pydra_nvidia.cdi.edits import driver_edits, gpu_edits, merge
from pydra_nvidia.cdi.hooks import find_links
from pydra_nvidia.cdi.libraries import DriverFile
from pydra_nvidia.host.device_nodes import Node

V = "580.105.08"
LIB = "/usr/lib64"
ROOT = "/run/nvidia/driver"
HOOK = "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")


def library(name: str, *names: str, folder: str = LIB) -> DriverFile:
    return DriverFile(path=f"{folder}/{name}", host=f"{ROOT}{folder}/{name}", names=names)


def node(path: str, *, root: str = "", gid: int = 0, numbers: tuple[int, int] | None = None) -> Node:
    return Node(path=path, host=root + path, gid=gid, numbers=numbers)


FILES = DriverFiles(
    version=V,
    libraries=(
        library(f"libcuda.so.{V}", "libcuda.so.1"),
        library(f"libnvidia-ml.so.{V}", "libnvidia-ml.so.1"),
        library(f"libvdpau_nvidia.so.{V}", "libvdpau_nvidia.so.1", folder=f"{LIB}/vdpau"),
    ),
    files=(DriverFile(path="/usr/bin/nvidia-smi", host=f"{ROOT}/opt/nvidia-smi"),),
    sockets=(DriverFile(path="/run/nvidia-persistenced/socket", host=f"{ROOT}/run/nvidia-persistenced/socket"),),
)
CONTROL = [node("/dev/nvidiactl", root=ROOT), node("/dev/nvidia-uvm", root=ROOT)]


def hook(name: str, *args: str) -> Hook:
    return Hook(
        hook_name="createContainer",
        path=HOOK,
        args=("nvidia-cdi-hook", name, *args),
        env=("NVIDIA_CTK_DEBUG=false",),
    )


def test_the_driver_as_edits() -> None:
    assert driver_edits(FILES, tuple(CONTROL), HOOK) == ContainerEdits(
        env={"NVIDIA_VISIBLE_DEVICES": "void", "NVIDIA_CTK_LIBCUDA_DIR": LIB},
        device_nodes=(
            DeviceNode(path="/dev/nvidiactl", host_path=f"{ROOT}/dev/nvidiactl"),
            DeviceNode(path="/dev/nvidia-uvm", host_path=f"{ROOT}/dev/nvidia-uvm", optional=True),
        ),
        mounts=(
            Mount(host_path=f"{ROOT}/opt/nvidia-smi", container_path="/usr/bin/nvidia-smi", options=READ_ONLY),
            *(
                Mount(host_path=ROOT + path, container_path=path, options=READ_ONLY)
                for path in (
                    f"{LIB}/libcuda.so.{V}",
                    f"{LIB}/libnvidia-ml.so.{V}",
                    f"{LIB}/vdpau/libvdpau_nvidia.so.{V}",
                )
            ),
            Mount(
                host_path=f"{ROOT}/run/nvidia-persistenced/socket",
                container_path="/run/nvidia-persistenced/socket",
                options=("nosuid", "nodev", "rbind", "rprivate", "noexec"),
                optional=True,
            ),
        ),
        hooks=(
            hook(
                "create-symlinks",
                *("--link", f"libcuda.so.1::{LIB}/libcuda.so"),
                *("--link", f"libcuda.so.{V}::{LIB}/libcuda.so.1"),
                *("--link", f"libnvidia-ml.so.{V}::{LIB}/libnvidia-ml.so.1"),
                *("--link", f"libvdpau_nvidia.so.{V}::{LIB}/vdpau/libvdpau_nvidia.so.1"),
            ),
            hook("enable-cuda-compat", f"--host-driver-version={V}"),
            hook("update-ldcache", "--folder", LIB, "--folder", f"{LIB}/vdpau"),
            hook("disable-device-node-modification"),
        ),
    )


def test_without_the_hook_files_are_mounted_under_all_their_names() -> None:
    with_hook, without = driver_edits(FILES, tuple(CONTROL), HOOK), driver_edits(FILES, tuple(CONTROL), "")
    assert without.hooks == ()
    assert without.env == {
        **with_hook.env,
        "LD_LIBRARY_PATH": f"{LIB}:{LIB}/vdpau:/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
    }
    more = {mount.container_path: mount.host_path for mount in set(without.mounts) - set(with_hook.mounts)}
    assert set(with_hook.mounts) < set(without.mounts)
    assert more == {
        f"{LIB}/libcuda.so": f"{ROOT}{LIB}/libcuda.so.{V}",
        f"{LIB}/libcuda.so.1": f"{ROOT}{LIB}/libcuda.so.{V}",
        f"{LIB}/libnvidia-ml.so.1": f"{ROOT}{LIB}/libnvidia-ml.so.{V}",
        f"{LIB}/vdpau/libvdpau_nvidia.so.1": f"{ROOT}{LIB}/vdpau/libvdpau_nvidia.so.{V}",
    }


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            library(f"libcuda.so.{V}"), {"libcuda.so": "libcuda.so.1", "libcuda.so.1": f"libcuda.so.{V}"}, id="libcuda"
        ),
        pytest.param(library("libcuda.so.1.1"), {}, id="a libcuda that is not the driver's"),
        pytest.param(
            library(f"libnvcuvid.so.{V}", "libnvcuvid.so", "libnvcuvid.so.1"),
            {"libnvcuvid.so": "libnvcuvid.so.1", "libnvcuvid.so.1": f"libnvcuvid.so.{V}"},
            id="links of links",
        ),
        pytest.param(
            library(f"libGLX_nvidia.so.{V}", "libGLX_nvidia.so.0"),
            {"libGLX_indirect.so.0": f"libGLX_nvidia.so.{V}", "libGLX_nvidia.so.0": f"libGLX_nvidia.so.{V}"},
            id="indirect rendering",
        ),
        pytest.param(
            library(f"libnvidia-allocator.so.{V}"),
            {
                "gbm/nvidia-drm_gbm.so": "../libnvidia-allocator.so.1",
                "libnvidia-allocator.so.1": f"libnvidia-allocator.so.{V}",
            },
            id="gbm",
        ),
        pytest.param(
            library(f"libnvidia-opticalflow.so.{V}"),
            {
                "libnvidia-opticalflow.so": "libnvidia-opticalflow.so.1",
                "libnvidia-opticalflow.so.1": f"libnvidia-opticalflow.so.{V}",
            },
            id="optical flow",
        ),
        pytest.param(
            library(f"libnvidia-vulkan-producer.so.{V}"),
            {"libnvidia-vulkan-producer.so": f"libnvidia-vulkan-producer.so.{V}"},
            id="vulkan",
        ),
        pytest.param(library(f"libnvidia-glcore.so.{V}"), {}, id="a library that is its own SONAME"),
    ],
)
def test_links_by_which_programs_find_a_library(found: DriverFile, expected: dict[str, str]) -> None:
    links = find_links(DriverFiles(version=V, libraries=(found,)))
    assert {link.path.removeprefix(f"{LIB}/"): link.target for link in links} == expected
    assert {link.host for link in links} <= {found.host}


def test_no_link_lies_on_a_library() -> None:
    files = DriverFiles(version=V, libraries=(library("libx.so.1"), library(f"libx.so.{V}", "libx.so.1")))
    assert find_links(files) == ()


def test_a_gpu_as_edits() -> None:
    drm = [node("/dev/dri/card1", gid=44), node("/dev/dri/renderD128", gid=105)]
    assert gpu_edits(node("/dev/nvidia3", root=ROOT), drm, "0000:65:00.0", HOOK) == ContainerEdits(
        device_nodes=(
            DeviceNode(path="/dev/nvidia3", host_path=f"{ROOT}/dev/nvidia3"),
            DeviceNode(path="/dev/dri/card1", optional=True),
            DeviceNode(path="/dev/dri/renderD128", optional=True),
        ),
        hooks=(
            hook(
                "create-symlinks",
                *("--link", "../card1::/dev/dri/by-path/pci-0000:65:00.0-card"),
                *("--link", "../renderD128::/dev/dri/by-path/pci-0000:65:00.0-render"),
            ),
        ),
        additional_gids=(44, 105),
    )


@pytest.mark.parametrize("program", [HOOK, ""])
def test_a_gpu_without_graphics_is_its_node_alone(program: str) -> None:
    edits = gpu_edits(node("/dev/nvidia0"), (), "0000:65:00.0", program)
    assert edits == ContainerEdits(device_nodes=(DeviceNode(path="/dev/nvidia0"),))


def test_merged_edits_keep_their_order() -> None:
    first = ContainerEdits(additional_gids=(44,)).with_env("A", "1").with_hook("createContainer", "/a")
    second = ContainerEdits(additional_gids=(9, 44)).with_env("A", "2").with_hook("createContainer", "/b")
    merged = merge(first, ContainerEdits(), second)
    assert merged.env == {"A": "2"}
    assert [one.path for one in merged.hooks] == ["/a", "/b"]
    assert merged.additional_gids == (9, 44)
    assert merge(first) == first


def test_the_older_program_has_the_hooks_below_a_word_of_its_own() -> None:
    hooks = driver_edits(FILES, tuple(CONTROL), "/usr/bin/nvidia-ctk").hooks
    assert {one.args[:2] for one in hooks} == {("nvidia-ctk", "hook")}
    assert {one.path for one in hooks} == {"/usr/bin/nvidia-ctk"}
