#!/usr/bin/env python3
"""Run a command in a virtual machine with another kernel, such as tests that need links which this kernel lacks.

    apt-get download linux-image-6.1.0-56-amd64 && dpkg-deb -x linux-image-*.deb kernel
    hack/vm.py --kernel kernel -- .venv/bin/pytest -q plugins/pydra-net

Debian's kernels from 7 on are in three packages, linux-base-, linux-binary- and linux-modules-VERSION: unpack all of
them there.

The machine has this machine's files, read-only below a layer in its memory, so the command has the same paths; what it
writes is lost. It has two network cards with virtual functions (igb), connected with each other, and no other network.
Needs QEMU 8 or newer, kmod, a static busybox, and /dev/kvm: with `--accel tcg` it works without, and tests need minutes
(`TEST_BLOCKED_SECONDS=60 pytest --timeout=0`). Tests of cards and of RDMA need drivers:
`-- sh -c 'modprobe --all igb igbvf rdma_rxe; ...'`. Exits with the command's status.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t devtmpfs none /dev
exec >/dev/console 2>&1
hostname vm
for module in {names}; do insmod /modules/$module; done
mkdir -p /below /layer
mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=loose,ro files /below
mount -t tmpfs none /layer
mkdir -p /layer/new /layer/work /layer/root
mount -t overlay -o lowerdir=/below,upperdir=/layer/new,workdir=/layer/work none /layer/root
cd /layer/root
mount -t proc none proc
mount -t sysfs none sys
mount -t devtmpfs none dev
mkdir -p dev/pts dev/shm
mount -t devpts none dev/pts
mkdir -p lib/modules/{version}
mount --bind /below{modules} lib/modules/{version}
for place in dev/shm tmp run; do mount -t tmpfs none $place; done
mount -t 9p -o trans=virtio,version=9p2000.L status mnt
exec switch_root . /bin/sh -c {command}
"""


def main() -> int:
    """Start the machine, and return the status of the command in it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kernel", type=Path, required=True, help="the directory that its package was unpacked to")
    parser.add_argument("--accel", default="kvm", help="tcg, where KVM is not available: five to ten times slower")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds until the machine is ended")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    busybox = shutil.which("busybox")
    if busybox is None:
        parser.error("found no busybox; install busybox-static")
    tree = arguments.kernel.resolve()
    modules = next(place for root in ("lib", "usr/lib") for place in tree.glob(f"{root}/modules/*"))
    subprocess.run(["depmod", "-b", modules.parents[2], modules.name], check=True)
    kernel = next(one for one in (modules / "vmlinuz", tree / f"boot/vmlinuz-{modules.name}") if one.exists())
    with tempfile.TemporaryDirectory() as place:
        image, status = Path(place, "initramfs"), Path(place, "status")
        status.mkdir()
        image.write_bytes(_build_image(modules, Path(busybox), arguments.command))
        try:
            subprocess.run(
                _build_command(kernel, image, status, arguments.accel),
                check=True,
                timeout=arguments.timeout,
                stdin=subprocess.DEVNULL,
            )
            return int((status / "rc").read_text())
        except (subprocess.TimeoutExpired, FileNotFoundError) as error:
            print(f"the machine did not say how the command ended: {error}", file=sys.stderr)
            return 1


def _build_command(kernel: Path, image: Path, status: Path, accel: str) -> list[str]:
    cards = [
        one
        for number in range(2)
        for one in (
            *("-netdev", f"hubport,id=net{number},hubid=0"),
            *("-device", f"pcie-root-port,id=port{number},slot={number},chassis={number}"),
            *("-device", f"igb,netdev=net{number},bus=port{number},romfile="),
        )
    ]
    return [
        "qemu-system-x86_64",
        *("-machine", "q35", "-accel", accel, "-cpu", "max", "-smp", str(os.cpu_count()), "-m", "3G"),
        *("-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio"),
        *("-kernel", str(kernel), "-initrd", str(image), "-append", "console=ttyS0 quiet panic=-1"),
        *("-virtfs", "local,path=/,mount_tag=files,security_model=none,readonly=on,multidevs=remap"),
        *("-virtfs", f"local,path={status},mount_tag=status,security_model=none"),
        *cards,
    ]


def _build_image(modules: Path, busybox: Path, command: list[str]) -> bytes:
    """The first file system: what is needed to reach the others."""
    found: dict[str, bytes] = {}
    for name in BOOT_MODULES:
        shown = ["modprobe", "-d", str(modules.parents[2]), "--set-version", modules.name, "--show-depends", name]
        lines = subprocess.run(shown, check=True, capture_output=True, text=True).stdout.splitlines()
        paths = (Path(line.split()[1]) for line in lines if line.startswith("insmod"))
        found.update((path.name, _read_module(path)) for path in paths)
    inner = f"cd {shlex.quote(os.getcwd())}; PATH={shlex.quote(os.environ['PATH'])} {shlex.join(command)}"
    inner += f"; echo $? >/mnt/rc; exec {busybox} poweroff -f"
    init = INIT.format(names=" ".join(found), modules=modules, version=modules.name, command=shlex.quote(inner))
    files = {"init": init.encode(), "bin/busybox": busybox.read_bytes()}
    files |= {f"modules/{name}": content for name, content in found.items()}
    entries = [_build_entry(name, 0o040755, b"") for name in ("bin", "dev", "modules", "proc")]
    entries += [_build_entry(name, 0o100755, content) for name, content in files.items()]
    return b"".join((*entries, _build_entry("TRAILER!!!", 0, b"")))


def _read_module(path: Path) -> bytes:
    """Its content, which the busybox of the first file system can only load as it is."""
    program = {".xz": "xz", ".zst": "zstd"}.get(path.suffix)
    if program is None:
        return path.read_bytes()
    return subprocess.run([program, "-dc", path], check=True, capture_output=True).stdout


def _build_entry(name: str, mode: int, content: bytes) -> bytes:
    """A file of a cpio archive. Source: Linux, Documentation/driver-api/early-userspace/buffer-format.rst."""
    encoded = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
    return _pad(head) + _pad(content)


def _pad(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)


if __name__ == "__main__":
    sys.exit(main())
