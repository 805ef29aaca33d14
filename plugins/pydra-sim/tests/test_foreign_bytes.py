"""Whatever a scenario file holds, it is a scenario or an error that says what is wrong."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given

from pydra_sim.scenario import ScenarioError, parse_scenario
from tests.fuzz.damage import damage

SCENARIO = b"groups: [{name: accel, count: 2}]\nfaults: [{call: prepare, do: hang}]\n"


@pytest.mark.fuzz
@given(damage(SCENARIO))
def test_whatever_a_file_holds_is_a_scenario_or_refused(text: bytes) -> None:
    with suppress(ScenarioError):
        parse_scenario(text, "file")
