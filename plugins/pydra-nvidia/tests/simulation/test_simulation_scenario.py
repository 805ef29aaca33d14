"""Scenarios: read, refused with the place of what is wrong, completed always alike, read again when they change."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pydra_nvidia.simulation.scenario import Scenario, ScenarioError
from pydra_nvidia.simulation.scenario_file import ScenarioFile, bundled_scenarios, parse_scenario
from pydra_nvidia.simulation.scenario_gpus import find_boards

H100 = "model: h100-80gb"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpus: [{modle: t4}]", "$.gpus[0]"),
        ("gpus: [{model: t4, count: 0}]", "$.gpus[0].count"),
        ("gpus: [{model: t5}]", "there is no model t5"),
        ("gpus: [{model: ../scenario}]", "there is no model ../scenario"),
        ("gpus: [{model: t4, count: 2, minors: [1]}]", "minors must have 2 values, as count says, not 1"),
        ("gpus: [{model: t4, addresses: [nonsense]}]", "$.gpus[0].addresses[0]"),
        ("gpus: [{model: t4, minors: [3]}, {model: t4, minors: [3]}]", "two GPUs have the same minor: 3"),
        ("gpus: [{model: t4, mig: true}]", "gpus[0].mig: Tesla T4 cannot be partitioned"),
        (f"gpus: [{{{H100}, instances: [{{profile: 1g.10gb, start: 0}}]}}]", "instances need mig: true"),
        (f"gpus: [{{{H100}, mig: true, instances: [{{profile: 9g, start: 0}}]}}]", "has no profile 9g; it has 1g.10gb"),
        (
            f"gpus: [{{{H100}, mig: true, instances: [{{profile: 3g.40gb, start: 1}}]}}]",
            "gpus[0].instances[0].start: 3g.40gb can start at (0, 4), not at 1",
        ),
        (
            f"gpus: [{{{H100}, mig: true, instances:"
            " [{profile: 3g.40gb, start: 0}, {profile: 1g.10gb, start: 3}]}]",
            "gpus[0].instances[1]: memory slices [3] are taken",
        ),
        (
            f"gpus: [{{{H100}, mig: true, instances: [{{profile: 2g.20gb, start: 0, compute: [1, 2]}}]}}]",
            "gpus[0].instances[0].compute: 3 slices are more than the 2 there are",
        ),
        (
            f"gpus: [{{{H100}, mig: true, instances: [{{profile: 7g.80gb, start: 0, compute: [5]}}]}}]",
            "has no compute instance of 5 slices, but of [1, 2, 3, 4, 7]",
        ),
        ("faults: [{op: nvmlInit, do: explode}]", "$.faults[0].do"),
        ("faults: [{op: nvmlInit, do: raise, code: OOPS}]", "code must be one of SUCCESS"),
        ("faults: [{op: 'rm -rf', do: raise}]", "$.faults[0].op"),
        ("driver: {version: new}", "$.driver.version"),
        ("driver: {state: broken}", "$.driver.state"),
        ("[1, 2]", "object"),
        ("gpus: [", "parsing a flow node"),
    ],
)
def test_a_wrong_scenario_is_refused_with_the_place_of_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text.encode(), "s.yaml")
    assert str(caught.value).startswith("scenario s.yaml: ")
    assert says in str(caught.value)


def test_an_empty_scenario_is_a_machine_without_gpus() -> None:
    assert parse_scenario(b"", "s.yaml") == Scenario()


def test_an_unknown_name_lists_the_bundled_scenarios() -> None:
    with pytest.raises(ScenarioError, match=r"no such scenario; give a path, or one of: a30, dgx-a100, gb200"):
        ScenarioFile("hgx-h300")


def test_a_scenario_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="No such file"):
        ScenarioFile(str(tmp_path / "none.yaml")).read()


def test_json_will_do_as_well() -> None:
    assert parse_scenario(json.dumps({"gpus": [{"model": "t4"}]}).encode(), "s.json").gpus[0].model == "t4"


@pytest.mark.parametrize("name", bundled_scenarios())
def test_every_bundled_scenario_has_gpus_that_differ(name: str) -> None:
    boards = find_boards(ScenarioFile(name).read())
    assert boards
    assert [board.address for board in boards] == sorted(board.address for board in boards)
    assert len({board.uuid for board in boards}) == len(boards)
    # A minor number is not an index: code that confuses them must fail.
    assert [board.minor for board in boards] != list(range(len(boards)))


def test_no_two_bundled_scenarios_share_a_uuid() -> None:
    uuids = [board.uuid for name in bundled_scenarios() for board in find_boards(ScenarioFile(name).read())]
    assert len(set(uuids)) == len(uuids)


def test_what_a_scenario_leaves_open_is_made_up_always_alike() -> None:
    text = b"gpus: [{model: a30, count: 20, numaNodes: 2}]"
    first, second = (find_boards(parse_scenario(text, "s")) for _ in range(2))
    assert first == second
    assert {board.numa for board in first} == {0, 1}
    assert len({board.address for board in first}) == len({board.root for board in first}) == 20
    other = find_boards(parse_scenario(b"seed: other\n" + text, "s"))
    assert not {board.uuid for board in first} & {board.uuid for board in other}


def test_a_model_can_be_described_in_the_scenario() -> None:
    text = (
        b"models: {mine: {name: NVIDIA X1, architecture: 13, compute: [13, 0], memoryMiB: 1000,"
        b" pci: {device: '0x9999'}}}\ngpus: [{model: mine}]"
    )
    assert find_boards(parse_scenario(text, "s"))[0].model.name == "NVIDIA X1"


def test_a_file_is_read_again_when_it_changes_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("gpus: [{model: t4}]")
    file = ScenarioFile(str(path))
    first = file.read()
    assert file.read() is first
    path.write_text("gpus: [{model: t4, count: 2}]")
    os.utime(path, ns=(1, 1))
    assert file.read().gpus[0].count == 2
