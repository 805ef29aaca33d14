"""A node in a folder: its driver's files, its /dev, /sys and /proc, as installers of the driver leave them."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import Any

import pytest

from cdi_claims import HOOK, LIB
from pydra_nvidia.host.driver_root import DriverRoot, find_driver_root
from pydra_nvidia.settings import Settings
from pydra_pci import Roots, Tree

VERSION = "580.105.08"
PROC_DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
235 nvidia-caps
511 nvidia-uvm

Block devices:
259 blkext
"""


def make_ld_cache(*paths: str, old: bool = False) -> bytes:
    """What ldconfig writes for these libraries, for x86-64; with `old` behind the format that came before."""
    header, entries, texts = 48, b"", b""
    start = header + 24 * len(paths)
    for path in paths:
        key, value = start + len(texts), start + len(texts) + len(os.path.basename(path)) + 1
        entries += struct.pack("<iIIIQ", 0x0303, key, value, 0, 0)
        texts += os.path.basename(path).encode() + b"\0" + path.encode() + b"\0"
    new = b"glibc-ld.so.cache1.1" + struct.pack("<II", len(paths), len(texts)) + bytes(20) + entries + texts
    before = b"ld.so-1.7.0\0" + struct.pack("<I", 2) + bytes(24)
    return before + bytes(-len(before) % 8) + new if old else new


class FakeNode:
    """A node's files. Paths are the host's; `driver` is where the driver is installed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.driver = ""
        for name in ("sys", "proc", "dev"):
            (path / name).mkdir(parents=True)
        self.put("/proc/devices", PROC_DEVICES.encode())
        self.put("/proc/sys/kernel/osrelease", b"6.8.0-45-generic\n")
        roots = Roots(host=str(path), sys=str(path / "sys"), proc=str(path / "proc"))
        self.tree = Tree(roots)

    def at(self, path: str) -> Path:
        return self.path / path.lstrip("/")

    def put(self, path: str, content: bytes = b"", mode: int = 0o644) -> None:
        file = self.at(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(mode)

    def link(self, path: str, target: str) -> None:
        self.at(path).parent.mkdir(parents=True, exist_ok=True)
        self.at(path).symlink_to(target)

    def socket(self, path: str) -> None:
        self.at(path).parent.mkdir(parents=True, exist_ok=True)
        os.mknod(self.at(path), stat.S_IFSOCK | 0o600)

    def library(self, folder: str, stem: str, soname: str = "", version: str = VERSION) -> None:
        """As a package installs it, with the links that ldconfig and the package make."""
        file, folder = f"{stem}.so.{version}", self.driver + folder
        self.put(f"{folder}/{file}")
        if soname:
            self.link(f"{folder}/{soname}", file)

    def driver_libraries(self, folder: str, version: str = VERSION) -> None:
        self.library(folder, "libcuda", "libcuda.so.1", version)
        self.library(folder, "libnvidia-ml", "libnvidia-ml.so.1", version)

    def devices(self, *names: str, root: str = "") -> None:
        """Files that stand for device nodes: the runtime makes the nodes from their numbers."""
        for name in names:
            self.put(f"{root}/dev/{name}")

    def partition(self, gpu: int, instance: int, compute: int, minors: tuple[int, int]) -> None:
        place = f"/proc/driver/nvidia/capabilities/gpu{gpu}/mig/gi{instance}"
        for path, minor in ((f"{place}/access", minors[0]), (f"{place}/ci{compute}/access", minors[1])):
            self.put(path, f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n".encode())

    def ld_cache(self, *paths: str, old: bool = False) -> None:
        self.put(f"{self.driver}/etc/ld.so.cache", make_ld_cache(*paths, old=old))

    def library_32(self, path: str) -> None:
        self.put(path, b"\x7fELF\x01\x01\x01" + bytes(57))

    def root(self, driver_root: str = "") -> DriverRoot:
        return find_driver_root(self.tree, Settings(driver_root=driver_root))


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "node")


@pytest.fixture
def machine(node: Any) -> Any:
    """Three GPUs; the second has a partition. Nothing changed lately."""
    node.driver_libraries(LIB)
    node.put("/usr/bin/nvidia-smi", b"#!", 0o755)
    node.put(HOOK, b"#!", 0o755)
    node.devices("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidia2")
    node.partition(1, 7, 0, (201, 202))
    return node
