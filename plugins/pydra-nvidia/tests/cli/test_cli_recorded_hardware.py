"""The simulated GPUs report what real ones did: recordings of both, made by the same command."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pydra_nvidia.simulation.scenario_file import bundled_model

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
PASSED_THROUGH = {"nvlink": None, "fabric": None, "addressing": 0, "virtualization": 1}
OF_THE_MACHINE = ("uuid", "serial", "module", "pci", "persistence")
OF_THE_FUNCTION = ("vendor", "device", "pci_class", "addressable", "vfio_driver", "name", "has_virtual")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("file", sorted(RECORDINGS.glob("*.json")), ids=lambda file: file.stem)
def test_a_simulated_gpu_reports_what_a_real_one_did(file: Path, command: Run, tmp_path: Path) -> None:
    real = json.loads(file.read_text())
    model = {**msgspec.to_builtins(bundled_model(file.stem, "test")), **PASSED_THROUGH}
    scenario = {
        "driver": {"version": real["reading"]["driver"]["version"], "cuda": real["reading"]["driver"]["cuda"]},
        "models": {"guest": model},
        "gpus": [{"model": "guest"}],
    }
    (tmp_path / "scenario.json").write_text(json.dumps(scenario))
    machine = ("--scenario", str(tmp_path / "scenario.json"), "--state", str(tmp_path / "machine"))
    simulated = json.loads(command("record", *machine).stdout)
    assert _select(_describe(simulated), _describe(real)) == _describe(real)


def _describe(recording: dict[str, Any]) -> dict[str, Any]:
    (gpu,) = recording["reading"]["gpus"]
    (function,) = recording["reading"]["functions"].values()
    return {
        "driver": recording["reading"]["driver"],
        "gpu": {name: value for name, value in gpu.items() if name not in OF_THE_MACHINE},
        "function": {name: function[name] for name in OF_THE_FUNCTION},
        "refused": recording["refused"],
        "missing": recording["missing"],
    }


def _select(found: Any, recorded: Any) -> Any:
    """What is recorded of it: what is read since then was not asked of the real one."""
    if isinstance(found, dict) and isinstance(recorded, dict):
        return {name: _select(found[name], value) for name, value in recorded.items() if name in found}
    return found
