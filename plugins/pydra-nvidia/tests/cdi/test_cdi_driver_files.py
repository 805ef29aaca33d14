"""The driver's files, as the installers of the driver leave them on a node."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from pydra import ClaimError
from pydra_nvidia.cdi.driver_files import DriverFiles, find_driver_files
from pydra_nvidia.cdi.libraries import DriverFile, DriverIncomplete
from pydra_nvidia.host.driver_root import is_loadable
from pydra_nvidia.host.file_search import FileSearch
from pydra_nvidia.host.linker_cache import find_cached

V = "580.105.08"
DEBIAN = "/usr/lib/x86_64-linux-gnu"
CONTAINER = "/run/nvidia/driver"
GKE = "/home/kubernetes/bin/nvidia"


def find(node: Any, version: str = V, **options: str) -> DriverFiles:
    return find_driver_files(FileSearch(node.root(node.driver)), version, **options)


def mounted(files: DriverFiles) -> dict[str, str]:
    """The host's path of each path in the container."""
    everything = (*files.libraries, *files.modules, *files.files, *files.sockets)
    assert len({one.path for one in everything}) == len(everything)
    return {one.path: one.host for one in everything}


def debian(node: Any) -> None:
    node.driver_libraries(DEBIAN)
    node.library(f"{DEBIAN}/vdpau", "libvdpau_nvidia", "libvdpau_nvidia.so.1")
    node.link("/lib", "usr/lib")
    node.link("/bin", "usr/bin")
    node.put("/usr/bin/nvidia-smi", b"#!", 0o755)


def rhel(node: Any) -> None:
    node.driver_libraries("/usr/lib64")
    node.link("/lib64", "usr/lib64")
    node.link("/lib", "usr/lib")
    for stem in ("libcuda", "libnvidia-ml"):
        node.library_32(f"/usr/lib/{stem}.so.{V}")
    node.put("/usr/bin/nvidia-smi", b"#!", 0o755)


