"""The chart follows from the code, and speaks of the version that is built."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

import pydra
from tests.house.scripts import load

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "pydra"


def test_what_the_chart_knows_of_settings_and_backends_follows_from_the_code() -> None:
    made = load(ROOT / "hack" / "generate_chart.py").files()
    for path, text in made.items():
        assert path.read_text() == text, f"{path.name} is stale: make chart"
    assert set((CHART / "files" / "backends").iterdir()) <= set(made), "a backend is no more"


def test_the_chart_installs_the_version_that_is_built() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == pydra.__version__


def test_extended_resources_in_the_values_are_those_of_the_backends() -> None:
    generator = load(ROOT / "hack" / "generate_chart.py")
    values = yaml.safe_load((CHART / "values.yaml").read_text())["backends"]
    for name in generator.backends():
        classes = generator.load_object(generator.find_backend(name).target).DEVICE_CLASSES
        own = {one: spec["extendedResourceName"] for one, spec in classes.items() if "extendedResourceName" in spec}
        assert values[name].get("deviceClasses", {}).get("extendedResourceNames", {}) == own


def test_templates_name_no_backend() -> None:
    backends = load(ROOT / "hack" / "generate_chart.py").backends()
    files = [path for path in (CHART / "templates").rglob("*") if path.is_file()]
    assert files
    for path in files:
        text = re.sub(r"\b(requests|limits): {cpu:", r"\1: {", path.read_text())  # the resource, not the backend
        named = [name for name in backends if re.search(rf"\b{name}\b", text, re.IGNORECASE)]
        assert not named, f"{path.name} names {named}: what is special about a backend belongs in values.yaml"
