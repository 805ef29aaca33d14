"""Files as values: bringing a directory from one set to another, empty libraries, the numbers of capabilities."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_nvidia.cdi.libraries import Elf, read_elf
from pydra_nvidia.simulation.tree import files
from pydra_nvidia.simulation.tree.device_numbers import compute_minor, describe_minors, instance_minor
from pydra_nvidia.simulation.tree.files import AARCH64, X86_64, Files, build_library, change_files

ENTRIES = st.one_of(
    st.sampled_from(["one", "two"]).map(files.text),
    st.sampled_from(["#!/bin/sh\n"]).map(files.program),
    st.sampled_from(["../elsewhere", "/nowhere"]).map(files.link),
    st.sampled_from([files.folder(), files.device(), files.socket(), files.library("libx.so.1", X86_64)]),
)


def without_conflicts(sets: Files) -> Files:
    """A path that lies below a file is left out."""
    inner = {path: entry for path, entry in sets.items() if entry == files.folder()}
    others = {path: entry for path, entry in sets.items() if entry != files.folder()}
    leaves = {path: e for path, e in others.items() if not any(one.startswith(f"{path}/") for one in sets)}
    return leaves | {path: e for path, e in inner.items() if not any(path.startswith(f"{one}/") for one in leaves)}


SETS = st.dictionaries(st.sampled_from(["a", "a/b", "a/b/c", "d/e", "d/f", "g"]), ENTRIES).map(without_conflicts)


def found(root: str) -> dict[str, str]:
    """What is there, in words: the kind, and the content or target; directories only where they are empty."""
    there = {}
    for folder, folders, names in os.walk(root):
        for name in (*names, *folders):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                words = f"link {os.readlink(path)}"
            elif stat.S_ISDIR(mode):
                if os.listdir(path):
                    continue
                words = "folder"
            elif stat.S_ISREG(mode):
                words = f"{stat.S_IMODE(mode):o} {Path(path).read_bytes()!r}"
            else:
                words = f"special {stat.S_IFMT(mode):o}"
            there[os.path.relpath(path, root)] = words
    return there


@given(before=SETS, after=SETS)
def test_a_directory_that_was_changed_is_as_one_made_new(before: Files, after: Files) -> None:
    with tempfile.TemporaryDirectory() as changed, tempfile.TemporaryDirectory() as new:
        change_files(changed, {}, before)
        change_files(changed, before, after)
        change_files(new, {}, after)
        there = found(changed)
        for path in [path for path, words in there.items() if words == "folder" and path not in found(new)]:
            assert path in before  # it was one before, and is in nobody's way
            there.pop(path)
        assert there == found(new)


def test_what_somebody_damaged_is_left_until_it_changes(tmp_path: Path) -> None:
    before = {"a": files.text("one"), "b": files.text("one")}
    change_files(str(tmp_path), {}, before)
    (tmp_path / "a").unlink()
    (tmp_path / "b").unlink()
    change_files(str(tmp_path), before, {"a": files.text("two"), "b": files.text("one")})
    assert found(str(tmp_path)) == {"a": "644 b'two\\n'"}


def test_a_reader_of_a_changed_file_sees_the_old_or_the_new(tmp_path: Path) -> None:
    before = {"a": files.text("one")}
    change_files(str(tmp_path), {}, before)
    with open(tmp_path / "a", encoding="utf-8") as reader:
        change_files(str(tmp_path), before, {"a": files.text("two")})
        assert reader.read() == "one\n"
    assert (tmp_path / "a").read_text() == "two\n"


@pytest.mark.parametrize("soname", ["libcuda.so.1", "libnvidia-glcore.so.580.105.08"])
@pytest.mark.parametrize("machine", [X86_64, AARCH64])
def test_an_empty_library_tells_its_soname(tmp_path: Path, soname: str, machine: int) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(build_library(soname, machine))
    with open(path, "rb") as file:
        assert read_elf(file) == Elf(wide=True, soname=soname)


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="no libraries are made for this processor")
def test_an_empty_library_is_loaded_and_preloaded_by_the_real_loader(tmp_path: Path) -> None:
    path = tmp_path / "libnvidia-ml.so.1"
    path.write_bytes(build_library(path.name, X86_64 if os.uname().machine == "x86_64" else AARCH64))
    assert ctypes.CDLL(str(path))._handle
    ran = subprocess.run(
        [sys.executable, "-c", "print(open('/proc/self/maps').read())"],
        env={**os.environ, "LD_PRELOAD": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (str(path) in ran.stdout, ran.stderr) == (True, "")


@pytest.mark.parametrize(
    ("gpu", "instance", "compute", "minors"),
    [(0, 0, 0, (3, 4)), (0, 1, 0, (12, 13)), (1, 0, 0, (138, 139)), (31, 14, 7, (4314, 4322))],
)
def test_capabilities_have_the_numbers_that_the_kernel_gives(
    gpu: int, instance: int, compute: int, minors: tuple[int, int]
) -> None:
    assert (instance_minor(gpu, instance), compute_minor(gpu, instance, compute)) == minors
    lines = dict(line.rsplit(" ", 1) for line in describe_minors().splitlines())
    assert lines[f"gpu{gpu}/gi{instance}/access"] == str(minors[0])
    assert lines[f"gpu{gpu}/gi{instance}/ci{compute}/access"] == str(minors[1])


def test_all_numbers_of_capabilities_differ() -> None:
    numbers = [int(line.rsplit(" ", 1)[1]) for line in describe_minors().splitlines()]
    assert numbers == list(range(1, 4323))
