"""CDI files on a real disk: names, modes, atomicity, and leaving what is another's alone."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pydra.cdi.store import CdiStore
from pydra.errors import CdiError

DRIVER = "gpu.example.com"


def _files(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


async def test_a_claims_file_is_named_by_driver_and_uid(tmp_path: Path) -> None:
    store = CdiStore(str(tmp_path), DRIVER)
    store.open()
    store.write("a1", b"{}")
    assert _files(tmp_path) == ["gpu.example.com-claim_a1.json"]
    assert await store.read() == {"a1": b"{}"}
    store.write("a1", b"{ }")
    assert await store.read() == {"a1": b"{ }"}
    store.remove("a1")
    store.remove("a1")
    assert _files(tmp_path) == []


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    place = tmp_path / "run" / "cdi"
    before = os.umask(0o077)
    try:
        store = CdiStore(str(place), DRIVER)
        store.open()
        store.write("a1", b"{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o755
    assert stat.S_IMODE(place.stat().st_mode) == 0o755
    assert stat.S_IMODE((place / "gpu.example.com-claim_a1.json").stat().st_mode) == 0o644


def test_the_mode_of_a_directory_that_is_there_stays(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    CdiStore(str(tmp_path), DRIVER).open()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o711


def test_only_what_differs_is_written(tmp_path: Path) -> None:
    store = CdiStore(str(tmp_path), DRIVER)
    assert store.ensure("a1", b"{}")
    file = tmp_path / "gpu.example.com-claim_a1.json"
    before = file.stat()
    assert not store.ensure("a1", b"{}")
    assert file.stat() == before
    assert store.ensure("a1", b"{ }")
    file.unlink()
    assert store.ensure("a1", b"{ }")
    file.unlink()
    file.symlink_to("/dev/null")
    assert store.ensure("a1", b"{ }")
    assert not file.is_symlink()


async def test_files_of_others_are_neither_listed_nor_touched(tmp_path: Path) -> None:
    others = [
        "nvidia.yaml",
        "gpu.example.com-claim_a.yaml",
        "gpu.example.com-claim_.json",
        "my.gpu.example.com-claim_a.json",
        "tpu.example.com-claim_a1.json",
        "tpu.example.com-claim_a1.json.tmp",
        "x.tmp",
    ]
    for name in others:
        (tmp_path / name).write_text("theirs")
    left_over = tmp_path / "gpu.example.com-claim_a1.json.tmp"
    left_over.write_text("ours, of a killed writer")
    store = CdiStore(str(tmp_path), DRIVER)
    store.open()
    assert await store.read() == {}
    assert _files(tmp_path) == sorted(others)


async def test_a_directory_that_was_wiped_is_made_again(tmp_path: Path) -> None:
    place = tmp_path / "cdi"
    store = CdiStore(str(place), DRIVER)
    store.open()
    shutil.rmtree(place)
    assert await store.read() == {}
    store.remove("a1")
    store.write("a1", b"{}")
    assert await store.read() == {"a1": b"{}"}


async def test_what_is_not_a_regular_file_is_listed_without_content_and_replaced(tmp_path: Path) -> None:
    store = CdiStore(str(tmp_path), DRIVER)
    os.mkfifo(tmp_path / "gpu.example.com-claim_a1.json")
    assert await store.read() == {"a1": b""}
    store.write("a1", b"{}")
    assert await store.read() == {"a1": b"{}"}


def test_a_place_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = CdiStore(str(tmp_path / "file"), DRIVER)
    with pytest.raises(CdiError, match=r"opening the CDI directory .*/file failed: file exists"):
        store.open()
    with pytest.raises(
        CdiError, match=r"writing gpu.example.com-claim_a1.json in the CDI directory .* failed: not a directory"
    ):
        store.write("a1", b"{}")


def test_a_writer_killed_at_any_step_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    for step in itertools.count(1):
        place = tmp_path / str(step)
        CdiStore(str(place), DRIVER).write("a1", b"old")
        written = subprocess.run([sys.executable, "-c", _KILLED_WRITER, str(place), str(step)], check=False, timeout=30)
        left = _files(place)
        store = CdiStore(str(place), DRIVER)
        store.open()
        content = (place / "gpu.example.com-claim_a1.json").read_bytes()
        assert content in (b"old", b"new")
        assert _files(place) == ["gpu.example.com-claim_a1.json"]
        if written.returncode == 0:
            assert content == b"new"
            break
        assert written.returncode == -signal.SIGKILL
        assert len(left) <= 2
    assert step > 3


_KILLED_WRITER = """
import os, signal, sys
from pydra.cdi.store import CdiStore

store, left = CdiStore(sys.argv[1], "gpu.example.com"), int(sys.argv[2])

def step(event, arguments):
    global left
    if event in ("open", "os.chmod", "os.rename"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(step)
store.write("a1", b"new")
"""


def test_files_that_others_remove_meanwhile_are_passed_over(tmp_path: Path) -> None:
    store = CdiStore(str(tmp_path), DRIVER)
    others = [tmp_path / f"other-{number}.json" for number in range(100)]

    def come_and_go() -> None:
        for _ in range(3):
            for path in others:
                path.touch()
            for path in others:
                path.unlink()

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(come_and_go)
        while not coming.done():
            assert store.list_of_this_boot() == ()
