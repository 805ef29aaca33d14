"""The name that a library gives itself."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_nvidia.cdi.libraries import Elf, read_elf
from pydra_nvidia.simulation.tree.libraries import build_library

WIDE = b"\x7fELF\x02\x01\x01"


def test_a_library_tells_its_soname() -> None:
    assert read_elf(io.BytesIO(build_library("libcuda.so.1"))) == Elf(wide=True, soname="libcuda.so.1")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"", None, id="empty"),
        pytest.param(b"INPUT(libcuda.so.1)", None, id="linker script"),
        pytest.param(b"\x7fELF\x01\x01" + bytes(60), Elf(wide=False), id="32-bit"),
        pytest.param(WIDE, None, id="cut off in its header"),
        pytest.param(build_library("libcuda.so.1")[:-80], Elf(wide=True), id="cut off in its dynamic section"),
        pytest.param(build_library("x" * 400), Elf(wide=True), id="a name that does not end"),
        pytest.param(build_library("../libcuda.so.1"), Elf(wide=True), id="a name that is a path"),
    ],
)
def test_what_tells_no_name_has_none(content: bytes, expected: Elf | None) -> None:
    assert read_elf(io.BytesIO(content)) == expected


@pytest.mark.fuzz
@given(st.binary(max_size=400), st.integers(0, 600), st.binary(max_size=60))
def test_damage_never_raises(rest: bytes, where: int, patch: bytes) -> None:
    read_elf(io.BytesIO(WIDE + rest))
    damaged = bytearray(build_library("libcuda.so.1"))
    damaged[where : where + len(patch)] = patch
    read_elf(io.BytesIO(bytes(damaged)))
