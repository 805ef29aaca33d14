"""A plan that the agent could not carry out as its backend means it is refused, with what to change."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec
import pytest

from pydra import Plan
from pydra.backends.child.claim_values import BackendTypes
from pydra.claim import describe_step


class Load(msgspec.Struct, frozen=True, tag="load"):
    region: str


class Keyed(msgspec.Struct, frozen=True, tag="keyed"):
    key: Any = None
    holds: Any = None


class Clock(Enum):
    SLOW = "slow"


class LaterLoad(msgspec.Struct, frozen=True, tag="load"):
    """Load, in a later version that gave it more fields."""

    region: str
    clock: Clock = Clock.SLOW
    lanes: frozenset[int] = frozenset()
    names: dict[int, str] = {}
    digest: bytes = b""


class Method(msgspec.Struct, frozen=True, tag="method"):
    def key(self) -> str:
        return "all"


STEP_TYPES = (Load, Keyed, Method)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Plan(steps=[Load("a"), Load("b"), Keyed(key="a", holds=("card-0",))]), ""),
        (None, "plan returned None (is `return` missing?), not a pydra.Plan"),
        (Plan(steps=(Load(one) for one in "ab")), "plan: steps is of type generator, not a list or tuple"),  # type: ignore[arg-type]
        (Plan(steps=["load"]), "steps[0] is of type str, which STEP_TYPES does not have"),
        (
            Plan(steps=[Load("a"), Load("a")]),
            "steps[1] (load) has the same key as a step before it; plan each change once",
        ),
        (Plan(steps=[Load("a"), Keyed(key=7)]), "steps[1]: key of Keyed is 7; it must be a string"),
        (Plan(steps=[Method()]), "steps[0]: key of Method is a method; write @property above it"),
        (Plan(steps=[Load("a"), Load(7)]), "steps[1] (load): $.region: found 7, allowed: a string"),  # type: ignore[arg-type]
        (Plan(steps=[Keyed(holds="card-0")]), "holds of Keyed is 'card-0'; it must be a tuple of names"),
    ],
)
def test_a_plan_with_steps_is_refused_for(answer: Any, said: str) -> None:
    _, violations = BackendTypes(configs={}, steps=STEP_TYPES).describe_plan(answer)
    assert [said in one for one in violations] == ([True] if said else [])


def test_fields_that_a_later_version_adds_with_a_default_change_no_key() -> None:
    assert describe_step(LaterLoad("a")).key == describe_step(Load("a")).key
    others = (LaterLoad("a", names={1: "x"}), LaterLoad("a", digest=b"x"), LaterLoad("a", lanes=frozenset({1})))
    assert len({describe_step(one).key for one in (LaterLoad("a"), *others)}) == 4


def test_a_plan_of_a_backend_without_types_of_steps_is_any_json_and_no_plan_of_steps() -> None:
    types = BackendTypes(configs={})
    assert types.describe_plan({"slot": 1}) == ({"slot": 1}, ())
    _, (violation,) = types.describe_plan(Plan(steps=[Load("a")]))
    assert "the backend has no STEP_TYPES" in violation
