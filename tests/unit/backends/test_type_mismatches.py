"""Every mismatch is found, with its path, and nothing that msgspec would accept is called one."""

from __future__ import annotations

import datetime
import enum
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from pydra.backends.claim_config import find_config_problems
from pydra.backends.type_mismatches import find_mismatches
from pydra.devices import Device, Quantity


class Interval(enum.Enum):
    DEFAULT = "Default"
    SHORT = "Short"


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    percent: Annotated[int, Meta(ge=1, le=100)] = 100


class TimeSlicing(msgspec.Struct, frozen=True, kw_only=True, tag="TimeSlicing", tag_field="strategy"):
    interval: Interval = Interval.DEFAULT


class Mps(msgspec.Struct, frozen=True, kw_only=True, tag="MPS", tag_field="strategy"):
    limits: tuple[Limit, ...] = ()


class Config(msgspec.Struct, frozen=True, kw_only=True):
    sharing: TimeSlicing | Mps | None = None
    name: Annotated[str, Meta(min_length=1, max_length=5, pattern="^[a-z]+$")] = "a"
    factor: Annotated[float, Meta(gt=0, multiple_of=0.5)] = 1.0
    mode: Literal["fast", "safe"] = "safe"
    labels: dict[str, int] = {}
    pair: tuple[int, str] | None = None
    size: int | str = 1
    until: datetime.datetime | None = None
    enabled: bool = True


@pytest.mark.parametrize(
    ("value", "problems"),
    [
        ({}, []),
        ({"sharing": None, "size": "1Gi", "pair": [1, "x"], "factor": 2}, []),
        ([], ["$: found a list of 0, allowed: an object"]),
        ({"enabled": "yes"}, ['$.enabled: found "yes", allowed: true or false']),
        ({"enabled": 1}, ["$.enabled: found 1, allowed: true or false"]),
        (
            {"shering": 1},
            [
                '$.shering: unknown field (did you mean "sharing"?), allowed: enabled, factor, labels, mode, name, '
                "pair, sharing, size, until"
            ],
        ),
        (
            {"sharing": {"strategy": "TimeSlicing", "interval": "fast"}},
            ['$.sharing.interval: found "fast", allowed: "Default", "Short"'],
        ),
        (
            {"sharing": {"strategy": "Mps"}},
            ['$.sharing.strategy: found "Mps" (did you mean "MPS"?), allowed: "MPS", "TimeSlicing"'],
        ),
        ({"sharing": {}}, ['$.sharing.strategy: missing, allowed: "MPS", "TimeSlicing"']),
        ({"sharing": {"strategy": ["x"]}}, ['$.sharing.strategy: found a list of 1, allowed: "MPS", "TimeSlicing"']),
        (
            {"sharing": {"strategy": "MPS", "limits": [{"device": "a"}, {"percent": 101}]}},
            [
                "$.sharing.limits[1].device: missing, allowed: a string",
                "$.sharing.limits[1].percent: found 101, allowed: an integer >= 1 and <= 100",
            ],
        ),
        (
            {"sharing": {"strategy": "MPS", "interval": "Short"}},
            ["$.sharing.interval: unknown field, allowed: limits, strategy"],
        ),
        ({"name": ""}, ['$.name: found "", allowed: a string of 1 to 5 characters that matches ^[a-z]+$']),
        ({"name": "A"}, ['$.name: found "A", allowed: a string of 1 to 5 characters that matches ^[a-z]+$']),
        ({"name": "a\n"}, ['$.name: found "a\\n", allowed: a string of 1 to 5 characters that matches ^[a-z]+$']),
        ({"factor": 0.7}, ["$.factor: found 0.7, allowed: a number > 0 and a multiple of 0.5"]),
        ({"mode": "quick"}, ['$.mode: found "quick", allowed: "fast", "safe"']),
        ({"labels": {"a": "1", "b c": None}}, ['$.labels.a: found "1", allowed: an integer',
                                               '$.labels["b c"]: found null, allowed: an integer']),
        ({"pair": [1]}, ["$.pair: found a list of 1, allowed: a list of exactly 2"]),
        ({"pair": [1, 2]}, ["$.pair[1]: found 2, allowed: a string"]),
        ({"size": []}, ["$.size: found a list of 0, allowed: an integer or a string"]),
        ({"until": "noon"}, ['$.until: found "noon", allowed: a datetime']),
        ({"name": 5, "mode": 6, "x": 7},
         ["$.x: unknown field, allowed: enabled, factor, labels, mode, name, pair, sharing, size, until",
          "$.name: found 5, allowed: a string of 1 to 5 characters that matches ^[a-z]+$",
          '$.mode: found 6, allowed: "fast", "safe"']),
    ],
)  # fmt: skip
def test_all_mismatches_are_reported_with_what_is_allowed(value: Any, problems: list[str]) -> None:
    assert list(find_mismatches(value, Config)) == problems


