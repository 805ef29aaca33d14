"""Records what this node's hardware reports, for a defect report: without changing it, and without its names.

Names (UUIDs, serial numbers, fabric clusters) are replaced by a keyed hash: the same original has the same name within
one recording, so what belongs together still does, and no way leads back without the salt, which is thrown away unless
the user chose it.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import uuid
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec
from msgspec.structs import replace

import pydra
from pydra import PydraError
from pydra_nvidia.hardware_reader import HardwareReader, read_without_driver
from pydra_nvidia.hardware_types import Gpu, Reading
from pydra_nvidia.host.driver_root import DriverMissing
from pydra_nvidia.nvml.errors import Code, code_name
from pydra_nvidia.nvml.pynvml_library import use_library
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings
from pydra_pci import Tree

KEPT_SETTINGS = ("dynamic_mig", "orphans", "time_slicing", "mps", "consumable_shares", "vfio", "health", "signals")
"""What is published depends on them; paths and times are of the machine."""

_READS = re.compile(
    r"nvml(Device|GpuInstance|ComputeInstance|System)Get[A-Z]\w*|nvml(InitWithFlags|Shutdown|ErrorString)"
)
"""NVML's functions that change nothing but the session of this process."""
_RELEASE = re.compile(r"\d+\.\d+(?:\.\d+)?")
_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-f]+(?:-[0-9a-f]+)*")
_NO_CLUSTER = str(uuid.UUID(int=0))
_DIGITS = 10**13


class NotReadOnly(PydraError):
    """A defect of this program: it tried to change the machine. Nothing was changed."""

    retryable = False
    reason = "NotReadOnly"


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded, as JSON has it."""

    pydra: str
    """The version that recorded it."""
    kernel: str
    """The kernel's version, without what its builder added."""
    settings: dict[str, Any]
    """Those that differ from their defaults and decide what is published."""
    reading: Reading
    """What the backend reads of the hardware, passthrough included."""
    refused: dict[str, dict[str, int]]
    """NVML's functions that returned an error: how often each."""
    missing: tuple[str, ...]
    """Functions that the node's NVML does not have."""


async def record(settings: Settings, tree: Tree, load: Callable[[], ModuleType], *, salt: bytes) -> Recording:
    """Record the node's hardware. Raises NvmlError if NVML as a whole does not answer."""
    calls = CallLog()
    session = NvmlSession(guard(load, calls))
    # Whether partitions can be made is a setting, and says nothing about what there is.
    all_of_it = replace(settings, vfio=True, dynamic_mig=False)
    try:
        reading = await HardwareReader(session, tree, settings=all_of_it).read()
    except DriverMissing:
        reading = await asyncio.to_thread(read_without_driver, tree)
    finally:
        session.close()
    release = _RELEASE.match(tree.read(tree.proc("sys/kernel/osrelease")))
    return Recording(
        pydra=pydra.__version__,
        kernel=release[0] if release else "",
        settings=_select_settings(settings),
        reading=rename(reading, salt),
        refused=calls.refused(),
        missing=tuple(sorted(calls.missing)),
    )


def _select_settings(settings: Settings) -> dict[str, Any]:
    defaults = Settings()
    values: dict[str, Any] = msgspec.to_builtins(settings)
    return {name: values[name] for name in KEPT_SETTINGS if getattr(settings, name) != getattr(defaults, name)}


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
        if name == "nvmlErrorString":
            return function  # returns a text, and pynvml sets its type on the function itself

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


def rename(reading: Reading, salt: bytes) -> Reading:
    """The reading with other names of GPUs and MIG devices, wherever they are written, of boards and of clusters."""

    def number(kind: str, original: str) -> int:
        return int.from_bytes(hmac.digest(salt, f"{kind}\0{original}".encode(), "sha256"))

    def name(kind: str, original: str) -> str:
        return str(uuid.UUID(int=number(kind, original) >> 128, version=4))

    def board(gpu: Gpu) -> Gpu:
        fabric, serial = gpu.fabric, gpu.serial and f"{number('serial', gpu.serial) % _DIGITS:013d}"
        if fabric is not None and fabric.cluster != _NO_CLUSTER:
            fabric = replace(fabric, cluster=name("cluster", fabric.cluster))
        return replace(gpu, serial=serial, fabric=fabric)

    # What was known of a lost GPU before belongs to the process, not to the machine.
    lost = tuple(replace(one, last=None) for one in reading.lost)
    encoded = msgspec.json.encode(replace(reading, gpus=tuple(map(board, reading.gpus)), lost=lost))
    text = _UUID.sub(lambda found: f"{found[1]}-{name(found[1], found[0])}", encoded.decode())
    return msgspec.json.decode(text, type=Reading)
