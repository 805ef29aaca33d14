"""Who may take a Lease, decided by how long it has not changed on one's own clock."""

from __future__ import annotations

from typing import Any

import pytest

from pydra.controllers.leader_election import LeaseTimes, Seen, decide

TIMES = LeaseTimes(duration=15)


def lease(holder: str, version: str = "7", seconds: int = 15) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "acquireTime": "before", "leaseTransitions": 4}
    return {"metadata": {"resourceVersion": version}, "spec": spec}


@pytest.mark.parametrize(
    ("found", "seen", "wins"),
    [
        (None, None, True),
        (lease(""), None, True),
        (lease("me"), None, True),
        (lease("other"), None, False),
        (lease("other"), Seen(version="7", at=90.0), False),
        (lease("other"), Seen(version="7", at=84.9), True),
        (lease("other"), Seen(version="6", at=0.0), False),
        (lease("other", seconds=3600), Seen(version="7", at=0.0), False),
    ],
    ids=[
        "none yet",
        "given back",
        "own",
        "first seen",
        "silent too short",
        "silent",
        "renewed since",
        "its own duration",
    ],
)
def test_a_lease_is_taken_when_it_is_free_or_its_holder_is_silent(
    found: dict[str, Any] | None, seen: Seen | None, wins: bool
) -> None:
    spec = decide(found, seen, identity="me", now=100.0, stamp="now", times=TIMES)
    assert (spec is not None) is wins
    if spec is not None:
        assert (spec["holderIdentity"], spec["renewTime"], spec["leaseDurationSeconds"]) == ("me", "now", 15)


def test_a_change_of_hands_is_counted_and_a_renewal_is_not() -> None:
    taken = decide(lease(""), None, identity="me", now=0.0, stamp="now", times=TIMES)
    kept = decide(lease("me"), None, identity="me", now=0.0, stamp="now", times=TIMES)
    assert taken is not None
    assert kept is not None
    assert (taken["leaseTransitions"], taken["acquireTime"]) == (5, "now")
    assert (kept["leaseTransitions"], kept["acquireTime"]) == (4, "before")
