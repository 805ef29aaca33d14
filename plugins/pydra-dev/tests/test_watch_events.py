"""What a watch with a selector sees of a change."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from pydra_dev.api.kinds import PODS
from pydra_dev.apiserver.store import Change
from pydra_dev.apiserver.verbs import select_event

JsonObject = dict[str, Any]


def pod(tier: str) -> JsonObject:
    return {"metadata": {"name": "p", "labels": {"tier": tier}, "resourceVersion": "1"}}


def is_gold(obj: JsonObject) -> bool:
    return bool(obj["metadata"]["labels"]["tier"] == "gold")


@pytest.mark.parametrize(
    ("type_", "previous", "now", "seen"),
    [
        pytest.param("ADDED", None, "gold", "ADDED", id="added"),
        pytest.param("ADDED", None, "iron", None, id="added elsewhere"),
        pytest.param("MODIFIED", "gold", "gold", "MODIFIED", id="changed"),
        pytest.param("MODIFIED", "iron", "gold", "ADDED", id="begins to match"),
        pytest.param("MODIFIED", "gold", "iron", "DELETED", id="stops matching"),
        pytest.param("MODIFIED", "iron", "iron", None, id="changed elsewhere"),
        pytest.param("DELETED", "gold", "gold", "DELETED", id="deleted"),
        pytest.param("DELETED", "iron", "iron", None, id="deleted elsewhere"),
    ],
)
def test_a_watch_sees_what_its_selector_lets_through(
    type_: Literal["ADDED", "MODIFIED", "DELETED"], previous: str | None, now: str, seen: str | None
) -> None:
    change = Change(
        version=7,
        type=type_,
        collection="pods",
        key=("n", "p"),
        object={"metadata": {**pod(now)["metadata"], "resourceVersion": "7"}},
        previous=pod(previous) if previous is not None else None,
    )
    event = select_event(change, PODS, "n", is_gold)
    assert (event and event[0]) == seen
    if event is not None:
        assert event[1]["metadata"]["resourceVersion"] == "7"
    assert select_event(change, PODS, "other", is_gold) is None
