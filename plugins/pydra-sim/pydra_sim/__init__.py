"""Simulated accelerators: a pydra backend that needs no hardware.

The reference for authors of backends. This module is what the entry point names: it says which
driver the backend speaks for, what claims may configure, and how to connect to the machine.
Nothing is read or opened at import.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from pydra_sim.config import SimConfig
from pydra_sim.machine import Machine
from pydra_sim.scenario import ScenarioFile
from pydra_sim.state import StateDirectory, default_state_path

DRIVER = "sim.pydra.dev"

CONFIG_TYPES: Mapping[str, type] = {"sim.pydra.dev/v1alpha1/SimConfig": SimConfig}

DEVICE_CLASSES: Mapping[str, Mapping[str, Any]] = {
    "sim.pydra.dev": {
        "selectors": [
            {
                "cel": {
                    "expression": "device.driver == 'sim.pydra.dev'"
                    " && device.attributes['sim.pydra.dev'].type == 'accelerator'"
                }
            }
        ]
    },
    "partition.sim.pydra.dev": {
        "selectors": [
            {
                "cel": {
                    "expression": "device.driver == 'sim.pydra.dev'"
                    " && device.attributes['sim.pydra.dev'].type == 'partition'"
                }
            }
        ]
    },
}


@asynccontextmanager
async def connect() -> AsyncIterator[Machine]:
    """The machine of the scenario PYDRA_SIM_SCENARIO, its state below the directory PYDRA_SIM_STATE."""
    scenario = ScenarioFile(os.environ.get("PYDRA_SIM_SCENARIO", ""))
    state = StateDirectory(os.environ.get("PYDRA_SIM_STATE") or default_state_path())
    yield Machine(scenario, state)
