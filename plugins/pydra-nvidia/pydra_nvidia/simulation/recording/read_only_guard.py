"""A machine that can be read and not changed: a list of NVML's functions that are let through, and no writes to files.

The guard stands between the vendor's module and its library, where every call must pass. It notes
what each call answered.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from pydra import PydraError
from pydra_nvidia.nvml.library import use_library
from pydra_pci import Tree

SESSION = frozenset({"nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"})
"""Beginning and end of a session, which is this process's own."""

NODE = frozenset(
    {
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetCudaDriverVersion",
        "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetHandleByIndex_v2",
    }
)

SCALAR = frozenset(
    {
        "nvmlDeviceGetAddressingMode",
        "nvmlDeviceGetArchitecture",
        "nvmlDeviceGetBAR1MemoryInfo",
        "nvmlDeviceGetBoardPartNumber",
        "nvmlDeviceGetBrand",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetCurrPcieLinkGeneration",
        "nvmlDeviceGetCurrPcieLinkWidth",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetGpuFabricInfo",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetGspFirmwareVersion",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMaxPcieLinkGeneration",
        "nvmlDeviceGetMaxPcieLinkWidth",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetModuleId",
        "nvmlDeviceGetName",
        "nvmlDeviceGetNumaNodeId",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetPcieReplayCounter",
        "nvmlDeviceGetPersistenceMode",
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetRepairStatus",
        "nvmlDeviceGetRetiredPagesPendingStatus",
        "nvmlDeviceGetRowRemapperHistogram",
        "nvmlDeviceGetSerial",
        "nvmlDeviceGetSupportedEventTypes",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetVbiosVersion",
        "nvmlDeviceGetVirtualizationMode",
    }
)
"""Of one GPU as a whole: what one call answers, another would too, whatever state the GPU is in."""

DETAILED = frozenset(
    {
        "nvmlComputeInstanceGetInfo_v2",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetGpuInstanceById",
        "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
        "nvmlDeviceGetGpuInstanceProfileInfo",
        "nvmlDeviceGetGpuInstanceProfileInfoV",
        "nvmlDeviceGetGpuInstances",
        "nvmlDeviceGetMaxClockInfo",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetNvLinkRemotePciInfo_v2",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetNvLinkVersion",
        "nvmlDeviceGetTemperature",
        "nvmlGpuInstanceGetComputeInstanceById",
        "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
        "nvmlGpuInstanceGetComputeInstances",
        "nvmlGpuInstanceGetInfo",
    }
)
"""Of a part of a GPU: a link, a clock, a profile, an instance."""

ALLOWED = SESSION | NODE | SCALAR | DETAILED
"""C symbols. All of them only read; a test holds the list to that."""


class NotReadOnly(PydraError):
    """Something here tried to change the machine: a defect of this program, and nothing was changed."""

    retryable = False
    reason = "NotReadOnly"


class Answer(NamedTuple):
    """A call's symbol, the address of its first argument if that is a handle (else 0), and NVML's code."""

    symbol: str
    handle: int
    code: int


class CallLog:
    """How often which call was answered how, and the symbols that the library lacks."""

    def __init__(self) -> None:
        self.answers: Counter[Answer] = Counter()
        self.missing: set[str] = set()

    def codes(self, handle: int) -> dict[str, set[int]]:
        """All codes that calls with this handle were answered, by symbol."""
        found: dict[str, set[int]] = {}
        for answer in self.answers:
            if answer.handle == handle:
                found.setdefault(answer.symbol, set()).add(answer.code)
        return found


class ReadOnlyLibrary:
    """NVML's library with nothing but the functions of ALLOWED."""

    def __init__(self, library: Any, log: CallLog) -> None:
        self._library = library
        self._log = log

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in ALLOWED:
            raise NotReadOnly(f"{name} is not among the functions of NVML that a recording may call")
        try:
            function: Callable[..., Any] = getattr(self._library, name)
        except AttributeError:
            self._log.missing.add(name)
            raise
        if name == "nvmlErrorString":
            return function  # answers a text, and pynvml says so on the function itself

        def call(*arguments: Any) -> int:
            code = int(function(*arguments))
            self._log.answers[Answer(name, _address(arguments), code)] += 1
            return code

        return call


class ReadOnlyTree(Tree):
    """The files of `tree`, without a way to write them."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree.roots)
        self._tree = tree

    def sys(self, path: str) -> str:
        """As the tree has it."""
        return self._tree.sys(path)

    def write(self, path: str, text: str) -> None:
        """Refused."""
        raise NotReadOnly(f"{path} is not written by a recording (here: {text!r})")


def guard(load: Callable[[], ModuleType], log: CallLog) -> Callable[[], ModuleType]:
    """The same module, its library behind a `ReadOnlyLibrary`."""

    def load_guarded() -> ModuleType:
        pynvml = load()
        use_library(pynvml, ReadOnlyLibrary(pynvml.nvmlLib, log))
        return pynvml

    return load_guarded


def _address(arguments: tuple[Any, ...]) -> int:
    """Of a pointer to something opaque, as handles are; what NVML is to fill is handed over in other ways."""
    first = arguments[0] if arguments else None
    return handle_address(first) if isinstance(first, ctypes._Pointer) else 0  # noqa: SLF001 - the class of pointers


def handle_address(handle: Any) -> int:
    """The address in a handle."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
