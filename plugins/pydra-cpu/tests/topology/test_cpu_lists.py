"""Lists of CPUs as the kernel writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_cpu.cpu_list import format_cpu_list, parse_cpu_list


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", set()), ("0", {0}), ("0-3", {0, 1, 2, 3}), ("0-1,8,10-11", {0, 1, 8, 10, 11}), ("3,1", {1, 3})],
)
def test_a_list_has_single_cpus_and_ranges(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    "text", ["a", "1-", "-1", "3-1", "1,,2", "1,", "1 2", "0x1", "0-99999", "0-3:1/2", "1\n2", "\u0663", "0-65535,0"]
)
def test_what_is_not_a_list_is_refused(text: str) -> None:
    """The last one repeats CPUs: a claim could have the webhook build huge ranges again and again."""
    with pytest.raises(ValueError, match="is not a"):
        parse_cpu_list(text)


@given(st.frozensets(st.integers(0, 300)))
def test_a_written_list_reads_as_the_same_cpus(cpus: frozenset[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == cpus
