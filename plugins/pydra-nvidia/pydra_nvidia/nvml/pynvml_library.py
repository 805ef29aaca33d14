"""The vendor's library: which one pynvml speaks to, and every call of it.

Errors become ours. One thread at a time, which `nvml.session` sees to.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from ctypes import CDLL
from types import ModuleType
from typing import Any, Protocol, TypeAlias

from pydra import set_status
from pydra_nvidia.nvml.errors import LOST, STALE, UNAVAILABLE, Code, NvmlError

Field: TypeAlias = int | tuple[int, int]
"""A field's id, or that and its scope: the number of a link."""

_UNION = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of the union for each value type, by nvmlValueType_t."""


class Nvml:
    """An initialised NVML. `pynvml` is the vendor's module.

    `handles` are those of GPUs and MIG devices by UUID, as they were last come by: to look one up by its UUID, NVML
    walks the MIG devices of all GPUs. `epochs` counts for each GPU how often its MIG mode was changed since the session
    began; handles and registrations for events may not outlive that.
    """

    def __init__(self, pynvml: ModuleType) -> None:
        self.pynvml = pynvml
        self.handles: dict[str, Any] = {}
        self.epochs: Counter[str] = Counter()

    def call(self, name: str, *arguments: Any, subject: str = "", **options: Any) -> Any:
        """The vendor's function `name`; raises NvmlError."""
        function = getattr(self.pynvml, name, None)
        if function is None:  # of a pynvml newer than the installed one
            raise NvmlError(Code.FUNCTION_NOT_FOUND, name, subject)
        set_status(f"{name} of {subject}" if subject else name)  # a driver in trouble hangs
        try:
            return function(*arguments, **options)
        except self.pynvml.NVMLError as error:
            raise NvmlError(int(error.value), name, subject) from error
        except UnicodeDecodeError as error:  # a text that the hardware garbled
            raise NvmlError(Code.UNKNOWN, name, subject) from error

    def has(self, symbol: str) -> bool:
        """Whether the driver's library has the C function."""
        try:
            self.pynvml._nvmlGetFunctionPointer(symbol)  # noqa: SLF001 - pynvml looks each up at its first call
        except self.pynvml.NVMLError:
            return False
        return True

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

    def find(self, uuid: str) -> Any:
        """The GPU's handle, which may be a known one that still is of it. Raises NvmlError."""
        if (known := self.find_known(uuid)) is not None:
            return known
        handle = self.handles[uuid] = self.call("nvmlDeviceGetHandleByUUID", uuid, subject=uuid)
        return handle

    def find_known(self, uuid: str) -> Any:
        """The handle as it was last come by, of a GPU or a MIG device; None when it is another's, or nobody's, by now.

        NVML gives handles of MIG devices to others again.
        """
        handle = self.handles.get(uuid)
        if handle is not None:
            try:
                if self.call("nvmlDeviceGetUUID", handle, subject=uuid) == uuid:
                    return handle
            except NvmlError as error:
                if error.code in STALE:
                    raise
            self.handles.pop(uuid, None)
        return None

    def renew(self, gpu: str) -> None:
        """The GPU's MIG mode was changed, by this process or another."""
        self.handles.pop(gpu, None)
        self.epochs[gpu] += 1


class Looks(Protocol):
    """What `Nvml.look` can be called on."""

    def look(self, name: str, *arguments: Any, subject: str = "", **options: Any) -> Any:
        """As `Nvml.look`."""
        ...


def address_of(handle: Any) -> int:
    """What tells a handle from another."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def read_fields(nvml: Looks, handle: Any, fields: Sequence[Field], *, subject: str = "") -> tuple[float | None, ...]:
    """Many facts of one GPU in one call, in their order; None for one that this GPU or driver does not report."""
    if not fields:
        return ()
    values = nvml.look("nvmlDeviceGetFieldValues", handle, list(fields), subject=subject)
    if values is None:
        return (None,) * len(fields)
    return tuple(_value(one) for one in values)


def _value(one: Any) -> float | None:
    if one.nvmlReturn or one.valueType >= len(_UNION):
        return None
    return getattr(one.value, _UNION[one.valueType])  # type: ignore[no-any-return]


def load_pynvml(library_path: str) -> ModuleType:
    """The module pynvml, with the library at this path. Not initialised.

    Called again after the driver was replaced it takes the new library: one of another version has another file
    name (give the path with its links resolved), and the linker keeps the two apart.

    Raises:
        NvmlError: LIBRARY_NOT_FOUND, with what the linker says.
    """
    import pynvml  # noqa: PLC0415 (the vendor's module is loaded only where hardware is)

    try:
        library = CDLL(library_path)
    except OSError as error:
        raise NvmlError(Code.LIBRARY_NOT_FOUND, "dlopen", str(error)) from error
    use_library(pynvml, library)
    return pynvml


def use_library(pynvml: ModuleType, library: object) -> None:
    """Let pynvml call `library`, which has NVML's functions as attributes."""
    pynvml.nvmlLib = library  # type: ignore[attr-defined]
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 (functions of the library before)
