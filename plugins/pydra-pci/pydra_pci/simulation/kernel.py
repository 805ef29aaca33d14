"""The kernel's part in binding drivers to PCI functions, over a tree of files: it does what a write asks for.

    kernel = PciKernel(roots.sys, f"{roots.host}/dev", {"snd_hda_intel": "pci:v*d*sv*sd*bc04sc03i*"}, listener)
    tree = Tree(roots, wrote=kernel.wrote)  # Tree.write now answers as the kernel would

Known writes, below /sys/bus/pci: `devices/<address>/driver_override`, `devices/<address>/driver/unbind`,
`drivers/<driver>/bind`, `drivers/<driver>/unbind`, `drivers_probe`. All others are left as they are. What the kernel
refuses raises OSError with its errno. The tree is the whole memory, so another process goes on with it: a function is
bound to what its `driver` links to. Links, vfio's entries in /sys and nodes in /dev come and go with it.

The tree has for each function an entry in bus/pci/devices with `modalias`, and with `iommu_group` where there is an
IOMMU; for each loaded driver a directory in bus/pci/drivers; /dev/iommu where there is iommufd. `simulation.functions`
makes them.

Source: drivers/base/bus.c, drivers/base/dd.c, drivers/pci/pci-driver.c, drivers/vfio of Linux 6.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase

from pydra_pci.filesystem import Roots, Tree
from pydra_pci.functions import function_path, is_vfio, read_attribute, read_driver, read_iommu_group, read_override
from pydra_pci.simulation.files import change_files, device

VFIO, VFIO_DEVICE = 242, 243
"""Major numbers of the nodes of groups, and of functions."""

PAGE = 4096


class Listener:
    """The hardware that is bound to drivers; to this one nothing matters."""

    def users(self, address: str) -> Sequence[int]:
        """The processes that have the function's device open. The real kernel waits for them; here they are EBUSY."""
        return ()

    def moved(self, address: str, driver: str) -> None:
        """The function has this driver now, empty for none."""

    def overridden(self, address: str, driver: str) -> None:
        """Only this driver may have the function from now on; empty: any that fits."""


