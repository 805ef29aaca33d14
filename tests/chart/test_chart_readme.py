"""The values that the chart's README shows are values."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.chart.rendering import CHART, NVIDIA, SIM, at, overlay, render

README = (CHART / "README.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
ASSIGNMENTS = sorted(set(re.findall(r"`([A-Za-z.]+=[^`]+)`", README)))


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_blocks_of_values_can_be_installed(block: str) -> None:
    assert render(yaml.safe_load(block)).all("DaemonSet")


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_single_values_can_be_set(assignment: str) -> None:
    path, _, value = assignment.partition("=")
    assert render(overlay(SIM, NVIDIA), at(path, yaml.safe_load(value)))


def test_the_table_of_privileges_has_the_agent_of_each_backend() -> None:
    rows = re.findall(r"^\| agents? of ([^|]+)\|", README, flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
    assert named == set(yaml.safe_load((CHART / "values.yaml").read_text())["backends"])


def test_permissions_for_claims_status_are_reported_with_the_setting_that_gives_them() -> None:
    assert "resourceclaims/status" in str(render(SIM, at("settings.deviceStatus", True)))
    told = [one for one in re.split(r"\. |\n\n|\n- ", README) if "resourceclaims/status" in one]
    assert told
    assert all("`deviceStatus`" in one for one in told)


def test_there_is_something_to_try() -> None:
    assert len(BLOCKS) >= 2
    assert len(ASSIGNMENTS) >= 4


def test_values_named_in_the_prose_are_in_the_table() -> None:
    prose, _, table = README.partition("<!-- values")
    known = set(re.findall(r"^\| `([^`]+)`", table, flags=re.MULTILINE))
    prefixes = {path.rsplit(".", count)[0] for path in known for count in range(4)}
    named = set(re.findall(r"`((?:[a-zA-Z]+\.)+[a-zA-Z]+)`", prose))
    values = {one for one in named if one.split(".")[0] in {path.split(".")[0] for path in known}}
    assert values
    assert values <= prefixes
