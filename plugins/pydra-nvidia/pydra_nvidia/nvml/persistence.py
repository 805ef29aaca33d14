"""The persistence mode of a GPU: read, let go of, and restored; by nvidia-persistenced where one runs, else by NVML."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from pydra_nvidia.host.pci import DRIVER
from pydra_nvidia.host.persistenced import Persistenced, PersistenceFailed
from pydra_nvidia.nvml.errors import STALE, NvmlError
from pydra_nvidia.nvml.gpus import Use, read_use
from pydra_nvidia.nvml.pynvml_library import Nvml
from pydra_nvidia.nvml.session import NvmlSession
from pydra_pci import Tree, read_driver

_log = logging.getLogger(__name__)


def read_persistence(nvml: Nvml, handle: Any, *, subject: str) -> bool | None:
    """Whether the driver keeps the GPU ready while nobody uses it."""
    mode = nvml.look("nvmlDeviceGetPersistenceMode", handle, subject=subject)
    return None if mode is None else mode == 1


def set_persistence(nvml: Nvml, address: str, *, on: bool) -> None:
    """Let the driver keep the GPU ready while nobody uses it, or not. Raises NvmlError."""
    handle = nvml.call("nvmlDeviceGetHandleByPciBusId", address, subject=address)
    nvml.ask("nvmlDeviceSetPersistenceMode", handle, int(on), subject=address)


class PersistenceMode:
    """GPUs are named by their PCI addresses."""

    def __init__(self, tree: Tree, session: NvmlSession, persistenced: Persistenced) -> None:
        self._tree = tree
        self._session = session
        self._persistenced = persistenced

    async def read_use(self, address: str) -> Use | None:
        """How the GPU is used; None where NVML cannot tell, for want of a driver or its library."""
        try:
            return await self._session.run(lambda nvml: read_use(nvml, address))
        except NvmlError as error:
            if error.code in STALE:
                return None
            raise

    async def release(self, address: str) -> bool:
        """Let nothing keep the GPU ready; whether something did. Raises NvmlError, PersistenceFailed."""
        use = await self.read_use(address)
        kept = use is not None and use.persistent
        try:
            kept = await asyncio.to_thread(self._tell_daemon, address) or kept
            if use is not None and use.persistent:
                await self._session.run(lambda nvml: set_persistence(nvml, address, on=False))
        except BaseException:
            if kept:
                await self.restore(address)
            raise
        return kept

    async def restore(self, address: str) -> None:
        """Keep the GPU ready again, if the driver has it. One that cannot be is given back all the same.

        Raises InMaintenance.
        """
        if await asyncio.to_thread(read_driver, self._tree, address) != DRIVER:
            return
        try:
            if not await asyncio.to_thread(self._persistenced.keep, address, on=True):
                await self._session.run(lambda nvml: set_persistence(nvml, address, on=True))
        except (NvmlError, PersistenceFailed) as error:
            text = "the persistence mode of GPU %s stays off: %s; switch it on again: nvidia-smi -i %s -pm 1"
            _log.warning(text, address, error, address)

    def _tell_daemon(self, address: str) -> bool:
        """Have nvidia-persistenced release the GPU; whether it kept it."""
        return self._persistenced.keeps(address) and self._persistenced.keep(address, on=False)
