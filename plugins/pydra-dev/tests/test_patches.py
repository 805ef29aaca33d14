"""The two ways to patch, by the cases of their specifications."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_dev.apiserver.patches import MERGE, STRATEGIC, apply_patch, merge_patch

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.text("ab", max_size=1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)

RFC_7386 = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]
STRATEGIC_PATCHES = [
    (
        {"conditions": [{"type": "A", "status": "True"}]},
        {"conditions": [{"type": "B", "status": "True"}, {"type": "A", "status": "False"}]},
        {"conditions": [{"type": "A", "status": "False"}, {"type": "B", "status": "True"}]},
    ),
    (
        {"containers": [{"name": "a"}, {"name": "b"}]},
        {"containers": [{"name": "a", "$patch": "delete"}], "$setElementOrder/containers": [{"name": "b"}]},
        {"containers": [{"name": "b"}]},
    ),
    ({"finalizers": ["a"]}, {"finalizers": ["b", "a"]}, {"finalizers": ["a", "b"]}),
    ({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]}),
    ({"requests": [{"name": "a"}]}, {"requests": [{"name": "b"}]}, {"requests": [{"name": "b"}]}),
    ({"labels": {"a": "1"}}, {"labels": {"$patch": "replace", "b": "2"}}, {"labels": {"b": "2"}}),
    ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
]


@pytest.mark.parametrize(("target", "patch", "result"), RFC_7386)
def test_a_merge_patch_follows_the_rfc(target: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]) -> None:
    assert apply_patch(MERGE, target, patch) == result


@pytest.mark.parametrize(("target", "patch", "result"), STRATEGIC_PATCHES)
def test_a_strategic_patch_joins_by_key(target: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]) -> None:
    before = repr(target)
    assert apply_patch(STRATEGIC, target, patch) == result
    assert repr(target) == before


@given(json_values, json_values)
def test_merging_twice_is_merging_once(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