class PciKernel:
    """The kernel of the machine whose /sys and /dev these directories are.

    `ids` are patterns of the modalias of what drivers take of themselves. Those for passthrough take what their name is
    written over for, and nothing else.
    """

    def __init__(self, sys: str, dev: str, ids: Mapping[str, str], listener: Listener | None = None) -> None:
        self._tree = Tree(Roots(sys=sys, dev=dev))
        self._sys = sys
        self._dev = dev
        self._ids = ids
        self._pci = os.path.join(sys, "bus/pci")
        self._listener = listener or Listener()
        self._lock = threading.RLock()

    def wrote(self, path: str, text: str) -> None:
        """Do what was written, one write after the other; raises OSError."""
        with self._lock:
            self._do(os.path.relpath(path, self._pci).split("/"), path, text)

    def _do(self, name: Sequence[str], path: str, text: str) -> None:
        word = text.strip()
        match name:
            case ["devices", address, "driver_override"]:
                self._override(address, text, path)
            case ["devices", address, "driver", "unbind"]:
                _write(path, "")
                self._unbind(word, self.driver(address))
            case ["drivers", driver, "unbind"]:
                _write(path, "")
                self._unbind(word, driver)
            case ["drivers", driver, "bind"]:
                _write(path, "")
                self._bind(word, driver)
            case ["drivers_probe"]:
                _write(path, "")
                self.probe(word)

    def driver(self, address: str) -> str:
        """The driver that has the function, empty for none."""
        return read_driver(self._tree, address)

    def probe(self, address: str) -> None:
        """Find a driver for a function that has none: it came, or a driver did. None fitting is fine."""
        if not os.path.isdir(function_path(self._tree, address)):
            raise OSError(errno.EINVAL, "no such function")
        loaded = sorted(os.listdir(os.path.join(self._pci, "drivers")))
        for driver in loaded:
            if not self.driver(address) and self._fits(address, driver):
                with suppress(OSError):  # what a driver says of it is the kernel log's
                    self._bind(address, driver)

    def load(self, driver: str) -> None:
        """Load a driver, which takes what fits and is free."""
        folder = os.path.join(self._pci, "drivers", driver)
        for name in ("bind", "unbind"):
            _write(os.path.join(folder, name), "")
        for address in sorted(os.listdir(os.path.join(self._pci, "devices"))):
            self.probe(address)

    def _override(self, address: str, text: str, path: str) -> None:
        if len(text) >= PAGE:
            raise OSError(errno.EINVAL, "too long for a driver's name")
        word = text.split("\n", 1)[0]
        _write(path, f"{word or '(null)'}\n")
        self._listener.overridden(address, word)

    def _bind(self, address: str, driver: str) -> None:
        if not os.path.isdir(function_path(self._tree, address)) or not self._fits(address, driver):
            raise OSError(errno.ENODEV, "no such function, or not for this driver")
        if self.driver(address):
            raise OSError(errno.EBUSY, "another driver has it")
        if is_vfio(driver):
            self._refuse_vfio(address)
        place, folder = self._real(address), os.path.join(self._pci, "drivers", driver)
        os.symlink(os.path.relpath(folder, place), f"{place}/driver")
        os.symlink(os.path.relpath(place, folder), f"{folder}/{address}")
        if is_vfio(driver):
            self._open_vfio(address)
        self._listener.moved(address, driver)

    def _unbind(self, address: str, driver: str) -> None:
        if not driver or self.driver(address) != driver:
            raise OSError(errno.ENODEV, "this driver does not have it")
        if self._listener.users(address):
            raise OSError(errno.EBUSY, "in use: the kernel would wait until it is not")
        if is_vfio(driver):
            self._close_vfio(address)
        os.unlink(os.path.join(self._pci, "drivers", driver, address))
        os.unlink(function_path(self._tree, address, "driver"))
        if is_vfio(driver):
            self._close_group(address)
        self._listener.moved(address, "")

    def _fits(self, address: str, driver: str) -> bool:
        if override := read_override(self._tree, address):
            return override == driver
        return driver in self._ids and fnmatchcase(read_attribute(self._tree, address, "modalias"), self._ids[driver])

    def _refuse_vfio(self, address: str) -> None:
        if not read_iommu_group(self._tree, address):
            raise OSError(errno.EINVAL, "in no IOMMU group")
        if read_attribute(self._tree, address, "sriov_numvfs") not in ("", "0"):
            raise OSError(errno.EBUSY, "virtual functions of it exist")

    def _open_vfio(self, address: str) -> None:
        group, own = read_iommu_group(self._tree, address), self._free_name()
        _write(os.path.join(self._sys, "class/vfio", group, "dev"), f"{VFIO}:{group}\n")
        change_files(self._dev, {}, {f"vfio/{group}": device()})
        place = os.path.join(self._real(address), "vfio-dev", own)
        _write(os.path.join(place, "dev"), f"{VFIO_DEVICE}:{own.removeprefix('vfio')}\n")
        entry = os.path.join(self._sys, "class/vfio-dev", own)
        os.makedirs(os.path.dirname(entry), exist_ok=True)
        os.symlink(os.path.relpath(place, os.path.dirname(entry)), entry)
        if os.path.exists(os.path.join(self._dev, "iommu")):
            change_files(self._dev, {}, {f"vfio/devices/{own}": device()})

    def _close_vfio(self, address: str) -> None:
        folder = function_path(self._tree, address, "vfio-dev")
        for own in os.listdir(folder):
            change_files(self._dev, {f"vfio/devices/{own}": device()}, {})
            os.unlink(os.path.join(self._sys, "class/vfio-dev", own))
        shutil.rmtree(folder)

    def _close_group(self, address: str) -> None:
        group = read_iommu_group(self._tree, address)
        members = os.listdir(os.path.join(self._sys, "kernel/iommu_groups", group, "devices"))
        if not any(is_vfio(self.driver(member)) for member in members):
            change_files(self._dev, {f"vfio/{group}": device()}, {})
            shutil.rmtree(os.path.join(self._sys, "class/vfio", group))

    def _free_name(self) -> str:
        folder = os.path.join(self._sys, "class/vfio-dev")
        used = os.listdir(folder) if os.path.isdir(folder) else []
        return next(name for number in range(4096) if (name := f"vfio{number}") not in used)

    def _real(self, address: str) -> str:
        return os.path.realpath(function_path(self._tree, address))


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
