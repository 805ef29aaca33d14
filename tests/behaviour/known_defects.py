"""Tests of this folder that fail today, by name, with the letter of the defect in part 5 of issue 8.

A test on this list is expected to fail, so whoever mends the defect removes its line.
"""

from __future__ import annotations

KNOWN_DEFECTS: dict[str, str] = {}
