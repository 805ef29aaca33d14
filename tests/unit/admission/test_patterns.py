"""Patterns in the dialect of CEL: the same language, or none."""

from __future__ import annotations

import pytest

from pydra.admission.cel.patterns import translate_pattern


@pytest.mark.parametrize(
    ("pattern", "translated"),
    [
        ("^[a-z]+$", r"^[a-z]+\n?\z"),
        ("a|b$", r"a|b\n?\z"),
        ("^(a$|b)$", r"^(a\n?\z|b)\n?\z"),
        (r"^\d+\.\d{1,3}$", r"^\p{Nd}+\.\p{Nd}{1,3}\n?\z"),
        (r"^[\w.-]*", r"^[\p{L}\p{N}_.-]*"),
        (r"\s", r"[\s\x0b\x1c-\x1f\x85\p{Z}]"),
        (r"^[]$]\]", r"^[]$]\]"),
        (r"^[^]x]$", r"^[^]x]\n?\z"),
        ("(?:x)?y*?", "(?:x)?y*?"),
        ("é{2}", "é{2}"),
        ("[(?=]", None),
        ("a{1001}", None),
        ("a{,3}", None),
        ("a++", None),
        ("(?=x)", None),
        ("(?P<n>x)", None),
        ("(?i)x", None),
        (r"(a)\1", None),
        (r"\bword\b", None),
        (r"x\Z", None),
        ("(a$)b", None),
        ("[[:alpha:]]", None),
    ],
)
def test_a_pattern_means_the_same_or_is_not_written(pattern: str, translated: str | None) -> None:
    assert translate_pattern(pattern) == translated
