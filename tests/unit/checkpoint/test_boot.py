"""Reading the boot id."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydra.checkpoint.boot import read_boot_id
from pydra.errors import CheckpointError


def test_the_boot_id_is_read_without_its_newline(tmp_path: Path) -> None:
    file = tmp_path / "boot_id"
    file.write_text("5c0f\n")
    assert read_boot_id(str(file)) == "5c0f"
    assert read_boot_id() == read_boot_id()


def test_a_boot_id_that_cannot_be_read_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="mount the host's /proc"):
        read_boot_id(str(tmp_path / "absent"))
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(CheckpointError, match="is empty"):
        read_boot_id(str(tmp_path / "empty"))
