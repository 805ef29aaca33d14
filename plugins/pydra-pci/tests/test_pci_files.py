"""Files as values: bringing a directory from one set to another."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pydra_pci.simulation import files
from pydra_pci.simulation.files import Files

KINDS = {"k": lambda text: int(text) * b"k"}
"""A kind of file that a simulator adds."""

ENTRIES = st.one_of(
    st.sampled_from(["one", "two"]).map(files.text),
    st.sampled_from(["#!/bin/sh\n"]).map(files.program),
    st.sampled_from(["../elsewhere", "/proc/nowhere"]).map(files.link),
    st.sampled_from([files.folder(), files.device(), files.socket(), "k7"]),
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
        files.change_files(changed, {}, before, KINDS)
        files.change_files(changed, before, after, KINDS)
        files.change_files(new, {}, after, KINDS)
        there = found(changed)
        for path in [path for path, words in there.items() if words == "folder" and path not in found(new)]:
            assert path in before  # it was one before, and is in nobody's way
            there.pop(path)
        assert there == found(new)


def test_what_somebody_damaged_is_left_until_it_changes(tmp_path: Path) -> None:
    before = {"a": files.text("one"), "b": files.text("one")}
    files.change_files(str(tmp_path), {}, before)
    (tmp_path / "a").unlink()
    (tmp_path / "b").unlink()
    files.change_files(str(tmp_path), before, {"a": files.text("two"), "b": files.text("one")})
    assert found(str(tmp_path)) == {"a": "644 b'two\\n'"}


def test_a_reader_of_a_changed_file_sees_the_old_or_the_new(tmp_path: Path) -> None:
    before = {"a": files.text("one")}
    files.change_files(str(tmp_path), {}, before)
    with open(tmp_path / "a", encoding="utf-8") as reader:
        files.change_files(str(tmp_path), before, {"a": files.text("two")})
        assert reader.read() == "one\n"
    assert (tmp_path / "a").read_text() == "two\n"
