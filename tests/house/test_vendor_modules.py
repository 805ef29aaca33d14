"""The backends of vendors have the modules of CONTRIBUTING.md, under the names that stand there."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VENDORS = ("amd", "nvidia", "tpu")
REQUIRED = {
    *("backend", "cdi", "claim_config", "composition", "hardware_reader", "hardware_types", "health"),
    *("host", "inventory", "settings", "simulation"),
}
PARTS = {"cdi": ("edits",), "simulation": ("simulation",), "vfio": ("apply_passthrough", "plan_passthrough")}


def find_modules(vendor: str) -> dict[str, Path]:
    package = ROOT / f"plugins/pydra-{vendor}/pydra_{vendor}"
    found = [one for one in package.iterdir() if one.suffix == ".py" or (one / "__init__.py").exists()]
    return {one.stem: one for one in found}


def read_names() -> list[str]:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("### Modules of a backend")[2]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_backend_has_the_modules_that_all_backends_have(vendor: str) -> None:
    modules = find_modules(vendor)
    assert REQUIRED - modules.keys() == set()
    missing = [
        f"{name}.{part}"
        for name, parts in PARTS.items()
        if name in modules
        for part in parts
        if not (modules[name] / f"{part}.py").exists()
    ]
    assert missing == []


def test_the_table_names_what_several_backends_have_and_nothing_that_none_has() -> None:
    modules = {vendor: find_modules(vendor).keys() for vendor in VENDORS}
    shared = {name for one, other in combinations(VENDORS, 2) for name in modules[one] & modules[other]}
    names = read_names()
    assert len(names) == len(set(names))
    assert (shared | REQUIRED) - set(names) == set()
    assert set(names) - set().union(*modules.values()) == set()
