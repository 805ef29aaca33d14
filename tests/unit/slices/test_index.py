"""Indexes in the names of slices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra.slices.index import build_generate_name, index_width, parse_index


@pytest.mark.parametrize(
    ("index", "count", "text"),
    [
        (0, 1, "00000"),
        (10, 11, "0000a"),
        (100_000, 100_001, "186a0"),
        (0xFFFFF, 0x100000, "fffff"),
        (1_048_576, 1_048_577, "100000"),
        (0, 1_048_577, "000000"),
    ],
)
def test_an_index_is_hexadecimal_and_wide_enough_for_all(index: int, count: int, text: str) -> None:
    name = build_generate_name(index, count, "gpu.example.com", "node1")
    assert name == f"{text}-gpu.example.com-node1-"
    assert parse_index(name + "x7k2p", count) == index


@pytest.mark.parametrize(
    "name",
    ["", "00000", "node1-gpu", "0000-x", "000000-x", "0000g-x", "0000A-x", "-0000-x", " 00000-x", "fffff0-x"],
)
def test_a_name_without_an_index_of_the_width_has_none(name: str) -> None:
    assert parse_index(name, 1) is None


def test_a_pool_of_no_node_has_no_owner_in_its_names() -> None:
    assert build_generate_name(3, 4, "net.example.com", "") == "00003-net.example.com-"


@given(st.integers(1, 2**24), st.data())
def test_every_index_of_a_pool_is_found_again(count: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, count - 1))
    name = build_generate_name(index, count, "d", "n")
    assert parse_index(name, count) == index
    assert len(name.split("-")[0]) == index_width(count) >= 5
