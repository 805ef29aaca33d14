"""Amounts in configs: what the type calls a quantity is one, or is told with its path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from pydra.backends.config import find_config_problems
from pydra.devices import Quantity

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

    def __post_init__(self) -> None:
        if self.strict == "no":
            raise ValueError("the backend's own words")


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
        ({"memory": 1.5}, ("$.memory: found 1.5, allowed: an integer",)),
        ({"memory": []}, ("$.memory: found a list of 0, allowed: an integer or a string or null",)),
        ({"memory": "x", "strict": "no"}, ("$: the backend's own words",)),
    ],
    ids=str,
)
def test_what_should_be_a_quantity_is_one(fields: dict[str, Any], problems: tuple[str, ...]) -> None:
    assert find_config_problems({"apiVersion": "a.example.com/v1", "kind": "Limits", **fields}, TYPES) == problems
