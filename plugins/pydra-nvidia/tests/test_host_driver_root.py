"""Finding the driver's installation in trees as hosts, driver containers and installers leave them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_nvidia.host.driver_programs import find_program
from pydra_nvidia.host.driver_root import DriverMissing, find_driver_root, find_library
from pydra_nvidia.host.linker_cache import find_cached
from pydra_nvidia.host.rooted_paths import resolve
from pydra_nvidia.settings import Settings
from pydra_pci import Roots, Tree

ELF64, ELF32 = b"\x7fELF\x02", b"\x7fELF\x01"
MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U22)  Wed\nGCC version:"
)


def node(tmp_path: Path) -> Tree:
    return Tree(Roots(host=str(tmp_path), sys=str(tmp_path / "sys"), proc=str(tmp_path / "proc")))


def install(tmp_path: Path, root: str, directory: str, version: str = "580.105.08", content: bytes = ELF64) -> None:
    folder = tmp_path / root.strip("/") / directory.strip("/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"libnvidia-ml.so.{version}").write_bytes(content)
    link = folder / "libnvidia-ml.so.1"
    link.unlink(missing_ok=True)
    link.symlink_to(f"libnvidia-ml.so.{version}")


def load_module(tmp_path: Path, version: str) -> None:
    folder = tmp_path / "proc/driver/nvidia"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "version").write_text(MODULE.format(version))


@pytest.mark.parametrize(
    ("root", "directory"),
    [
        ("/", "/usr/lib64"),
        ("/", "/usr/lib/x86_64-linux-gnu"),
        ("/", "/usr/lib/aarch64-linux-gnu"),
        ("/", "/usr/lib/x86_64-linux-gnu/nvidia/current"),
        ("/run/nvidia/driver", "/usr/lib/x86_64-linux-gnu"),
        ("/run/nvidia/driver", "/usr/lib64"),
        ("/home/kubernetes/bin/nvidia", "/lib64"),
        ("/usr/local/nvidia", "/lib64"),
        ("/usr/local/nvidia", "/lib"),
    ],
)
def test_the_driver_is_found_where_it_is_usually_installed(tmp_path: Path, root: str, directory: str) -> None:
    install(tmp_path, root, directory)
    found = find_driver_root(node(tmp_path), Settings())
    assert (found.host_path, found.library_dir, found.version) == (root, directory, "580.105.08")
    here = Path(found.nvml_library)
    assert here.read_bytes() == ELF64
    assert here.name == "libnvidia-ml.so.580.105.08"
    inside = f"{directory}/{here.name}"
    assert Path(found.path_here(inside)) == here
    assert found.path_on_host(inside) == (inside if root == "/" else root + inside)


def test_of_two_installations_the_one_that_fits_the_loaded_module_is_taken(tmp_path: Path) -> None:
    install(tmp_path, "/", "/usr/lib64", "535.54.03")
    install(tmp_path, "/run/nvidia/driver", "/usr/lib64", "580.105.08")
    assert find_driver_root(node(tmp_path), Settings()).host_path == "/"
    load_module(tmp_path, "580.105.08")
    assert find_driver_root(node(tmp_path), Settings()).host_path == "/run/nvidia/driver"
    load_module(tmp_path, "570.1.2")
    assert find_driver_root(node(tmp_path), Settings()).host_path == "/"


def test_the_setting_is_taken_alone(tmp_path: Path) -> None:
    install(tmp_path, "/", "/usr/lib64")
    install(tmp_path, "/opt/driver", "/usr/lib64", "570.1.2")
    found = find_driver_root(node(tmp_path), Settings(driver_root="/opt/driver"))
    assert (found.host_path, found.version) == ("/opt/driver", "570.1.2")
    with pytest.raises(DriverMissing, match=r"is not below /srv.*PYDRA_NVIDIA_DRIVER_ROOT names another root"):
        find_driver_root(node(tmp_path), Settings(driver_root="/srv"))


def test_a_missing_driver_is_reported_with_all_places_and_the_setting(tmp_path: Path) -> None:
    with pytest.raises(DriverMissing) as caught:
        find_driver_root(node(tmp_path), Settings())
    for words in ("libnvidia-ml.so.1", "/run/nvidia/driver", "/usr/lib64", "PYDRA_NVIDIA_DRIVER_ROOT", str(tmp_path)):
        assert words in str(caught.value)
    assert caught.value.retryable


def test_a_library_of_32_bits_is_passed_over(tmp_path: Path) -> None:
    install(tmp_path, "/", "/lib", content=ELF32)
    with pytest.raises(DriverMissing):
        find_driver_root(node(tmp_path), Settings())
    install(tmp_path, "/", "/usr/lib64")
    assert find_driver_root(node(tmp_path), Settings()).library_dir == "/usr/lib64"


def test_links_lead_inside_the_drivers_root(tmp_path: Path) -> None:
    root = tmp_path / "run/nvidia/driver"
    install(tmp_path, "/run/nvidia/driver", "/opt/nvidia")
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/nvidia").symlink_to("/etc")  # where a link that escapes would end
    (root / "usr").mkdir()
    (root / "usr/lib64").symlink_to("/opt/nvidia")
    found = find_driver_root(node(tmp_path), Settings())
    assert found.library_dir == "/opt/nvidia"
    assert found.nvml_library == str(root / "opt/nvidia/libnvidia-ml.so.580.105.08")


def test_the_devices_are_in_the_driver_containers_dev_only_when_they_are_there(tmp_path: Path) -> None:
    install(tmp_path, "/run/nvidia/driver", "/usr/lib64")
    tree = node(tmp_path)
    (tmp_path / "dev").mkdir()
    assert find_driver_root(tree, Settings()).dev_root == "/"
    (tmp_path / "run/nvidia/driver/dev").mkdir()
    assert find_driver_root(tree, Settings()).dev_root == "/run/nvidia/driver"
    (tmp_path / "dev/nvidiactl").touch()
    assert find_driver_root(tree, Settings()).dev_root == "/"
    (tmp_path / "run/nvidia/driver/dev/nvidiactl").touch()
    assert find_driver_root(tree, Settings()).dev_root == "/run/nvidia/driver"
    assert find_driver_root(tree, Settings(dev_root="/elsewhere")).dev_root == "/elsewhere"


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/a/file", "/a/file"),
        ("a/./file", "/a/file"),
        ("/absolute", "/a/file"),
        ("/relative/file", "/a/file"),
        ("/up", "/a/file"),
        ("/a/../../../a/file", "/a/file"),
        ("/chain", "/a/file"),
        ("/", "/"),
        ("/nothing", None),
        ("/dangling", None),
        ("/loop", None),
        ("/a/file/below", None),
    ],
)
def test_a_path_is_resolved_as_after_a_chroot(tmp_path: Path, path: str, where: str | None) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").touch()
    for name, target in {
        "absolute": "/a/file",
        "relative": "./a",
        "up": "../../../../../a/file",
        "chain": "up",
        "dangling": "/etc/passwd",
        "loop": "loop",
    }.items():
        (tmp_path / name).symlink_to(target)
    assert resolve(str(tmp_path), path) == where


def test_a_library_that_only_the_linkers_cache_knows_is_found(tmp_path: Path) -> None:
    install(tmp_path, "/", "/opt/strange/lib")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(
        cache(
            ("libnvidia-ml.so.1", "/lib32/libnvidia-ml.so.1", 0x0803),
            ("libnvidia-ml.so.1", "/opt/strange/lib/libnvidia-ml.so.1", 0x0303),
        )
    )
    assert find_library(str(tmp_path), "libnvidia-ml.so.1") == "/opt/strange/lib/libnvidia-ml.so.580.105.08"
    assert find_driver_root(node(tmp_path), Settings()).library_dir == "/opt/strange/lib"


def test_programs_are_found_beside_libraries_that_the_hosts_linker_knows(tmp_path: Path) -> None:
    install(tmp_path, "/usr/local/nvidia", "/lib64")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(
        cache(("libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1", 0x0303))
    )
    beside, packages = "/usr/local/nvidia/bin/nvidia-smi", "/usr/bin/nvidia-imex-ctl"
    for path in (beside, "/usr/bin/nvidia-smi", packages):
        place = tmp_path / path.strip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch(0o755)
    root = find_driver_root(node(tmp_path), Settings())
    assert [find_program(root, name).inside for name in ("nvidia-smi", "nvidia-imex-ctl")] == [beside, packages]


@pytest.mark.parametrize("front", [b"", b"ld.so-1.7.0\0" + struct.pack("<I", 0)], ids=["new", "behind the old format"])
def test_the_linkers_cache_is_read_in_both_layouts(front: bytes) -> None:
    data = front + cache(("libcuda.so.1", "/a/libcuda.so.1", 0x0303), ("libcuda.so", "/a/libcuda.so", 0x0303))
    assert find_cached(data, "libcuda.so.1") == ("/a/libcuda.so.1",)
    assert find_cached(data, "libcuda") == ()


def test_a_truncated_cache_has_nothing() -> None:
    data = cache(("libcuda.so.1", "/a/libcuda.so.1", 0x0303))
    assert find_cached(data, "libcuda.so.1") == ("/a/libcuda.so.1",)
    assert {find_cached(data[:length], "libcuda.so.1") for length in range(len(data))} == {()}


@pytest.mark.fuzz
@given(st.binary(max_size=200), st.binary(max_size=64))
def test_whatever_a_cache_holds_is_no_error(front: bytes, rest: bytes) -> None:
    for data in (front, front + b"glibc-ld.so.cache1.1" + rest, front + cache(("a", "/a", 0x0303))[:-2] + rest):
        assert isinstance(find_cached(data, "a"), tuple)


def cache(*entries: tuple[str, str, int]) -> bytes:
    """A cache as ldconfig writes it; each entry has a name, a path and flags."""
    strings = b""
    table = b""
    start = 48 + 24 * len(entries)
    for name, path, flags in entries:
        key = start + len(strings)
        strings += name.encode() + b"\0"
        value = start + len(strings)
        strings += path.encode() + b"\0"
        table += struct.pack("<iIIIQ", flags, key, value, 0, 0)
    return struct.pack("<20sII5I", b"glibc-ld.so.cache1.1", len(entries), len(strings), 2, 0, 0, 0, 0) + table + strings
