"""Fields that only a newer version knows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pydra.checkpoint.unknown import find_unknown, restore_unknown


class _Leaf(msgspec.Struct):
    a: int


class _Tree(msgspec.Struct):
    one: _Leaf
    several: tuple[_Leaf, ...] = ()
    data: dict[str, int] = {}


def test_unknown_fields_are_found_at_every_level_and_the_keys_of_a_mapping_never_are() -> None:
    document = {"one": {"a": 1, "b": 2}, "several": [{"a": 1}, {"a": 2, "x/y": 3}], "data": {"k": 1}, "z~": [4]}
    value = _Tree(one=_Leaf(1), several=(_Leaf(1), _Leaf(2)), data={"k": 1})
    assert dict(find_unknown(document, value)) == {"/one/b": 2, "/several/1/x~1y": 3, "/z~0": [4]}


@pytest.mark.parametrize(
    ("unknown", "expected"),
    [
        pytest.param({"/z~0": [4]}, {"one": {}, "several": [{}], "z~": [4]}, id="at the top"),
        pytest.param({"/one/x~1y": 1}, {"one": {"x/y": 1}, "several": [{}]}, id="in an object"),
        pytest.param({"/several/0/b": 1}, {"one": {}, "several": [{"b": 1}]}, id="in a list"),
        pytest.param({"/several/1/b": 1}, {"one": {}, "several": [{}]}, id="of an entry that is gone"),
        pytest.param({"/none/b": 1}, {"one": {}, "several": [{}]}, id="of an object that is gone"),
        pytest.param({"/one": 1}, {"one": {}, "several": [{}]}, id="never over what is known"),
    ],
)
def test_unknown_fields_return_to_their_place_if_it_is_there(unknown: dict[str, Any], expected: dict[str, Any]) -> None:
    document: dict[str, Any] = {"one": {}, "several": [{}]}
    restore_unknown(document, unknown)
    assert document == expected
