from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from pydra.checkpoint.boot import after_boot, read_boot_id
from pydra.checkpoint.record import Stage
from pydra.errors import CheckpointError
from tests.unit.checkpoint.test_record import COMPLETED, STARTED


def test_within_one_boot_a_record_says_what_it_says() -> None:
    assert after_boot(COMPLETED, "boot-1") is COMPLETED
    assert after_boot(STARTED, "boot-1") is STARTED


def test_after_a_reboot_a_completed_claim_is_to_be_prepared_again_and_keeps_what_to_undo() -> None:
    assert after_boot(COMPLETED, "boot-2") == replace(COMPLETED, stage=Stage.STARTED, boot_id="boot-2")


def test_after_a_reboot_a_started_claim_stays_started() -> None:
    assert after_boot(STARTED, "boot-2") == replace(STARTED, boot_id="boot-2")


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
