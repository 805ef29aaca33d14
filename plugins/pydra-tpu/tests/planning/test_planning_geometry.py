"""What a host can be cut into, and where its chips are."""

from __future__ import annotations

from itertools import combinations

import pytest

from pydra_tpu.geometry import (
    HOST_BOUNDS,
    Bounds,
    divide_bounds,
    find_sub_slice,
    format_topology,
    list_sub_slices,
    locate,
    parse_topology,
)


@pytest.mark.parametrize(
    ("chips", "sizes"), [(1, [1]), (4, [4, 2, 2, 1, 1, 1, 1]), (8, [8, 4, 4, 2, 2, 2, 2, *[1] * 8])]
)
def test_a_host_is_cut_into_halves_down_to_single_chips_with_the_whole_first(chips: int, sizes: list[int]) -> None:
    assert [len(one.chips) for one in list_sub_slices(chips)] == sizes


@pytest.mark.parametrize("chips", HOST_BOUNDS)
def test_a_sub_slice_has_the_shape_of_its_size_and_two_either_nest_or_share_nothing(chips: int) -> None:
    found = list_sub_slices(chips)
    assert all(one.bounds.size == len(one.chips) for one in found)
    for one, other in combinations(found, 2):
        shared = set(one.chips) & set(other.chips)
        assert shared in (set(), set(one.chips), set(other.chips))


def test_only_chips_that_are_a_sub_slice_together_are_one() -> None:
    assert find_sub_slice([3, 2], 8) == list_sub_slices(8)[4]
    assert find_sub_slice([1, 2], 8) is None
    assert find_sub_slice([2, 3, 4, 5], 8) is None
    assert find_sub_slice([], 8) is None


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((2, 4, 1), [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 2, 0), (1, 2, 0), (0, 3, 0), (1, 3, 0)]),
        ((2, 2, 1), [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]),
        ((1, 2, 1), [(0, 0, 0), (0, 1, 0)]),
        ((2, 2, 2), [(x, y, z) for z in (0, 1) for y in (0, 1) for x in (0, 1)]),
    ],
)
def test_chips_are_counted_row_by_row_as_jax_counts_its_devices(bounds: Bounds, expected: list[object]) -> None:
    assert [locate(index, Bounds(*bounds)) for index in range(len(expected))] == expected


@pytest.mark.parametrize("text", ["2x4", "2x2x1", "16x16", "4x4x8"])
def test_a_topology_is_read_and_written_the_same(text: str) -> None:
    assert format_topology(parse_topology(text), text.count("x") + 1) == text


@pytest.mark.parametrize("text", ["", "2", "2x", "x2", "0x2", "2x-2", "2x2x2x2", "2 x 2", "٢x٢"])
def test_what_is_not_a_topology_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a topology"):
        parse_topology(text)


def test_hosts_fill_a_topology_or_their_arrangement_is_not_known() -> None:
    assert divide_bounds(Bounds(4, 4, 4), Bounds(2, 2, 1)) == (2, 2, 4)
    assert divide_bounds(Bounds(2, 2, 1), Bounds(2, 4, 1)) is None
