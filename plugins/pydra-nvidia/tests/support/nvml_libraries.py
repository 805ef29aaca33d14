"""Libraries of NVML that have a few C functions each, below the unmodified pynvml."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from pydra_nvidia.nvml.pynvml_library import Nvml, use_library


class Library:
    """C functions by name; any other is of a newer driver."""

    def __init__(self, **functions: Callable[..., int]) -> None:
        self._functions = functions

    def __getattr__(self, name: str) -> Callable[..., int]:
        try:
            return self._functions[name]
        except KeyError:
            raise AttributeError(name) from None


def nvml(**functions: Callable[..., int]) -> Nvml:
    use_library(pynvml, Library(**functions))
    return Nvml(pynvml)


def answer(code: int) -> Callable[..., int]:
    return lambda *_arguments: code


def answer_late(symbol: str, code: int) -> None:
    """Let the library in use do what this C function is for, once, and answer this code all the same."""
    library: Any = pynvml.nvmlLib

    def call(*arguments: Any) -> int:
        use_library(pynvml, library)
        getattr(library, symbol)(*arguments)
        return code

    class Late(Library):
        def __getattr__(self, name: str) -> Callable[..., int]:
            return call if name == symbol else getattr(library, name)  # type: ignore[no-any-return]

    use_library(pynvml, Late())
