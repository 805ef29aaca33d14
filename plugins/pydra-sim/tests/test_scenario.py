"""Reading scenarios, and refusing wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydra_sim.scenario import Scenario, ScenarioError, ScenarioFile, parse_scenario


def test_an_empty_file_is_the_default_machine() -> None:
    assert parse_scenario(b"", "s.yaml") == Scenario()


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("groups: [{nmae: a}]", "$.groups[0]", "nmae"),
        ("groups: [{count: 0}]", "$.groups[0].count", ">= 1"),
        ("groups: [{count: many}]", "$.groups[0].count", "int"),
        ("groups: [{name: UPPER}]", "$.groups[0].name", "regex"),
        ("groups: [{slices: 3}]", "$.groups[0]", "must divide by slices 3"),
        ("groups: [{slices: 4, partitions: [4]}]", "$.groups[0]", "must be smaller than slices 4"),
        ("groups: [{slices: 4, shared: true}]", "$.groups[0]", "exclude each other"),
        ("groups: [{name: a}, {name: a}]", "", "must differ"),
        ("faults: [{do: explode}]", "$.faults[0].do", "explode"),
        ("faults: [{do: slow, seconds: -1}]", "$.faults[0].seconds", "> 0"),
        ("driverVersion: 1", "$.driverVersion", "str"),
        ("[1, 2]", "", "object"),
        ("groups: [", "", "line 1"),
    ],
)
def test_a_wrong_scenario_is_refused_with_the_path_to_the_fault(text: str, path: str, says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text.encode(), "s.yaml")
    assert str(caught.value).startswith("scenario s.yaml: ")
    assert path in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ["partitions", "shared", "trouble"])
def test_the_scenarios_of_the_package_can_be_read_by_name(name: str) -> None:
    assert ScenarioFile(name).read() != Scenario()


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ScenarioError, match="one of: partitions, shared, trouble"):
        ScenarioFile("dgx")


def test_a_missing_file_is_an_error_that_goes_away_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    scenario = ScenarioFile(str(path))
    with pytest.raises(ScenarioError, match="No such file"):
        scenario.read()
    path.write_text("groups: []")
    assert scenario.read().groups == ()


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("unplugged: [accel-1]")
    scenario = ScenarioFile(str(path))
    first = scenario.read()
    assert scenario.read() is first
    path.write_text("unplugged: [accel-1, accel-2]")
    assert scenario.read().unplugged == ("accel-1", "accel-2")
