"""Parses and canonicalises Kubernetes quantities.

Values are exact, and the canonical form is the one in which the API server stores them; above 2**63-1, that of 1.38,
since servers up to 1.37 lose such values, or cap them. Source:
k8s.io/apimachinery/pkg/api/resource, Quantity: a decimal number and a suffix, binary (`Ki` to `Ei`), decimal (`n` to
`E`, none) or an exponent (`e3`, `E-2`).
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from pydra.devices import Quantity

_FORM = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([eE][+-]?[0-9]{1,3})|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?))")
_BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL_EXPONENTS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIXES = {exponent: suffix for suffix, exponent in _DECIMAL_EXPONENTS.items()}
_FACTORS = {suffix: Fraction(10) ** exponent for suffix, exponent in _DECIMAL_EXPONENTS.items()} | {
    suffix: Fraction(1024**power) for power, suffix in enumerate(_BINARY_SUFFIXES) if suffix
}
_NANO = Fraction(1, 10**9)


@lru_cache(maxsize=1024, typed=True)
def parse_quantity(quantity: Quantity) -> Fraction:
    """Return the value as the API server reads it: rounded up to billionths.

    Raises ValueError, saying what a quantity looks like.
    """
    return _parse(quantity)[0]


def is_quantity(quantity: object) -> bool:
    """Return whether the API server accepts the quantity."""
    try:
        parse_quantity(quantity)
    except (ValueError, TypeError):
        return False
    return True


@lru_cache(maxsize=1024, typed=True)
def canonical_quantity(quantity: Quantity) -> str:
    """Return it as the API server writes it: `1024Mi` is `1Gi`, `1500m` stays, `1000m` is `1`, `0.5` is `500m`.

    Raises ValueError.
    """
    value, style = _parse(quantity)
    if value == 0:
        return "0"
    if style == "binary" and value.denominator == 1 and abs(value) >= 1024:
        number, power = _strip(value.numerator, 1024)
        return f"{number}{_BINARY_SUFFIXES[power]}" if power < len(_BINARY_SUFFIXES) else str(value.numerator)
    number, power = _strip(int(value / _NANO), 1000)
    exponent = 3 * power - 9
    if exponent not in _DECIMAL_SUFFIXES or (style == "exponent" and exponent):
        return f"{number}e{exponent}"
    return f"{number}{_DECIMAL_SUFFIXES[exponent]}"


def _strip(number: int, factor: int) -> tuple[int, int]:
    """Divide out the factors; return the rest and how many there were."""
    power = 0
    while number % factor == 0:
        number //= factor
        power += 1
    return number, power


def _parse(quantity: Quantity) -> tuple[Fraction, str]:
    if isinstance(quantity, int) and not isinstance(quantity, bool):
        return Fraction(quantity), "decimal"
    match = _FORM.fullmatch(quantity) if isinstance(quantity, str) else None
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity: a number such as 2, 80Gi, 1500m or 1e3")
    sign, number, exponent, suffix = match.groups()
    if exponent:
        value, style = Fraction(number) * Fraction(10) ** int(exponent[1:]), "exponent"
    else:
        value, style = Fraction(number) * _FACTORS[suffix], "binary" if suffix.endswith("i") else "decimal"
    if _NANO.denominator % value.denominator:
        value = (value // _NANO + 1) * _NANO
    return (-1 if sign == "-" else 1) * value, style
