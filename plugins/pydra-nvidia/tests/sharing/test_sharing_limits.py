"""Limits as whole MiB, and whose they are."""

from __future__ import annotations

import pytest

from pydra_nvidia.claim_config import is_selector, parse_index, parse_limit


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


@pytest.mark.parametrize("quantity", ["", "0", "-1Gi", "1048575", "1023Ki", "10 Gi", "1gb", "much"])
def test_what_is_no_quantity_or_less_than_one_mib_is_refused(quantity: str) -> None:
    with pytest.raises(ValueError, match="allowed"):
        parse_limit(quantity)


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
