"""Quantities: exact values and the server's spelling."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra.quantity import canonical_quantity, is_quantity, parse_quantity
from pydra_dev.api.quantity import canonical_quantity as servers_spelling
from pydra_dev.api.quantity import parse_quantity as servers_value

TABLE: dict[int | str, tuple[Fraction | int, str]] = {
    0: (0, "0"),
    7: (7, "7"),
    "0Gi": (0, "0"),
    "1024Mi": (2**30, "1Gi"),
    "1.5Gi": (3 * 2**29, "1536Mi"),
    "1500Ki": (1_536_000, "1500Ki"),
    "0.5Ki": (512, "512"),
    "1000m": (1, "1"),
    "1500m": (Fraction(3, 2), "1500m"),
    "0.5": (Fraction(1, 2), "500m"),
    ".5": (Fraction(1, 2), "500m"),
    "1.": (1, "1"),
    "1000k": (10**6, "1M"),
    "100": (100, "100"),
    "1e3": (1000, "1e3"),
    "12E6": (12_000_000, "12e6"),
    "1E": (10**18, "1E"),
    "+5": (5, "5"),
    "-1500m": (Fraction(-3, 2), "-1500m"),
    "5n": (Fraction(5, 10**9), "5n"),
    "0.1n": (Fraction(1, 10**9), "1n"),
    "1e21": (10**21, "1e21"),
    "1000E": (10**21, "1e21"),
    "1500E": (15 * 10**20, "1500E"),
    "1000Ei": (1000 * 2**60, "1000Ei"),
    "1024Ei": (2**70, str(2**70)),
    2**70: (2**70, str(2**70)),
    10**27: (10**27, "1e27"),
    "12345678901234567890123n": (Fraction(12345678901234567890123, 10**9), "12345678901234567890123n"),
}


@pytest.mark.parametrize(
    ("quantity", "value", "spelling"), [(q, *rest) for q, rest in TABLE.items()], ids=map(str, TABLE)
)
def test_a_quantity_has_its_exact_value_and_the_servers_spelling(
    quantity: int | str, value: Fraction, spelling: str
) -> None:
    assert parse_quantity(quantity) == value
    assert canonical_quantity(quantity) == spelling


def test_the_embedded_server_agrees() -> None:
    for quantity in TABLE:
        assert servers_value(quantity) <= parse_quantity(quantity), f"{quantity} is rounded up to billionths"
        assert servers_spelling(quantity) == canonical_quantity(quantity)


@pytest.mark.parametrize(
    "text", ["", "Gi", "1 Gi", "1gi", "0x10", "1e", "1e1000", "１", "1_000", "nan", "--1", "1KiB", "1\n"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    assert not is_quantity(text)
    with pytest.raises(ValueError, match="is not a quantity: a number such as 2, 80Gi"):
        parse_quantity(text)


@pytest.mark.parametrize("thing", [True, None, 1.5, b"1"], ids=str)
def test_what_is_neither_text_nor_integer_is_refused(thing: object) -> None:
    assert parse_quantity(1) == 1
    assert not is_quantity(thing)


numbers = st.decimals(min_value=-(10**6), max_value=10**6, places=3, allow_nan=False).map(lambda d: f"{d:f}")
suffixes = st.sampled_from(["", "Ki", "Mi", "Gi", "m", "k", "M", "e3", "E-2"])


@given(st.builds(str.__add__, numbers, suffixes))
def test_the_servers_spelling_has_the_same_value_and_is_its_own(quantity: str) -> None:
    spelling = canonical_quantity(quantity)
    assert parse_quantity(spelling) == parse_quantity(quantity)
    assert canonical_quantity(spelling) == spelling


@given(st.builds(str.__add__, st.integers(0, 10**6).map(str), suffixes))
def test_the_agents_reading_agrees_with_the_embedded_servers(quantity: str) -> None:
    assert parse_quantity(quantity) == servers_value(quantity)
    assert parse_quantity(servers_spelling(quantity)) == parse_quantity(quantity)
