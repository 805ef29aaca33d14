"""Scenarios and models from files: a path, or the name of one that comes with the package."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from pydra_nvidia.simulation.gpu_model import Model
from pydra_nvidia.simulation.scenario import Scenario, ScenarioError
from pydra_nvidia.simulation.scenario_gpus import find_boards

Signature: TypeAlias = tuple[int, int, int]

_HERE = Path(__file__).parent


def parse_scenario(text: bytes, source: str) -> Scenario:
    """The scenario in `text`, with the bundled models that it names; raises ScenarioError with what is wrong, where."""
    try:
        scenario = msgspec.convert(_load(text) or {}, Scenario, strict=True)
        models = dict(scenario.models)
        for group in scenario.gpus:
            if group.model not in models:
                models[group.model] = bundled_model(group.model, source)
        scenario = msgspec.structs.replace(scenario, models=models)
    except msgspec.ValidationError as error:
        raise ScenarioError(source, str(error)) from error
    except ValueError as error:
        raise ScenarioError(source, " ".join(str(error).split())) from error
    try:
        find_boards(scenario)
    except ValueError as error:
        raise ScenarioError(source, str(error)) from error
    return scenario


def bundled_model(name: str, source: str) -> Model:
    """A model from `models/`; raises ScenarioError."""
    path = _HERE / "models" / f"{name}.yaml"
    if "/" in name or not path.exists():
        known = ", ".join(bundled_models())
        raise ScenarioError(source, f"there is no model {name}: describe it in `models`, or use one of: {known}")
    return _read_model(path)


@cache
def _read_model(path: Path) -> Model:
    try:
        return msgspec.convert(_load(path.read_bytes()), Model)
    except msgspec.ValidationError as error:
        raise ScenarioError(str(path), str(error)) from error


class ScenarioFile:
    """The scenario as the file has it now. `location` is a path, or the name of one that comes with the package."""

    def __init__(self, location: str) -> None:
        self.path = _locate(location)
        self._signature: Signature | None = None
        self._scenario = Scenario()

    def read(self) -> Scenario:
        """The scenario, parsed again only when the file changed; raises ScenarioError."""
        try:
            found = os.stat(self.path)
            signature = found.st_mtime_ns, found.st_size, found.st_ino
            if signature != self._signature:
                self._scenario = parse_scenario(self.path.read_bytes(), str(self.path))
                self._signature = signature
        except OSError as error:
            raise ScenarioError(str(self.path), error.strerror or str(error)) from error
        return self._scenario


def bundled_scenarios() -> tuple[str, ...]:
    """The names of the scenarios that come with the package."""
    return tuple(sorted(path.stem for path in (_HERE / "scenarios").glob("*.yaml")))


def bundled_models() -> tuple[str, ...]:
    """The names of the models that come with the package."""
    return tuple(sorted(path.stem for path in (_HERE / "models").glob("*.yaml")))


def _load(text: bytes) -> Any:
    import yaml  # noqa: PLC0415 - 4 MiB that only a scenario pays for

    try:
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are the safe ones
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _locate(location: str) -> Path:
    if "/" in location or location.endswith((".yaml", ".yml", ".json")):
        return Path(location)
    if location not in bundled_scenarios():
        raise ScenarioError(location, f"no such scenario; give a path, or one of: {', '.join(bundled_scenarios())}")
    return _HERE / "scenarios" / f"{location}.yaml"
