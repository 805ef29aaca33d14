"""Which library pynvml speaks to. The vendor's module itself is not changed."""

from __future__ import annotations

from ctypes import CDLL
from types import ModuleType

from pydra_nvidia.nvml.errors import Code, NvmlError

LIBRARY = "libnvidia-ml.so.1"


def load_pynvml(library_path: str | None) -> ModuleType:
    """The module pynvml, with the library at this path; None: where the dynamic linker finds it. Not initialised.

    Called again after the driver was replaced it takes the new library: one of another version has another file
    name (give the path with its links resolved), and the linker keeps the two apart.

    Raises:
        NvmlError: LIBRARY_NOT_FOUND, with what the linker says.
    """
    import pynvml  # noqa: PLC0415 (the vendor's module is loaded only where hardware is)

    path = library_path or LIBRARY
    try:
        library = CDLL(path)
    except OSError as error:
        raise NvmlError(Code.LIBRARY_NOT_FOUND, "dlopen", str(error)) from error
    use_library(pynvml, library)
    return pynvml


def use_library(pynvml: ModuleType, library: object) -> None:
    """Let pynvml call `library`, which has NVML's functions as attributes."""
    pynvml.nvmlLib = library  # type: ignore[attr-defined]
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 (functions of the library before)