def alternatives(node: Any) -> None:
    """Debian's own packages: the libraries lie beside those of other versions, links of links lead to them."""
    node.driver_libraries(f"{DEBIAN}/nvidia/current")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        node.link(f"/etc/alternatives/glx--{name}", f"{DEBIAN}/nvidia/current/{name}")
        node.link(f"{DEBIAN}/{name}", f"/etc/alternatives/glx--{name}")
    node.put("/usr/lib/nvidia/current/nvidia-smi", b"#!", 0o755)
    node.link("/etc/alternatives/nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    node.link("/usr/bin/nvidia-smi", "/etc/alternatives/nvidia-smi")


def driver_container(node: Any) -> None:
    """Absolute links in it mean its own files; the host has files of the same names that must not be taken."""
    node.driver = CONTAINER
    node.put(f"{CONTAINER}/opt/nv/libcuda.so.{V}", b"cuda of the container")
    node.link(f"{CONTAINER}{DEBIAN}/libcuda.so.{V}", f"/opt/nv/libcuda.so.{V}")
    node.library(DEBIAN, "libnvidia-ml", "libnvidia-ml.so.1")
    node.put(f"/opt/nv/libcuda.so.{V}", b"a trap")
    node.put(f"{CONTAINER}/opt/nv/nvidia-smi", b"#!", 0o755)
    node.link(f"{CONTAINER}/usr/bin/nvidia-smi", "/opt/nv/nvidia-smi")


def gke(node: Any) -> None:
    node.driver = GKE
    node.driver_libraries("/lib64")
    node.put(f"{GKE}/bin/nvidia-smi", b"#!", 0o755)
    node.put(f"{GKE}/vulkan/icd.d/nvidia_icd.json", b"{}")


def gke_cached(node: Any) -> None:
    """Its installers add the libraries to the linker's cache of the host."""
    node.driver_libraries(f"{GKE}/lib64")
    node.put(f"{GKE}/bin/nvidia-smi", b"#!", 0o755)
    node.put(f"{GKE}/vulkan/icd.d/nvidia_icd.json", b"{}")
    node.ld_cache(f"{GKE}/lib64/libnvidia-ml.so.1", f"{GKE}/lib64/libcuda.so.1")


def only_cached(node: Any) -> None:
    """Arch keeps 64-bit libraries in /usr/lib; others in folders that only the linker's cache knows."""
    node.driver_libraries("/opt/nvidia/lib")
    node.ld_cache("/opt/nvidia/lib/libnvidia-ml.so.1", "/opt/nvidia/lib/libcuda.so.1", "/opt/gone/libcuda.so.1")


def only_cached_old_format(node: Any) -> None:
    node.driver_libraries("/opt/nvidia/lib")
    node.ld_cache("/opt/nvidia/lib/libnvidia-ml.so.1", "/opt/nvidia/lib/libcuda.so.1", old=True)


def same(*paths: str, root: str = "") -> dict[str, str]:
    return {path: root + path for path in paths}


LAYOUTS = [
    pytest.param(
        debian,
        same(
            f"{DEBIAN}/libcuda.so.{V}",
            f"{DEBIAN}/libnvidia-ml.so.{V}",
            f"{DEBIAN}/vdpau/libvdpau_nvidia.so.{V}",
            "/usr/bin/nvidia-smi",
        ),
        id="debian",
    ),
    pytest.param(
        rhel, same(f"/usr/lib64/libcuda.so.{V}", f"/usr/lib64/libnvidia-ml.so.{V}", "/usr/bin/nvidia-smi"), id="rhel"
    ),
    pytest.param(
        alternatives,
        {
            **same(f"{DEBIAN}/nvidia/current/libcuda.so.{V}", f"{DEBIAN}/nvidia/current/libnvidia-ml.so.{V}"),
            "/usr/bin/nvidia-smi": "/usr/lib/nvidia/current/nvidia-smi",
        },
        id="debian's own packages",
    ),
    pytest.param(
        driver_container,
        {
            **same(f"/opt/nv/libcuda.so.{V}", f"{DEBIAN}/libnvidia-ml.so.{V}", root=CONTAINER),
            "/usr/bin/nvidia-smi": f"{CONTAINER}/opt/nv/nvidia-smi",
        },
        id="driver container",
    ),
    pytest.param(
        gke,
        {
            **same(f"/lib64/libcuda.so.{V}", f"/lib64/libnvidia-ml.so.{V}", "/bin/nvidia-smi", root=GKE),
            "/etc/vulkan/icd.d/nvidia_icd.json": f"{GKE}/vulkan/icd.d/nvidia_icd.json",
        },
        id="gke",
    ),
    pytest.param(
        gke_cached,
        {
            **same(f"{GKE}/lib64/libcuda.so.{V}", f"{GKE}/lib64/libnvidia-ml.so.{V}"),
            "/usr/bin/nvidia-smi": f"{GKE}/bin/nvidia-smi",
            "/etc/vulkan/icd.d/nvidia_icd.json": f"{GKE}/vulkan/icd.d/nvidia_icd.json",
        },
        id="gke, in the linker's cache",
    ),
    pytest.param(
        only_cached,
        same(f"/opt/nvidia/lib/libcuda.so.{V}", f"/opt/nvidia/lib/libnvidia-ml.so.{V}"),
        id="in the linker's cache",
    ),
    pytest.param(
        only_cached_old_format,
        same(f"/opt/nvidia/lib/libcuda.so.{V}", f"/opt/nvidia/lib/libnvidia-ml.so.{V}"),
        id="in the linker's cache behind the old format",
    ),
]


@pytest.mark.parametrize(("install", "expected"), LAYOUTS)
def test_an_installation_is_found_where_its_installer_put_it(
    node: Any, install: Callable[[Any], None], expected: dict[str, str]
) -> None:
    install(node)
    assert mounted(find(node)) == expected
    assert find(node, "") == find(node), "the version follows from the libraries"


def test_libraries_have_the_names_that_lead_to_them(node: Any) -> None:
    debian(node)
    node.link(f"{DEBIAN}/libcuda.so", "libcuda.so.1")
    node.link(f"{DEBIAN}/libnvidia-ml.so.0", "libsomething-else.so")
    names = {one.path.rpartition("/")[2]: one.names for one in find(node).libraries}
    assert names == {
        f"libcuda.so.{V}": ("libcuda.so", "libcuda.so.1"),
        f"libnvidia-ml.so.{V}": ("libnvidia-ml.so.1",),
        f"libvdpau_nvidia.so.{V}": ("libvdpau_nvidia.so.1",),
    }


def test_libraries_with_versions_of_their_own_are_found_by_the_list(node: Any) -> None:
    debian(node)
    node.library(DEBIAN, "libnvidia-egl-gbm", "libnvidia-egl-gbm.so.1", "1.1.2")
    node.library(DEBIAN, "libnvidia-egl-wayland2", "libnvidia-egl-wayland2.so.1", "1.0.0")
    node.put(f"{DEBIAN}/libnvidia-nvvm70.so.4", b"")
    node.library(DEBIAN, "libnvidia-container", "libnvidia-container.so.1", "1.17.8")
    node.library(DEBIAN, "libcuda", "", "575.57.08")
    found = {one.path.rpartition("/")[2] for one in find(node).libraries}
    assert found == {
        f"libcuda.so.{V}",
        f"libnvidia-ml.so.{V}",
        f"libvdpau_nvidia.so.{V}",
        "libnvidia-egl-gbm.so.1.1.2",
        "libnvidia-egl-wayland2.so.1.0.0",
        "libnvidia-nvvm70.so.4",
    }


def test_everything_else_is_found_only_if_present(node: Any) -> None:
    debian(node)
    before = mounted(find(node))
    node.put(f"/lib/firmware/nvidia/{V}/gsp_ga10x.bin")
    node.put(f"/lib/firmware/nvidia/{V}/readme")
    node.put("/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
    node.put("/usr/local/share/nvidia/nvoptix.bin")
    node.put("/usr/share/nvidia/nvoptix.bin")
    node.put("/etc/OpenCL/vendors/nvidia.icd")
    node.put("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json")
    node.put("/usr/bin/nvidia-imex", b"", 0o644)
    node.put("/usr/sbin/nvidia-persistenced", b"", 0o755)
    node.put(f"{DEBIAN}/nvidia/xorg/nvidia_drv.so")
    node.put(f"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{V}")
    node.socket("/run/nvidia-persistenced/socket")
    node.socket("/run/nvidia-fabricmanager/socket")
    node.link("/var/run", "../run")
    node.put("/tmp/nvidia-mps/control")
    after = mounted(find(node))
    assert {path: after[path] for path in after.keys() - before.keys()} == {
        **same(
            f"/lib/firmware/nvidia/{V}/gsp_ga10x.bin",
            "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
            "/etc/OpenCL/vendors/nvidia.icd",
            "/usr/sbin/nvidia-persistenced",
            f"{DEBIAN}/nvidia/xorg/nvidia_drv.so",
            f"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{V}",
            "/run/nvidia-persistenced/socket",
            "/run/nvidia-fabricmanager/socket",
        ),
        f"/lib/firmware/nvidia/{V}/gsp_ga10x.bin": f"/usr/lib/firmware/nvidia/{V}/gsp_ga10x.bin",
        "/usr/share/nvidia/nvoptix.bin": "/usr/local/share/nvidia/nvoptix.bin",
        "/etc/vulkan/icd.d/nvidia_icd.x86_64.json": "/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json",
    }


@pytest.mark.parametrize(
    ("place", "options"),
    [
        pytest.param("/lib/firmware/updates", {}, id="updates"),
        pytest.param("/lib/firmware/6.8.0-45-generic", {"kernel": "6.8.0-45-generic"}, id="of the kernel's release"),
        pytest.param("/fw", {"firmware": "/fw"}, id="in the folder of the kernel's parameter"),
        pytest.param("/fw", {"firmware": f"{CONTAINER}/fw"}, id="in that folder, as the host sees it"),
    ],
)
def test_firmware_is_found_where_the_kernel_finds_it(node: Any, place: str, options: dict[str, str]) -> None:
    driver_container(node)
    node.put(f"{CONTAINER}{place}/nvidia/{V}/gsp_tu10x.bin")
    file = DriverFile(path=f"{place}/nvidia/{V}/gsp_tu10x.bin", host=f"{CONTAINER}{place}/nvidia/{V}/gsp_tu10x.bin")
    assert file in find(node, **options).files


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(
            lambda node: node.at(f"{DEBIAN}/libcuda.so.{V}").unlink(), f"/ lacks libcuda.so.{V}: the", id="no libcuda"
        ),
        pytest.param(
            lambda node: node.at(f"{DEBIAN}/libnvidia-ml.so.{V}").rename(node.at(f"{DEBIAN}/libnvidia-ml.so.575.1")),
            f"lacks libnvidia-ml.so.{V}",
            id="another libnvidia-ml",
        ),
        pytest.param(
            lambda node: node.at(f"{DEBIAN}/libcuda.so.{V}").rename(node.at(f"{DEBIAN}/libcuda.so.575.57.08")),
            f"lacks libcuda.so.{V} (it has libcuda.so.575.57.08)",
            id="another version",
        ),
        pytest.param(
            lambda node: (
                node.at(f"{DEBIAN}/libcuda.so.{V}").unlink(),
                node.put("/etc/ld.so.cache", b"glibc-ld.so.cache1.1\xff\xff\xff\xff"),
            ),
            f"lacks libcuda.so.{V}",
            id="a damaged linker's cache",
        ),
        pytest.param(
            lambda node: (
                node.at(f"{DEBIAN}/libcuda.so.{V}").unlink(),
                node.library_32(f"/usr/lib64/libcuda.so.{V}"),
            ),
            f"lacks libcuda.so.{V}",
            id="libcuda for 32-bit programs only",
        ),
    ],
)
def test_an_installation_that_is_not_whole_says_what_is_missing(
    node: Any, change: Callable[[Any], Any], told: str
) -> None:
    debian(node)
    root = FileSearch(node.root())
    change(node)
    node.put(f"{DEBIAN}/libnvidia-ml.so.1.bak")
    with pytest.raises(DriverIncomplete) as caught:
        find_driver_files(root, V)
    assert told in str(caught.value)
    assert "may still be loading" in str(caught.value)
    assert isinstance(caught.value, ClaimError)
    assert caught.value.retryable


