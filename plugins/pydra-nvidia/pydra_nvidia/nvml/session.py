"""The one session with NVML: opened when first needed, reopened when the driver was replaced, one call at a time.

Concurrent calls make NVML slow (10 s for a handle was seen) and initialising it for each costs more than the call,
so there is one session with one lock. Work runs in a thread; a work that hangs keeps the lock, and the agent, which
watches the deadline of every call, replaces the process. Those who wait for it meanwhile give up when they are not
waited for any more.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from pydra_nvidia.nvml.errors import STALE, NvmlError
from pydra_nvidia.nvml.maintenance_gate import Gate
from pydra_nvidia.nvml.pynvml_library import Nvml
from pydra_nvidia.waiting import in_thread, turn

T = TypeVar("T")

INIT_NO_GPUS = 1
"""nvmlInitWithFlags: succeed although no GPU is left, as when all are bound to vfio-pci."""


class NvmlSession:
    """`load` returns the vendor's module, with its library chosen but not initialised; it may raise NvmlError.

    While the `gate` is closed no session begins; it is for others to end one then.
    """

    def __init__(self, load: Callable[[], ModuleType], gate: Gate | None = None) -> None:
        self._load = load
        self._gate = gate
        self._lock = threading.Lock()
        self._nvml: Nvml | None = None
        self._before_close: list[Callable[[], None]] = []
        self.generation = 0

    def before_close(self, release: Callable[[], None]) -> None:
        """Call `release` before each end of the session, within its lock, to release what NVML has for the caller."""
        self._before_close.append(release)

    async def run(self, work: Callable[[Nvml], T], *, patience: float = float("inf")) -> T:
        """`work` in a thread, alone with NVML, after waiting for others for at most `patience` seconds.

        Raises what it raises; NvmlError if no session can be opened, InMaintenance if none may be opened,
        Busy when it got no turn.
        """
        return await in_thread(self.run_here, work, patience=patience)

    def run_here(self, work: Callable[[Nvml], T], *, patience: float = float("inf")) -> T:
        """The same in this thread, which may be blocked for long."""
        with turn(self._lock, "NVML", patience=patience):
            nvml = self._open()
            try:
                return work(nvml)
            except NvmlError as error:
                if error.code in STALE:
                    self._close()
                raise

    async def run_closed(self, work: Callable[[], T]) -> T:
        """`work` in a thread, with the session ended, and nobody able to open it before it returns.

        The driver lets go of a GPU only when no process has it open, and a session keeps open what it was asked about.
        """
        return await in_thread(self._run_closed, work)

    def _run_closed(self, work: Callable[[], T]) -> T:
        with turn(self._lock, "NVML"):
            self._close()
            return work()

    @property
    def is_open(self) -> bool:
        """Whether there is a session, and this process has GPUs open by it."""
        return self._nvml is not None

    def close(self) -> None:
        """End the session, if there is one. Handles of GPUs are of no use after it."""
        with turn(self._lock, "NVML"):
            self._close()

    def _open(self) -> Nvml:
        if self._nvml is None:
            with contextlib.ExitStack() as otherwise:
                if self._gate is not None:
                    self._gate.enter()
                    otherwise.callback(self._gate.leave)
                nvml = Nvml(self._load())
                nvml.call("nvmlInitWithFlags", INIT_NO_GPUS)
                self._nvml = nvml
                self.generation += 1
                otherwise.pop_all()
        return self._nvml

    def _close(self) -> None:
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            for release in self._before_close:
                release()
            with contextlib.suppress(NvmlError):  # the driver may be gone, and its session with it
                nvml.call("nvmlShutdown")
            if self._gate is not None:
                self._gate.leave()
