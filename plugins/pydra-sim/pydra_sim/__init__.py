"""Simulated accelerators: a pydra backend without hardware, and the one to read before writing your own.

This module is what the entry point names: what claims and the admin may set, and `connect`. `backend.py` has the
coroutines. Nothing is opened at import, and pydra decodes configs and settings strictly before the backend sees them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

DRIVER = "sim.pydra.dev"

EnvName = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]


class Sharing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the containers of one claim take turns; `interval` in milliseconds, only with TimeSliced."""

    strategy: Literal["Exclusive", "TimeSliced"] = "Exclusive"
    interval: Annotated[int, Meta(ge=1, le=1000)] | None = None

    def __post_init__(self) -> None:
        if self.interval is not None and self.strategy != "TimeSliced":
            raise ValueError(f"interval is for strategy TimeSliced, the strategy here is {self.strategy}")


class SimConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a device is set up while a claim has it."""

    sharing: Sharing = Sharing()
    clock: Annotated[int, Meta(ge=200, le=2000)] | None = field(name="clockMHz", default=None)
    env: Mapping[EnvName, str] = {}


class Settings(Struct, frozen=True, kw_only=True):
    """`PYDRA_SIM_SCENARIO` and `PYDRA_SIM_STATE`, or `scenario` and `state` in settings files and chart values."""

    scenario: Annotated[str, Meta(description="A YAML file, or a bundled scenario: partitions, shared, trouble.")] = ""
    state: Annotated[
        str, Meta(pattern="^/", description="The directory that keeps the simulated hardware's state.")
    ] = field(default_factory=lambda: f"{tempfile.gettempdir()}/pydra-sim-{os.getuid()}")


def _device_class(kind: str) -> dict[str, Any]:
    expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].?type.orValue('') == '{kind}'"
    return {"selectors": [{"cel": {"expression": expression}}]}


CONFIG_TYPES = {f"{DRIVER}/v1alpha1/SimConfig": SimConfig}
SETTINGS_TYPE = Settings
DEVICE_CLASSES = {DRIVER: _device_class("accelerator"), f"partition.{DRIVER}": _device_class("partition")}


@asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[Any]:
    """The backend on the simulated machine, with the scenario's faults around its calls."""
    # Imported here: the webhook and `pydra schema` read the types above without the rest.
    from pydra_sim.backend import SimBackend  # noqa: PLC0415
    from pydra_sim.faults import inject_faults  # noqa: PLC0415
    from pydra_sim.hardware import Machine  # noqa: PLC0415

    machine = Machine(settings.scenario, settings.state)
    yield inject_faults(SimBackend(machine), machine)