def test_of_several_versions_the_one_that_programs_load_counts(node: Any) -> None:
    node.driver_libraries(DEBIAN)
    node.put(f"{DEBIAN}/libcuda.so.590.1")
    assert find(node, "").version == V


def test_of_several_versions_without_links_the_newest_counts(node: Any) -> None:
    node.library(DEBIAN, "libnvidia-ml", "libnvidia-ml.so.1")
    for version in ("99.1", V):
        node.put(f"{DEBIAN}/libcuda.so.{version}")
    assert find(node, "").version == V


def test_a_link_that_leads_round_in_circles_is_nothing(node: Any) -> None:
    debian(node)
    node.link(f"{DEBIAN}/libnvidia-loop.so.{V}", f"libnvidia-loop.so.{V}")
    node.link(f"{DEBIAN}/libnvidia-gone.so.{V}", "/proc/nowhere")
    node.at(f"{DEBIAN}/libnvidia-folder.so.{V}").mkdir()
    assert len(find(node).libraries) == 3


def test_this_machines_own_linkers_cache_leads_to_a_library() -> None:
    if not os.path.exists("/etc/ld.so.cache"):
        pytest.skip("this machine has no linker's cache")
    with open("/etc/ld.so.cache", "rb") as file:
        paths = find_cached(file.read(), "libc.so.6")
    assert paths
    assert all(map(is_loadable, paths))
