"""Quantities as whole MiB, compared with pydra's own reading of quantities."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra import parse_quantity
from pydra_nvidia.sharing.limits import is_selector, parse_index, parse_limit

SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E9", "e-2"]
NUMBERS = st.integers(0, 10**13).map(str) | st.decimals(0, 10**6, places=3).map(str)


@given(NUMBERS, st.sampled_from(SUFFIXES), st.sampled_from(["", "+", "-"]))
def test_a_limit_is_the_quantitys_bytes_in_whole_mib(number: str, suffix: str, sign: str) -> None:
    quantity = f"{sign}{number}{suffix}"
    wanted = math.ceil(parse_quantity(quantity)) >> 20
    if wanted >= 1:
        assert parse_limit(quantity) == wanted
    else:
        with pytest.raises(ValueError, match="at least 1Mi"):
            parse_limit(quantity)


@given(st.text(max_size=12))
def test_text_is_a_limit_exactly_when_it_is_a_quantity_of_a_mib_or_more(text: str) -> None:
    try:
        wanted = math.ceil(parse_quantity(text)) >> 20
    except ValueError:
        wanted = 0
    if wanted >= 1:
        assert parse_limit(text) == wanted
    else:
        with pytest.raises(ValueError, match="allowed"):
            parse_limit(text)


@pytest.mark.parametrize(
    ("quantity", "mib"),
    [
        ("1Mi", 1),
        ("1.5Mi", 1),
        ("10Gi", 10240),
        ("10G", 9536),
        (1 << 20, 1),
        ("1e9", 953),
        ("1048575.1", 1),
        ("9E", 8583068847656),
    ],
)
def test_limits_are_rounded_down_to_whole_mib(quantity: int | str, mib: int) -> None:
    assert parse_limit(quantity) == mib


@pytest.mark.parametrize(
    ("key", "index"),
    [("0", 0), ("17", 17), ("GPU-8a6f", None), ("MIG-GPU-8a6f/7/0", None)],
)
def test_a_key_is_an_index_or_a_uuid(key: str, index: int | None) -> None:
    assert is_selector(key)
    assert parse_index(key) == index


@pytest.mark.parametrize("key", ["", "gpu-0", "-1", "+1", "01", "1.0", "GPU-", "GPU-a b", "a\nGPU-1", "\u0663"])
def test_other_keys_are_none(key: str) -> None:
    assert not is_selector(key)