@pytest.mark.parametrize(
    ("pattern", "text", "allowed"),
    [("^(a$|b)$", "a", True), ("^(a$|b)$", "a\n", False), (r"^a\$$", "a$", True), ("^[^]$]$", "\n", True)],
)
def test_a_dollar_in_a_pattern_is_the_end_and_no_newline_follows(pattern: str, text: str, allowed: bool) -> None:
    assert (not find_mismatches(text, Annotated[str, Meta(pattern=pattern)])) is allowed  # type: ignore[arg-type]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 200)
    | st.floats(allow_nan=False)
    | st.sampled_from(["a", "MPS", "fast"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["sharing", "strategy", "limits", "device", "pair", "size", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*Config.__struct_fields__, "x"]), json_values))
def test_what_has_no_mismatch_decodes_and_what_does_not_decode_has_one(value: dict[str, Any]) -> None:
    mismatches = find_mismatches(value, Config)
    try:
        msgspec.convert(value, Config)
    except msgspec.ValidationError:
        assert mismatches
    else:
        assert all("unknown field" in mismatch for mismatch in mismatches)


def test_the_contracts_own_values_pass() -> None:
    device = {
        "name": "a",
        "attributes": {"v": {"version": "1.0.0"}, "n": 1, "l": [1, 2]},
        "capacity": {"m": {"value": "1Gi"}},
    }
    assert find_mismatches(device, Device) == ()


def test_a_value_as_long_as_a_claim_is_shown_shortened() -> None:
    (mismatch,) = find_mismatches({"mode": "x" * 100_000}, Config)
    assert len(mismatch) < 200


# Quantities

WORDS = "allowed: a quantity such as 2, 80Gi, 1500m or 1e3"


class Fast(msgspec.Struct, tag_field="type", tag="fast"):
    limit: Quantity = 1


class Slow(msgspec.Struct, tag_field="type", tag="slow"):
    limit: str = ""


class Limits(msgspec.Struct, rename="camel"):
    memory: Quantity | None = None
    per_device: Mapping[str, Quantity] = {}
    steps: list[Quantity] = []
    pair: tuple[Quantity, str] | None = None
    speed: Fast | Slow | None = None
    strict: Quantity = 0


TYPES = {"a.example.com/v1/Limits": Limits}


@pytest.mark.parametrize(
    ("fields", "problems"),
    [
        ({}, ()),
        ({"memory": None, "perDevice": {"a": 1, "b": "1.5Gi"}, "steps": ["-1", "1e3"], "pair": ["5m", "x"]}, ()),
        ({"memory": "10 Gi"}, (f'$.memory: found "10 Gi", {WORDS}',)),
        (
            {"perDevice": {"a": "x", "b c": ""}, "steps": [1, "1GB"], "pair": ["y", "z"]},
            (
                f'$.perDevice.a: found "x", {WORDS}',
                f'$.perDevice["b c"]: found "", {WORDS}',
                f'$.steps[1]: found "1GB", {WORDS}',
                f'$.pair[0]: found "y", {WORDS}',
            ),
        ),
        ({"speed": {"type": "fast", "limit": "x"}}, (f'$.speed.limit: found "x", {WORDS}',)),
        ({"speed": {"type": "slow", "limit": "x"}}, ()),
        ({"memory": 1.5}, (f"$.memory: found 1.5, {WORDS}",)),
        ({"memory": []}, (f"$.memory: found a list of 0, {WORDS}",)),
        ({"strict": "x"}, (f'$.strict: found "x", {WORDS}',)),
    ],
    ids=str,
)
def test_what_should_be_a_quantity_is_one(fields: dict[str, Any], problems: tuple[str, ...]) -> None:
    assert find_config_problems({"apiVersion": "a.example.com/v1", "kind": "Limits", **fields}, TYPES) == problems


def test_thousands_of_values_take_no_call_each() -> None:
    """A claim may have 32 configs of 10 KiB, and the event loop of a webhook checks them."""
    calls = 0

    def count(_frame: object, event: str, _: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    names = {f"A{number}": "x" for number in range(5000)}
    wanted = list[dict[Annotated[str, Meta(pattern="^[A-Z0-9]+$")], str]]
    sys.setprofile(count)
    try:
        assert find_mismatches([names], wanted) == ()
    finally:
        sys.setprofile(None)
    assert calls < 500


class Nothing(msgspec.Struct, frozen=True):
    """An object without fields."""


@pytest.mark.parametrize(
    ("value", "wanted", "problem"),
    [
        ({"strategy": "MPS"}, TimeSlicing, '$.strategy: found "MPS", allowed: "TimeSlicing"'),
        ({"a": 1}, Nothing, "$.a: unknown field, allowed: no fields"),
    ],
    ids=["another tag", "no fields"],
)
def test_an_object_of_one_type_alone_is_compared_with_it(value: Any, wanted: Any, problem: str) -> None:
    assert find_mismatches(value, wanted) == (problem,)
