"""What a claim may ask of a simulated accelerator, as opaque parameters of its ResourceClaim or DeviceClass.

    apiVersion: sim.pydra.dev/v1alpha1
    kind: SimConfig
    sharing: {strategy: TimeSliced, interval: 10}
    clockMHz: 1200
    env: {FLAVOUR: vanilla}

Decoded strictly: an unknown field, a wrong type and a number out of range are errors with a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

EnvName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]


class Sharing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How the containers of one claim take turns; `interval` in milliseconds, with TimeSliced only."""

    strategy: Literal["Exclusive", "TimeSliced"] = "Exclusive"
    interval: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None

    def __post_init__(self) -> None:
        if self.interval is not None and self.strategy != "TimeSliced":
            raise ValueError(f"interval is for strategy TimeSliced, the strategy here is {self.strategy}")


class SimConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of an accelerator while a claim has it."""

    sharing: Sharing = Sharing()
    clock: Annotated[int, msgspec.Meta(ge=200, le=2000)] | None = msgspec.field(name="clockMHz", default=None)
    env: Mapping[EnvName, str] = {}


DEFAULT_CONFIG = SimConfig()
