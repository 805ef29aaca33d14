"""The positions of GPUs on the baseboard, which NVML tells only while its driver has them.

They belong to the addresses, so those of functions that are bound for a guest meanwhile are kept, in a file: what is
published of a function must not depend on the driver that it is bound to. A reboot empties the file's directory.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping

import msgspec

from pydra_nvidia.atomic_files import replace_file
from pydra_nvidia.hardware_types import Gpu

FILE = "baseboard.json"
"""In the state directory."""

_log = logging.getLogger(__name__)


class Baseboard:
    """The positions by PCI address, in the file at `path`; what cannot be read or written costs what it tells."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._modules: Mapping[str, int] | None = None

    def update(self, gpus: Iterable[Gpu]) -> Mapping[str, int]:
        """All that are known, with those of these GPUs. Blocks."""
        before = self._read() if self._modules is None else self._modules
        self._modules = {**before, **{gpu.pci: gpu.module for gpu in gpus if gpu.module}}
        if self._modules != before:
            self._write(self._modules)
        return self._modules

    def _read(self) -> Mapping[str, int]:
        try:
            with open(self._path, "rb") as file:
                return msgspec.json.decode(file.read(), type=dict[str, int])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("the positions of GPUs on the baseboard cannot be read from %s: %s", self._path, error)
            return {}

    def _write(self, modules: Mapping[str, int]) -> None:
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            replace_file(self._path, msgspec.json.encode(modules))
        except OSError as error:
            _log.warning("the positions of GPUs on the baseboard cannot be kept in %s: %s", self._path, error)
