"""The registry of C functions: which function answers each, and whose handle is its first argument.

    @function("gpu", "nvmlDeviceGetMigMode")
    def get_mode(call: Call, current: Any, pending: Any) -> None: ...

The function raises Refusal for every code but SUCCESS. It gets the arguments after the handle. For functions that write
one number or text, `numbers` and `texts` have what each writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.library.arguments import Refusal, put
from pydra_nvidia.simulation.machine_state import ComputeState, GpuState, InstanceState, View
from pydra_nvidia.simulation.scenario_gpus import Board

if TYPE_CHECKING:
    from pydra_nvidia.simulation.library.library import Library

Kind: TypeAlias = Literal["system", "gpu", "device", "instance", "compute"]
Work: TypeAlias = Callable[..., None]
T = TypeVar("T")


class Target(msgspec.Struct, frozen=True):
    """A GPU, its GPU instance `serial`, the compute instance `ci` in that, or the MIG device which that is.

    The `serial` of a GPU is its epoch: a change of its MIG mode leaves no handle of use.
    """

    kind: Literal["gpu", "mig", "instance", "compute", "set"]
    uuid: str
    serial: int = 0
    ci: str = ""


class Symbol(msgspec.Struct, frozen=True):
    """`kind` is that of the handle in the first argument; a `device` is a GPU or a MIG device, `system` has none.

    `session`: it needs nvmlInit. `root`: it needs root. `finds` returns the GPU that the
    arguments mean, for faults.
    """

    kind: Kind
    work: Work
    root: bool = False
    session: bool = True
    finds: Callable[[Library, View, tuple[Any, ...]], str | None] | None = None


SYMBOLS: dict[str, Symbol] = {}


class Call:
    """One call: the machine as it is, and what the handle in the first argument stands for."""

    __slots__ = ("board", "compute", "gpu", "instance", "library", "target", "view")

    board: Board
    gpu: GpuState
    target: Target

    def __init__(self, library: Library, view: View) -> None:
        self.library = library
        self.view = view
        self.instance: InstanceState | None = None
        self.compute: ComputeState | None = None

    def resolve(self, view: View, target: Target) -> None:
        """Find what the target is now; raises Refusal when it is lost or gone."""
        self.view, self.target = view, target
        self.board, self.gpu = view.boards[target.uuid], view.state.gpus[target.uuid]
        if self.gpu.lost or not self.gpu.plugged or self.gpu.driver != "nvidia":
            raise Refusal(Code.GPU_IS_LOST)
        if target.kind == "gpu":
            if target.serial != self.gpu.epoch:
                raise Refusal(Code.INVALID_ARGUMENT)
            return
        self.instance = next((one for one in self.gpu.instances if one.serial == target.serial), None)
        if self.instance is not None and target.ci:
            self.compute = next((one for one in self.instance.compute if one.uuid == target.ci), None)
        if self.instance is None or (target.ci and self.compute is None):
            raise Refusal(Code.INVALID_ARGUMENT if target.kind == "mig" else Code.NOT_FOUND)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """The same with the machine for this call alone; what is changed in `gpu` and below is kept."""
        with self.library.machine.change() as view:
            self.resolve(view, self.target)
            yield

    def part(self) -> tuple[InstanceState, ComputeState]:
        """The MIG device that the handle is; raises Refusal when it is a GPU."""
        if self.instance is None or self.compute is None:
            raise Refusal(Code.NOT_SUPPORTED)
        return self.instance, self.compute


def gpu_target(view: View, uuid: str) -> Target:
    """The GPU as it is now."""
    return Target("gpu", uuid, view.state.gpus[uuid].epoch)


def require(value: T | None) -> T:
    """The value; raises Refusal where the hardware has none."""
    if value is None:
        raise Refusal(Code.NOT_SUPPORTED)
    return value


def numbers(kind: Kind, readers: Mapping[str, Callable[[Call], float]]) -> None:
    """Functions that write what the reader returns."""
    for name, read in readers.items():
        SYMBOLS[name] = Symbol(kind, lambda call, reference, read=read: put(reference, read(call)))


def texts(kind: Kind, readers: Mapping[str, Callable[[Call], str]]) -> None:
    """Functions that write what the reader returns into a buffer."""
    for name, read in readers.items():
        SYMBOLS[name] = Symbol(kind, lambda call, buffer, _size, read=read: put(buffer, read(call).encode()))


def function(kind: Kind, *names: str, **options: Any) -> Callable[[Work], Work]:
    """A function with the handle of this kind, by its C symbols; `options` are fields of `Symbol`."""

    def register(work: Work) -> Work:
        for name in names:
            SYMBOLS[name] = Symbol(kind, work, **options)
        return work

    return register
