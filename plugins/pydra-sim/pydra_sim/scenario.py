"""What a scenario file may say: which accelerators there are, what is wrong with them, which faults strike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from pydra import PydraError

Count = Annotated[int, Meta(ge=1, le=256)]
EFFECTS = "raise|refuse|refuse-forever|slow|hang|gil-hang|segfault|abort|exit|garbage|stdout-noise|unhealthy|unplug"


class ScenarioError(PydraError):
    """The scenario cannot be read, or is not valid."""

    retryable = True
    reason = "InvalidScenario"


class Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """`count` equal accelerators, `<name>-0` and so on."""

    name: Annotated[str, Meta(pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=40)] = "accel"
    count: Count = 8
    numa_nodes: Annotated[int, Meta(ge=1, le=64)] = 2
    product: Annotated[str, Meta(min_length=1, max_length=64)] = "Simulated Accelerator S1"
    memory: Annotated[int, Meta(ge=1)] = field(name="memoryGiB", default=64)
    cores: Annotated[int, Meta(ge=1)] = 128
    slices: Annotated[int, Meta(ge=0, le=16)] = 0
    partitions: tuple[Count, ...] = (1, 2)
    shared: bool = False
    device_node: str = "/dev/null"
    info_file: bool = False

    def __post_init__(self) -> None:
        if self.slices and self.shared:
            raise ValueError("slices and shared exclude each other: an accelerator is cut or shared")
        if self.slices and (self.memory % self.slices or self.cores % self.slices):
            raise ValueError(f"memoryGiB {self.memory} and cores {self.cores} must divide by slices {self.slices}")
        if self.slices and max(self.partitions, default=0) >= self.slices:
            raise ValueError(f"partitions {list(self.partitions)} must be smaller than slices {self.slices}")


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`do` this to the calls that match, `count` times after `after` of them; empty fields match everything."""

    do: Annotated[str, Meta(pattern=f"^({EFFECTS})$")]
    call: Literal["discover", "plan", "prepare", "unprepare", "restore", "wait_changed", "measure"] = "prepare"
    claim: str = ""
    device: str = ""
    at: Literal["start", "end"] = "start"
    count: Annotated[int, Meta(ge=1)] | None = None
    after: Annotated[int, Meta(ge=0)] = 0
    seconds: Annotated[float, Meta(gt=0)] = 1e6
    message: str = "a simulated fault"


class Scenario(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The whole machine."""

    driver_version: Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+$")] = "1.0.0"
    groups: tuple[Group, ...] = (Group(),)
    unhealthy: Mapping[str, str] = {}
    unplugged: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ValueError(f"group names must differ, got {', '.join(names)}")


def parse_scenario(text: bytes, source: str) -> Scenario:
    """The scenario in `text` (YAML). Raises ScenarioError with the path to what is wrong."""
    import yaml  # noqa: PLC0415 - 4 MiB that only a scenario file pays for

    try:
        content = yaml.safe_load(text)
        return msgspec.convert({} if content is None else content, Scenario)
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError) as error:  # of PyYAML, and msgspec's
        raise ScenarioError(f"scenario {source}: {' '.join(str(error).split())}") from error
