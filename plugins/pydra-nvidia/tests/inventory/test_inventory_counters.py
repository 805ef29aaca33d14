"""Counters allow what the hardware can make, and nothing else."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra import parse_quantity
from pydra_nvidia.hardware_types import Placement, Profile
from pydra_nvidia.inventory.partitions import Offer, build_table

small = st.integers(min_value=0, max_value=8)


@st.composite
def profile_tables(draw: st.DrawFn) -> tuple[Profile, ...]:
    """Any table of profiles, however unlike today's."""
    slices = draw(st.integers(min_value=1, max_value=8))
    profiles = []
    for id_ in range(draw(st.integers(min_value=1, max_value=5))):
        size = draw(st.integers(min_value=1, max_value=slices))
        starts = draw(st.sets(st.integers(min_value=0, max_value=slices - size), min_size=1))
        profiles.append(
            Profile(
                id=id_,
                name=f"{size}g.{size}gb",
                slices=size,
                most=draw(st.integers(min_value=1, max_value=slices)),
                memory_mib=draw(st.integers(min_value=1, max_value=9)) * 1000,
                multiprocessors=draw(small),
                copy_engines=draw(small),
                decoders=draw(small),
                encoders=draw(small),
                jpeg_engines=draw(small),
                ofa_engines=draw(small),
                placements=tuple(Placement(start, size) for start in sorted(starts)),
            )
        )
    return tuple(profiles)


def fits(profiles: tuple[Profile, ...], offers: list[Offer]) -> bool:
    """Whether the scheduler would give all of these at once."""
    left = {name: Fraction(amount) for name, amount in build_table(profiles).counters.items()}
    for offer in offers:
        for name, amount in offer.draws.items():
            left[name] -= parse_quantity(amount)
    return all(amount >= 0 for amount in left.values())


def possible(offers: list[Offer]) -> bool:
    """Whether the hardware could hold all of these at once, by its places and by how many of a profile it allows."""
    apart = not any(a.placement.overlaps(b.placement) for a, b in combinations(offers, 2))
    ids = [offer.profile.id for offer in offers]
    return apart and all(ids.count(offer.profile.id) <= offer.profile.most for offer in offers)


def possible_today(offers: list[Offer]) -> bool:
    """The same for GPUs of today: each has one OFA, so one partition with media engines."""
    return possible(offers) and sum(offer.profile.ofa_engines for offer in offers) <= 1


@pytest.mark.parametrize("model", ["H100", "H200", "A100", "A30"])
@given(data=st.data())
def test_all_that_a_real_gpu_can_hold_is_within_the_counters(boards: Any, model: str, data: st.DataObject) -> None:
    profiles = boards.profiles(model)
    chosen: list[Offer] = []
    for offer in data.draw(st.permutations(build_table(profiles).offers)):
        if possible_today([*chosen, offer]):
            chosen.append(offer)
            assert fits(profiles, chosen)


@pytest.mark.parametrize("model", ["H100", "H200", "A100", "A30"])
def test_two_fit_together_if_the_gpu_can_hold_both_and_none_fits_beside_the_whole(boards: Any, model: str) -> None:
    profiles = boards.profiles(model)
    table = build_table(profiles)
    for first, second in combinations(table.offers, 2):
        assert fits(profiles, [first, second]) is possible_today([first, second])
    assert all(any(table.counters[name] and amount for name, amount in one.draws.items()) for one in table.offers)


@given(profile_tables(), st.data())
def test_what_fits_the_counters_of_any_table_the_hardware_can_hold(
    profiles: tuple[Profile, ...], data: st.DataObject
) -> None:
    offers = build_table(profiles).offers
    chosen = data.draw(st.lists(st.sampled_from(offers), max_size=8))
    if fits(profiles, chosen):
        assert possible(chosen)


def test_todays_gpus_need_no_counter_besides_nvidias(boards: Any) -> None:
    for model in ("H100", "H200", "A100", "A30"):
        assert build_table(boards.profiles(model)).counted == frozenset()


@given(profile_tables())
def test_all_places_of_any_table_are_offered_once_small_ones_first(profiles: tuple[Profile, ...]) -> None:
    table = build_table(profiles)
    offered = [(offer.profile.id, offer.placement) for offer in table.offers]
    assert sorted(offered) == sorted((profile.id, place) for profile in profiles for place in profile.placements)
    sizes = [(offer.profile.slices, offer.profile.memory_mib) for offer in table.offers]
    assert sizes == sorted(sizes)
    assert len(table.counters) <= 32
