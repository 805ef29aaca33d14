"""The name that a library gives itself."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_nvidia.cdi.libraries import Elf, read_elf

WIDE = b"\x7fELF\x02\x01\x01"


def _library(soname: str) -> bytes:
    strings = b"\0" + soname.encode() + b"\0"
    dynamic = struct.pack("<qQqQqQ", 14, 1, 5, 0x1000 + 224, 0, 0)
    header = WIDE.ljust(16, b"\0") + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x1000, 0x1000, 4096, 4096, 4096)
    place = struct.pack("<IIQQQQQQ", 2, 6, 176, 0x10B0, 0x10B0, 48, 48, 8)
    return header + load + place + dynamic + strings


def test_a_library_tells_its_soname() -> None:
    assert read_elf(io.BytesIO(_library("libcuda.so.1"))) == Elf(wide=True, soname="libcuda.so.1")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"", None, id="empty"),
        pytest.param(b"INPUT(libcuda.so.1)", None, id="linker script"),
        pytest.param(b"\x7fELF\x01\x01" + bytes(60), Elf(wide=False), id="32-bit"),
        pytest.param(WIDE, None, id="cut off in its header"),
        pytest.param(_library("libcuda.so.1")[:180], Elf(wide=True), id="cut off in its dynamic section"),
        pytest.param(_library("x" * 400), Elf(wide=True), id="a name that does not end"),
        pytest.param(_library("../libcuda.so.1"), Elf(wide=True), id="a name that is a path"),
    ],
)
def test_what_tells_no_name_has_none(content: bytes, expected: Elf | None) -> None:
    assert read_elf(io.BytesIO(content)) == expected


def test_the_libraries_of_this_process_tell_the_names_they_are_loaded_by() -> None:
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so.6" in line}
    if not paths:
        pytest.skip("this process has no glibc")
    with open(paths.pop(), "rb") as file:
        assert read_elf(file) == Elf(wide=True, soname="libc.so.6")


@pytest.mark.fuzz
@given(st.binary(max_size=400), st.integers(0, 250), st.binary(max_size=60))
def test_damage_never_raises(rest: bytes, where: int, patch: bytes) -> None:
    read_elf(io.BytesIO(WIDE + rest))
    damaged = bytearray(_library("libcuda.so.1"))
    damaged[where : where + len(patch)] = patch
    read_elf(io.BytesIO(bytes(damaged)))
