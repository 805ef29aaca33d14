"""Values of the chart that the pages show can be installed."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.chart.rendering import CHART, NVIDIA, SIM, at, overlay, render
from tests.house.pages import PAGES, find_code, find_yaml, read

KNOWN = set(json.loads((CHART / "values.schema.json").read_text())["properties"])
ADMINS = [page for page in PAGES if page.startswith("docs/") and page != "docs/design.md"]
"""Those that speak of the chart; its own page has a test beside it."""

BLOCKS = [
    pytest.param(one, id=f"{page} {number}")
    for page in ADMINS
    for number, one in enumerate(find_yaml(page))
    if isinstance(one, dict) and one and set(one) <= KNOWN and {"backends", "webhook"} & set(one)
]
BLOCKS.append(pytest.param(yaml.safe_load(read("examples/minimal/values.yaml")), id="examples/minimal"))
NAME = r"[a-zA-Z]+(?:\.[a-zA-Z]+)+"


def find_assignments(page: str) -> set[str]:
    text = read(page)
    found = {one for one in find_code(text) if re.fullmatch(rf"{NAME}=\S+", one)}
    found |= set(re.findall(rf"--set ({NAME}=[^\s`]+)", text))
    return {one for one in found if one.partition(".")[0] in KNOWN and "backends.NAME" not in one}


ASSIGNMENTS = sorted({(page, one) for page in ADMINS for one in find_assignments(page)})


@pytest.mark.parametrize("values", BLOCKS)
def test_blocks_of_values_can_be_installed(values: dict[str, object]) -> None:
    assert render(values).all("DaemonSet")


@pytest.mark.parametrize(("page", "assignment"), ASSIGNMENTS)
def test_single_values_can_be_set(page: str, assignment: str) -> None:
    path, _, value = assignment.partition("=")
    assert render(overlay(SIM, NVIDIA), at(path, yaml.safe_load(value))).all("DaemonSet"), page


def test_there_is_something_to_try() -> None:
    assert len(BLOCKS) >= 3
    assert {"docs/install.md", "docs/migrate.md", "docs/upgrade.md"} <= {page for page, _ in ASSIGNMENTS}


@pytest.mark.parametrize("page", ADMINS)
def test_values_that_are_named_exist(page: str) -> None:
    table = (CHART / "README.md").read_text().partition("<!-- values")[2]
    values = set(re.findall(r"^\| `([^`]+)`", table, flags=re.MULTILINE))
    prefixes = {path.rsplit(".", count)[0] for path in values for count in range(4)}
    free = ("settings.", "backends.NAME.settings.", "backends.nvidia.settings.", "resources.limits.", "updateStrategy.")
    for named in find_code(read(page)):
        if re.fullmatch(NAME, named) and named.partition(".")[0] in KNOWN - {"image"} and not named.startswith(free):
            general = re.sub(r"^backends\.[a-z]+\.", "backends.NAME.", named)
            assert general in prefixes, f"{page}: {named}"
