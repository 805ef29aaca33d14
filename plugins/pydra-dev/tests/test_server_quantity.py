"""Quantities as a real API server stores them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_dev.api.quantity import canonical_quantity, parse_quantity

CANONICAL = {
    "0": "0",
    "1024Mi": "1Gi",
    "1.5Gi": "1536Mi",
    "0.5Ki": "512",
    "1024": "1024",
    "1000Ki": "1000Ki",
    "1000m": "1",
    "1500m": "1500m",
    "0.1": "100m",
    "2000": "2k",
    "123456789012": "123456789012",
    "1e3": "1e3",
    "1e21": "1e21",
    "5E": "5E",
    "100n": "100n",
    "-1": "-1",
    "0.0000000001": "1n",
}
"""What kube-apiserver 1.36.2 stored for these."""

CANONICAL |= {"1000E": "1e21", "1500E": "1500E", "1024Ei": "1180591620717411303424", "1000Ei": "1000Ei"}
"""What 1.38 stores, by its changelog; no earlier release keeps these."""


@pytest.mark.parametrize(("given_text", "stored"), CANONICAL.items())
def test_a_quantity_is_stored_as_a_real_server_stores_it(given_text: str, stored: str) -> None:
    assert canonical_quantity(given_text) == stored


@pytest.mark.parametrize("text", ["", "lots", "1 Gi", "1gi", "1GiB", "--1", "1e", "e3", "1e1000000"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


@given(st.integers(-(10**18), 10**18), st.sampled_from(["", "n", "u", "m", "k", "M", "Ki", "Mi", "Gi", "e3"]))
def test_the_canonical_form_has_the_same_value_and_is_its_own(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    canonical = canonical_quantity(text)
    assert parse_quantity(canonical) == parse_quantity(text)
    assert canonical_quantity(canonical) == canonical


def test_integers_are_quantities() -> None:
    assert parse_quantity(5) == Fraction(5)
    assert canonical_quantity(5000) == "5k"
