"""Reads and sets what ethtool can, by ioctl: pyroute2 has features, and private flags are one word.

Source: linux/ethtool.h.
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Mapping
from typing import Any

from pyroute2.ethtool.ioctl import EthtoolError, EthtoolValue, IoctlEthtool

from pydra_net.kernel import KernelRefused
from pydra_net.network_change_types import SetEthtool
from pydra_net.network_types import Ethtool, Feature

_GET_FLAGS, _SET_FLAGS = 0x27, 0x28
_PRIVATE_FLAGS = 2
"""The set of their names."""


def read_ethtool(index: int) -> Ethtool:
    """What can be set of a link of the thread's namespace; nothing, if it has no such settings, or is gone."""
    try:
        with _Device(index) as device:
            return Ethtool(features=device.read_features(), private_flags=device.read_flags())
    except (OSError, EthtoolError):
        return Ethtool()


def set_ethtool(operation: SetEthtool) -> None:
    """Set what is not so yet, and check that it is. Raises KernelRefused, OSError."""
    try:
        with _Device(operation.index) as device:
            device.set_features(operation.features)
            device.set_flags(operation.private_flags)
            now = {**{name: one.enabled for name, one in device.read_features().items()}, **device.read_flags()}
    except EthtoolError as error:
        raise KernelRefused("its driver does not support that") from error
    for name, wanted in {**operation.features, **operation.private_flags}.items():
        if now.get(name) != wanted:
            raise KernelRefused(f"{name} stays {'off' if wanted else 'on'}")


class _Device(IoctlEthtool):
    """A link, by its index."""

    def __init__(self, index: int) -> None:
        super().__init__(socket.if_indextoname(index))  # type: ignore[no-untyped-call]

    def __enter__(self) -> _Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()  # type: ignore[no-untyped-call]

    def read_features(self) -> dict[str, Feature]:
        found: Any = self.get_features()  # type: ignore[no-untyped-call]
        return {
            name: Feature(enabled=enabled, fixed=not available or found.is_never_changed(name))
            for name, enabled, available, *_ in found
            if name
        }

    def set_features(self, wanted: Mapping[str, bool]) -> None:
        found: Any = self.get_features()  # type: ignore[no-untyped-call]
        changes = {name: value for name, value in wanted.items() if name in found and found[name] != value}
        if changes:
            for name, value in changes.items():
                found[name] = value
            super().set_features(found)  # type: ignore[no-untyped-call]

    def read_flags(self) -> dict[str, bool]:
        names = self._list_flags()
        word = self._call(_GET_FLAGS, 0) if names else 0
        return {name: bool(word >> place & 1) for place, name in enumerate(names)}

    def set_flags(self, wanted: Mapping[str, bool]) -> None:
        if not wanted:
            return
        before = word = self._call(_GET_FLAGS, 0)
        for place, name in enumerate(self._list_flags()):
            if name in wanted:
                word = word | 1 << place if wanted[name] else word & ~(1 << place)
        if word != before:
            self._call(_SET_FLAGS, word)

    def _list_flags(self) -> list[str]:
        if not self.get_stringset_length(_PRIVATE_FLAGS):  # type: ignore[no-untyped-call]
            return []
        names: list[str] = self.get_stringset(_PRIVATE_FLAGS)  # type: ignore[no-untyped-call]
        return names

    def _call(self, command: int, word: int) -> int:
        value = EthtoolValue(cmd=command, data=word)
        request: Any = self.ifreq
        request.value = ctypes.pointer(value)
        self.ioctl()  # type: ignore[no-untyped-call]
        return int(value.data)
