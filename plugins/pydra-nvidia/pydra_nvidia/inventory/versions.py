"""Versions as attributes: strictly semantic, which NVIDIA's are not. Pure."""

from __future__ import annotations

import re

from pydra import Version

_NUMBERS = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?")


def parse_version(text: str) -> Version | None:
    """Three numbers without leading zeros: `580.105.08` is 580.105.8, `9.0` is 9.0.0. None: there is no number.

    What comes after the third number is left out.
    """
    match = _NUMBERS.match(text.strip())
    return None if match is None else Version(".".join(str(int(number or 0)) for number in match.groups()))


def cuda_version(number: int) -> Version:
    """From CUDA's own counting: 13000 is 13.0.0, 12080 is 12.8.0."""
    return Version(f"{number // 1000}.{number % 1000 // 10}.0")
