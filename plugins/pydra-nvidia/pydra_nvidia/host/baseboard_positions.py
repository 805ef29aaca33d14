"""The positions of GPUs on the baseboard, which NVML reports only while its driver has them.

They belong to the addresses, so those of functions that are bound for a guest meanwhile are kept, in a file: what is
published of a function must not depend on the driver that it is bound to. A reboot empties the file's directory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from pydra_nvidia.atomic_files import StateFile
from pydra_nvidia.hardware_types import Gpu

FILE = "baseboard.json"
"""In the state directory."""

_log = logging.getLogger(__name__)


class Baseboard:
    """The positions by PCI address, in the file at `path`; what cannot be read or written costs what it reports."""

    def __init__(self, path: str) -> None:
        self._file = StateFile(path, dict[str, int], "the positions of GPUs on the baseboard", _log.warning)
        self._modules: dict[str, int] | None = None

    def update(self, gpus: Iterable[Gpu]) -> Mapping[str, int]:
        """All that are known, with those of these GPUs. Blocks."""
        before = (self._file.read() or {}) if self._modules is None else self._modules
        self._modules = {**before, **{gpu.pci: gpu.module for gpu in gpus if gpu.module}}
        if self._modules != before:
            self._file.write(self._modules)
        return self._modules
