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
OWN = {
    "amd": "amdsmi models modes required_privileges",
    "nvidia": "atomic_files claim_targets cli compute_domain container_written_files doctor_modules fabric"
    " machine_access mig nvfm nvml prior_state waiting",
    "tpu": "generations geometry libtpu pci_functions_to_chips runtime_metrics slice_facts",
}
"""What the table has no name for: the vendor's libraries, subjects of steps, what only its hardware has."""

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


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_module_has_a_name_of_the_table_unless_it_is_known_as_the_vendors_own(vendor: str) -> None:
    assert sorted(find_modules(vendor).keys() - set(read_names())) == OWN[vendor].split()


def test_the_table_names_what_several_backends_have_and_nothing_that_none_has() -> None:
    modules = {vendor: find_modules(vendor).keys() for vendor in VENDORS}
    shared = {name for one, other in combinations(VENDORS, 2) for name in modules[one] & modules[other]}
    names = read_names()
    assert len(names) == len(set(names))
    assert (shared | REQUIRED) - set(names) == set()
    assert set(names) - set().union(*modules.values()) == set()
