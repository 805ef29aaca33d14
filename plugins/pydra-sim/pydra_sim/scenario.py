"""The scenario: which accelerators the machine has, which of them are sick or gone, which faults strike.

A YAML file, read again whenever it changes. Unknown fields are errors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec

from pydra import PydraError
from pydra_sim.faults import Fault

Count = Annotated[int, msgspec.Meta(ge=1, le=256)]
DeviceName = Annotated[str, msgspec.Meta(pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
Signature: TypeAlias = tuple[int, int, int]


class ScenarioError(PydraError):
    """The scenario cannot be read, or says something impossible."""

    retryable = True
    reason = "InvalidScenario"

    def __init__(self, source: str, problem: str) -> None:
        self.source = source
        self.problem = problem
        super().__init__(f"scenario {source}: {problem}")


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """`count` equal accelerators, `<name>-0` and so on, spread evenly over `numa_nodes`.

    With `slices`, each can be cut into partitions of as many slices as `partitions` lists.
    With `shared`, several claims may hold one accelerator, each with a share of its memory and cores.
    `device_node` is a node of the host that containers get as `/dev/sim/<device>`; empty for none.
    With `info_file`, containers get a file that describes the device; the state directory must then
    be at the same path on the host.
    """

    name: DeviceName = "accel"
    count: Count = 8
    numa_nodes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    product: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] = "Simulated Accelerator S1"
    memory: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name="memoryGiB", default=64)
    cores: Annotated[int, msgspec.Meta(ge=1)] = 128
    slices: Annotated[int, msgspec.Meta(ge=0, le=16)] = 0
    partitions: tuple[Count, ...] = (1, 2)
    shared: bool = False
    device_node: str = "/dev/null"
    info_file: bool = False

    def __post_init__(self) -> None:
        if not self.slices:
            return
        if self.shared:
            raise ValueError("slices and shared exclude each other: an accelerator is cut or shared")
        if self.memory % self.slices or self.cores % self.slices:
            raise ValueError(f"memoryGiB {self.memory} and cores {self.cores} must divide by slices {self.slices}")
        if too_large := [size for size in self.partitions if size >= self.slices]:
            raise ValueError(f"partitions {too_large} must be smaller than slices {self.slices}")


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A machine; `unhealthy` maps a device to what ails it, `unplugged` lists devices that are gone."""

    driver_version: Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d+\.\d+$")] = "1.0.0"
    groups: tuple[Group, ...] = (Group(),)
    unhealthy: Mapping[str, str] = {}
    unplugged: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ValueError(f"group names must differ, got {', '.join(names)}")


def parse_scenario(text: bytes, source: str) -> Scenario:
    """The scenario in `text` (YAML); raises ScenarioError with the path to what is wrong."""
    import yaml  # noqa: PLC0415 - 4 MiB that only a scenario file pays for

    try:
        content: Any = yaml.safe_load(text)
        return msgspec.convert(content if content is not None else {}, Scenario)
    except yaml.YAMLError as error:
        raise ScenarioError(source, " ".join(str(error).split())) from error
    except msgspec.ValidationError as error:
        raise ScenarioError(source, str(error)) from error


class ScenarioFile:
    """The scenario as the file has it now.

    `location` is a path, or the name of a scenario that comes with the package; without one the
    machine is the default one and never changes.
    """

    def __init__(self, location: str = "") -> None:
        self.path = _locate(location)
        self._signature: Signature | None = None
        self._scenario = Scenario()

    def signature(self) -> Signature | None:
        """What differs when the file has changed; None without a file."""
        if self.path is None:
            return None
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def read(self) -> Scenario:
        """The scenario, parsed again only when the file changed; raises ScenarioError."""
        if self.path is None:
            return self._scenario
        signature = self.signature()
        if signature is None or signature != self._signature:
            try:
                text = self.path.read_bytes()
            except OSError as error:
                raise ScenarioError(str(self.path), error.strerror or str(error)) from error
            self._scenario = parse_scenario(text, str(self.path))
            self._signature = signature
        return self._scenario


def _locate(location: str) -> Path | None:
    if not location:
        return None
    if "/" in location or location.endswith((".yaml", ".yml", ".json")):
        return Path(location)
    known = Path(__file__).parent / "scenarios"
    if not (known / f"{location}.yaml").exists():
        names = ", ".join(sorted(path.stem for path in known.glob("*.yaml")))
        raise ScenarioError(location, f"no such scenario; give a path, or one of: {names}")
    return known / f"{location}.yaml"
