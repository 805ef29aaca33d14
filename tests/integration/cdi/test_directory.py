"""CDI files on a real disk: names, modes, atomicity, and leaving what is another's alone."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from pydra.cdi.store import CdiDirectory
from pydra.errors import CdiError

DRIVER = "gpu.example.com"


def _files(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


async def test_a_claims_file_is_named_by_driver_and_uid(tmp_path: Path) -> None:
    directory = CdiDirectory(str(tmp_path), DRIVER)
    await directory.open()
    await directory.write("a1", b"{}")
    assert _files(tmp_path) == ["gpu.example.com-claim_a1.json"]
    assert await directory.read() == {"a1": b"{}"}
    await directory.write("a1", b"{ }")
    assert await directory.read() == {"a1": b"{ }"}
    await directory.remove("a1")
    await directory.remove("a1")
    assert _files(tmp_path) == []


async def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    place = tmp_path / "run" / "cdi"
    before = os.umask(0o077)
    try:
        directory = CdiDirectory(str(place), DRIVER)
        await directory.open()
        await directory.write("a1", b"{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o755
    assert stat.S_IMODE(place.stat().st_mode) == 0o755
    assert stat.S_IMODE((place / "gpu.example.com-claim_a1.json").stat().st_mode) == 0o644


async def test_the_mode_of_a_directory_that_is_there_stays(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    await CdiDirectory(str(tmp_path), DRIVER).open()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o711


async def test_only_what_differs_is_written(tmp_path: Path) -> None:
    directory = CdiDirectory(str(tmp_path), DRIVER)
    assert await directory.ensure("a1", b"{}")
    file = tmp_path / "gpu.example.com-claim_a1.json"
    before = file.stat()
    assert not await directory.ensure("a1", b"{}")
    assert file.stat() == before
    assert await directory.ensure("a1", b"{ }")
    file.unlink()
    assert await directory.ensure("a1", b"{ }")
    file.unlink()
    file.symlink_to("/dev/null")
    assert await directory.ensure("a1", b"{ }")
    assert not file.is_symlink()


async def test_files_of_others_are_neither_listed_nor_touched(tmp_path: Path) -> None:
    others = ["nvidia.yaml", "tpu.example.com-claim_a1.json", ".tpu.example.com-claim_a1.json.01234567.tmp", "x.tmp"]
    for name in others:
        (tmp_path / name).write_text("theirs")
    left_over = tmp_path / ".gpu.example.com-claim_a1.json.01234567.tmp"
    left_over.write_text("ours, of a killed writer")
    directory = CdiDirectory(str(tmp_path), DRIVER)
    await directory.open()
    assert await directory.read() == {}
    assert _files(tmp_path) == sorted(others)


async def test_a_directory_that_was_wiped_is_made_again(tmp_path: Path) -> None:
    place = tmp_path / "cdi"
    directory = CdiDirectory(str(place), DRIVER)
    await directory.open()
    shutil.rmtree(place)
    assert await directory.read() == {}
    await directory.remove("a1")
    await directory.write("a1", b"{}")
    assert await directory.read() == {"a1": b"{}"}


async def test_what_is_no_file_is_listed_as_one_without_content_and_replaced(tmp_path: Path) -> None:
    directory = CdiDirectory(str(tmp_path), DRIVER)
    os.mkfifo(tmp_path / "gpu.example.com-claim_a1.json")
    assert await directory.read() == {"a1": b""}
    await directory.write("a1", b"{}")
    assert await directory.read() == {"a1": b"{}"}


@pytest.mark.parametrize("uid", ["", "..", "../a", "a/b", "/etc/passwd", ".a", "x" * 129, "a\0b"])
async def test_a_uid_that_could_leave_the_directory_is_refused(tmp_path: Path, uid: str) -> None:
    directory = CdiDirectory(str(tmp_path / "cdi"), DRIVER)
    await directory.open()
    with pytest.raises(CdiError, match="cannot name a CDI file"):
        await directory.write(uid, b"{}")
    with pytest.raises(CdiError, match="cannot name a CDI file"):
        await directory.remove(uid)
    assert [file.name for file in tmp_path.rglob("*")] == ["cdi"]


async def test_a_place_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = CdiDirectory(str(tmp_path / "file"), DRIVER)
    with pytest.raises(CdiError, match=r"creating the CDI directory .*/file failed"):
        await directory.open()
    with pytest.raises(CdiError, match="creating the CDI directory"):
        await directory.write("a1", b"{}")
