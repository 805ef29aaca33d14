"""NVML with nothing but the functions that read, and a count of what they return."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pydra import PydraError
from pydra_nvidia.nvml.errors import Code, code_name
from pydra_nvidia.nvml.pynvml_library import use_library

_READS = re.compile(r"nvml(Device|GpuInstance|ComputeInstance|System)Get[A-Z]\w*|nvml(InitWithFlags|Shutdown)")
"""NVML's functions that change nothing but the session of this process."""


class NotReadOnly(PydraError):
    """A defect of this program: it tried to change the machine. Nothing was changed."""

    retryable = False
    reason = "NotReadOnly"


class CallLog:
    """How often which function returned what, and the functions that the library does not have."""

    def __init__(self) -> None:
        self.codes: Counter[tuple[str, int]] = Counter()
        self.missing: set[str] = set()

    def refused(self) -> dict[str, dict[str, int]]:
        """Return the errors of each function, by name, with their number."""
        found: dict[str, dict[str, int]] = {}
        for (symbol, code), count in sorted(self.codes.items()):
            if code != Code.SUCCESS:
                found.setdefault(symbol, {})[code_name(code)] = count
        return found


class ReadOnlyLibrary:
    """NVML's library with nothing but the functions that read."""

    def __init__(self, library: Any, calls: CallLog) -> None:
        self._library = library
        self._calls = calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not _READS.fullmatch(name):
            raise NotReadOnly(f"{name} is not a function of NVML that a recording may call")
        try:
            function: Callable[..., Any] = getattr(self._library, name)
        except AttributeError:
            self._calls.missing.add(name)
            raise

        def call(*arguments: Any) -> int:
            code = int(function(*arguments))
            self._calls.codes[name, code] += 1
            return code

        return call


def guard(load: Callable[[], ModuleType], calls: CallLog) -> Callable[[], ModuleType]:
    """Return the same module, whose library is a `ReadOnlyLibrary`: every call of the module passes it."""

    def load_guarded() -> ModuleType:
        pynvml = load()
        use_library(pynvml, ReadOnlyLibrary(pynvml.nvmlLib, calls))
        return pynvml

    return load_guarded
