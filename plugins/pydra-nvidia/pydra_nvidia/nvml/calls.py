"""Every call of NVML goes through here: errors become ours, and the time that NVML takes is counted apart.

One thread at a time, which `nvml.session` sees to; waiting for events is the exception that NVML allows.
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

from pydra_nvidia.nvml.errors import LOST, STALE, UNAVAILABLE, Code, NvmlError


class Meter:
    """What the vendor's code took, apart from ours. Not of events: waiting for them is no work."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0

    def add(self, seconds: float) -> None:
        """One more call."""
        self.seconds += seconds
        self.calls += 1


class Nvml:
    """An initialised NVML. `pynvml` is the vendor's module; what is spent in it is added to `meter`."""

    def __init__(self, pynvml: ModuleType, meter: Meter | None = None) -> None:
        self.pynvml = pynvml
        self._meter = meter or Meter()

    def call(self, name: str, *arguments: Any, subject: str = "", **options: Any) -> Any:
        """The vendor's function `name`; raises NvmlError."""
        function = getattr(self.pynvml, name, None)
        if function is None:  # of a pynvml newer than the installed one
            raise NvmlError(Code.FUNCTION_NOT_FOUND, name, subject)
        started = time.perf_counter()
        try:
            return function(*arguments, **options)
        except self.pynvml.NVMLError as error:
            raise NvmlError(int(error.value), name, subject) from error
        except UnicodeDecodeError as error:  # a text that the hardware garbled
            raise NvmlError(Code.UNKNOWN, name, subject) from error
        finally:
            self._meter.add(time.perf_counter() - started)

    def ask(self, name: str, *arguments: Any, subject: str = "", **options: Any) -> Any:
        """The same for a field that hardware or driver may lack: None then."""
        try:
            return self.call(name, *arguments, subject=subject, **options)
        except NvmlError as error:
            if error.code in UNAVAILABLE:
                return None
            raise

    def look(self, name: str, *arguments: Any, subject: str = "", **options: Any) -> Any:
        """The same for a field that no GPU is given up for: None on every error but a lost GPU or session."""
        try:
            return self.call(name, *arguments, subject=subject, **options)
        except NvmlError as error:
            if error.code in LOST or error.code in STALE:
                raise
            return None
