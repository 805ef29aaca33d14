"""The embedded allocator ends where the real scheduler does: outcomes that were recorded on a cluster.

`record_allocations.py` writes `data/allocations.json`; run it again when a world changes.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from allocation_families import FAMILIES
from allocation_outcomes import allocate_world, fingerprint, load_outcomes, load_worlds
from pydra_dev.scheduler.allocator import AllocationError

JsonObject = dict[str, Any]
RECORDED = load_outcomes()
WORLDS = load_worlds(RECORDED)


def test_every_world_is_recorded_as_it_is_now() -> None:
    stale = [name for name, world in WORLDS.items() if RECORDED[name]["world"] != fingerprint(world)]
    assert not stale, "record them again: record_allocations.py"
    assert len(WORLDS) >= 300
    assert sum("allocations" in outcome for outcome in RECORDED.values()) >= 100


@pytest.mark.parametrize("written", [True, False], ids=["written", "generated"])
def test_the_claims_of_a_pod_get_what_the_real_scheduler_gave_them(written: bool) -> None:
    names = [name for name in WORLDS if (name in FAMILIES) is written]
    different = {name: (ours, RECORDED[name]) for name in names if (ours := compare(name)) is not None}
    assert not different


def compare(name: str) -> JsonObject | None:
    """What the embedded allocator does instead, None if it does the same."""
    recorded = RECORDED[name]
    try:
        outcome: JsonObject = {"allocations": allocate_world(WORLDS[name])}
    except AllocationError as error:
        outcome = {"refused": str(error)}
    # A mistake in a selector is reported in the same words.
    mistake = re.search(r"CEL (?:runtime|compile) error: [^\n\"]*", recorded.get("refused", ""))
    same = outcome.get("allocations") == recorded.get("allocations")
    return None if same and (mistake is None or mistake[0] in outcome["refused"]) else outcome
