"""Memory limits of MPS: Kubernetes quantities as whole MiB, and the keys that say whose limit it is. Pure.

Source: k8s.io/apimachinery/pkg/api/resource, Quantity (a decimal number, then a binary or decimal suffix or an
exponent; read as bytes it is rounded up); NVIDIA's driver for the rest: MiB are rounded down, and at least one.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from pydra import Quantity

MIB = 1 << 20
LARGEST = 2**63 - 1
_FORM = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d{1,3})|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?))", re.ASCII)
_BINARY = {suffix: Fraction(1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
_DECIMAL = {suffix: Fraction(10) ** (3 * power) for power, suffix in enumerate("num", -3)} | {
    suffix: Fraction(10) ** (3 * power) for power, suffix in enumerate(("", *"kMGTPE"))
}
_FACTORS = _BINARY | _DECIMAL
_INDEX = re.compile(r"0|[1-9]\d{0,3}", re.ASCII)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+", re.ASCII)


def parse_limit(quantity: Quantity) -> int:
    """The limit in whole MiB. Raises ValueError, saying what was found and what is allowed."""
    limit = _parse_bytes(quantity) // MIB
    if limit < 1:
        raise ValueError(f'found "{quantity}", allowed: at least 1Mi, as limits are set in whole MiB')
    return limit


def is_selector(key: str) -> bool:
    """Whether the key can mean a device: an index, or a UUID of a GPU or a partition."""
    return _INDEX.fullmatch(key) is not None or _UUID.fullmatch(key) is not None


def parse_index(key: str) -> int | None:
    """The index that the key is; None when it is a UUID."""
    return int(key) if _INDEX.fullmatch(key) else None


def _parse_bytes(quantity: Quantity) -> int:
    match = _FORM.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f'found "{quantity}", allowed: a quantity such as 512Mi, 10Gi or 1e9')
    sign, number, exponent, suffix = match.groups()
    factor = Fraction(10) ** int(exponent) if exponent is not None else _FACTORS[suffix]
    value = min(math.ceil(Fraction(number) * factor), LARGEST)
    return -value if sign == "-" else value
