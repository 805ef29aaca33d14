"""Kubernetes quantities as the API server reads and rewrites them. Pure.

`parse_quantity` gives the exact value, `canonical_quantity` the string that a real server stores
(`1024Mi` becomes `1Gi`, `1000m` becomes `1`). Written from the grammar of apimachinery's
`resource.Quantity`, on purpose apart from the agent's own reading of quantities: the embedded
server is there to disagree with a mistake.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from math import ceil

_NUMBER = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))([a-zA-Z]*[+-]?[0-9]*)")
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIX = {power: suffix for suffix, power in _BINARY.items()}
_DECIMAL_SUFFIX = {power: suffix for suffix, power in _DECIMAL.items()}
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)")

BINARY, DECIMAL, EXPONENT = "BinarySI", "DecimalSI", "DecimalExponent"


@lru_cache(maxsize=4096, typed=True)  # a scheduler reads the same few again and again
def _read(text: str | int) -> tuple[Fraction, str]:
    match = _NUMBER.fullmatch(str(text))
    if match is None or isinstance(text, bool):
        raise ValueError(f"{text!r} is not a quantity")
    number, suffix = Fraction(match[1]), match[2]
    if suffix in _BINARY:
        return number * 1024 ** _BINARY[suffix], BINARY
    if suffix in _DECIMAL:
        return number * Fraction(10) ** _DECIMAL[suffix], DECIMAL
    exponent = _EXPONENT.fullmatch(suffix)
    if exponent is None or abs(int(exponent[1])) > 100:
        raise ValueError(f"{text!r} is not a quantity")
    return number * Fraction(10) ** int(exponent[1]), EXPONENT


def parse_quantity(text: str | int) -> Fraction:
    """The exact value; raises ValueError for anything that is not a quantity."""
    return _read(text)[0]


def canonical_quantity(text: str | int) -> str:
    """The quantity as the server stores it; raises ValueError for anything that is not one."""
    value, style = _read(text)
    return format_quantity(value, style)


def format_like(value: Fraction, example: str | int) -> str:
    """A value in the style of another quantity: how much of it is taken."""
    return format_quantity(value, _read(example)[1])


def format_quantity(value: Fraction | int, style: str = DECIMAL) -> str:
    """The shortest exact form in a style; what is finer than a billionth is rounded up."""
    value = Fraction(value)
    if value == 0:
        return "0"
    if style == BINARY and abs(value) >= 1024:
        return _format_binary(ceil(value))
    scaled = ceil(value * 10**9)
    power = -9
    while scaled % 1000 == 0:
        scaled //= 1000
        power += 3
    if style == EXPONENT or power > 18:  # no release before 1.38 keeps what is too much for a suffix
        return f"{scaled}e{power}" if power else str(scaled)
    return f"{scaled}{_DECIMAL_SUFFIX[power]}"


def _format_binary(value: int) -> str:
    whole, power = value, 0
    while value % 1024 == 0:
        value //= 1024
        power += 1
    return f"{value}{_BINARY_SUFFIX.get(power, '')}" if power <= 6 else str(whole)
