"""The journal: real files, of which some are torn."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pydra_nvidia.hardware import Placement
from pydra_nvidia.journal import Began, Journal, JournalError
from pydra_nvidia.steps import (
    BindVfio,
    CreateMig,
    Entry,
    Hold,
    MigModeOff,
    MigModeOn,
    SetTimeSlice,
    StartMps,
)

GPU = "GPU-1"


def entry(uid: str = "one") -> Entry:
    return Entry(
        uid=uid,
        namespace="default",
        name=f"claim-{uid}",
        holds=(Hold(device="gpu-0-mig-1g10gb-19-3", hardware="0000:0f:00.0", place=Placement(3, 1)),),
        steps=(
            MigModeOn(gpu=GPU),
            MigModeOff(gpu="GPU-2"),
            CreateMig(gpu=GPU, profile=19, profile_name="1g.10gb", placement=Placement(3, 1), uuid="MIG-1"),
            SetTimeSlice(gpu="GPU-2", interval=2),
            StartMps(id="mps", partition=(GPU, Placement(3, 1)), pinned_mib={"0": 1024}),
            BindVfio(address="0000:0f:00.0", before="nvidia", target="vfio-pci"),
        ),
    )


def test_what_is_written_is_read_again_with_every_kind_of_step(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "made" / "when needed"))
    assert journal.read("one") is None
    assert journal.entries() == {}
    journal.write(entry())
    assert journal.read("one") == entry()
    assert journal.entries() == {"one": entry()}


def test_writing_replaces_and_removing_forgets_twice(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    journal.write(entry())
    journal.write(Entry(uid="one", namespace="default", name="claim-one"))
    assert journal.read("one") == Entry(uid="one", namespace="default", name="claim-one")
    journal.remove("one")
    journal.remove("one")
    assert os.listdir(tmp_path) == []


def test_removing_a_claim_removes_the_drafts_of_killed_processes_and_no_other_claim(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    journal.write(entry("one"))
    journal.write(entry("one-more"))
    (tmp_path / "one.json.4711").write_text("{torn")
    journal.remove("one")
    assert os.listdir(tmp_path) == ["one-more.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"uid": "one"}',
        b'{"uid":"one","namespace":"","name":"","steps":[{"step":"x"}]}',
    ],
    ids=["empty", "torn", "no text", "no object", "fields missing", "a step of a later version"],
)
def test_a_file_that_cannot_be_understood_concerns_its_own_claim_only(tmp_path: Path, content: bytes) -> None:
    journal = Journal(str(tmp_path))
    journal.write(entry("two"))
    (tmp_path / "one.json").write_bytes(content)
    with pytest.raises(JournalError, match=r"one\.json"):
        journal.read("one")
    assert journal.entries() == {"two": entry("two")}
    assert set(journal.unreadable()) == {"one"}


def test_an_entry_under_another_claims_name_is_not_that_claims(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    journal.write(entry("two"))
    os.rename(tmp_path / "two.json", tmp_path / "one.json")
    with pytest.raises(JournalError, match="claim two"):
        journal.read("one")
    assert journal.entries() == {}


def test_what_is_set_aside_stays_known_until_the_claim_goes(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    (tmp_path / "one.json").write_text("{torn")
    journal.set_aside("one")
    journal.set_aside("one")
    assert journal.read("one") is None
    assert "set aside" in journal.unreadable()["one"]
    journal.write(entry("one"))
    assert journal.entries() == {"one": entry("one")}
    journal.remove("one")
    assert journal.unreadable() == {}
    assert os.listdir(tmp_path) == []


def test_a_claim_whose_file_is_torn_goes_on_without_it_and_goes_in_the_end(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    (tmp_path / "one.json").write_text("{torn")
    assert journal.recover("one") is None
    assert set(journal.unreadable()) == {"one"}
    journal.write(entry("one"))
    assert journal.recover("one") == entry("one")
    journal.remove("one")
    assert os.listdir(tmp_path) == []
    assert journal.recover("one") is None


def test_of_two_claims_that_leave_at_once_neither_stays_for_the_other(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    for uid in ("one", "two", "three"):
        journal.write(entry(uid))
    assert {one.uid for one in journal.staying("one")} == {"two", "three"}
    with journal.leaving("one"), journal.leaving("two"):
        assert {one.uid for one in journal.staying("one")} == {"three"}
        assert {one.uid for one in journal.staying("two")} == {"three"}
    assert {one.uid for one in journal.staying("one")} == {"two", "three"}


def test_a_directory_that_cannot_be_used_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(str(tmp_path / "file"))
    for call in (
        journal.entries,
        journal.unreadable,
        lambda: journal.write(entry()),
        lambda: journal.remove("one"),
        lambda: journal.read("one"),
        lambda: journal.set_aside("one"),
        lambda: journal.recover("one"),
    ):
        with pytest.raises(JournalError, match="file"):
            call()


def test_a_full_disk_keeps_the_entry_that_was_there(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    journal.write(entry())
    os.mkdir(tmp_path / f"one.json.{os.getpid()}")  # no draft can be written
    with pytest.raises(JournalError, match="cannot be written"):
        journal.write(Entry(uid="one", namespace="default", name="other"))
    assert journal.read("one") == entry()


def test_an_entry_of_long_ago_is_kept_and_one_that_was_replaced_is_read(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    journal.write(entry())
    assert journal.entries()["one"] is not journal.entries()["one"], "it may be written again within a tick"
    os.utime(tmp_path / "one.json", (1, 1))
    assert journal.entries()["one"] is journal.entries()["one"]
    other = Entry(uid="one", namespace="default", name="claim-one")
    Journal(str(tmp_path)).write(other)
    assert journal.entries() == {"one": other}
    os.utime(tmp_path / "one.json", (2, 2))
    assert journal.entries() == {"one": other}
    journal.remove("one")
    assert journal.entries() == {}


def test_an_entry_that_was_torn_after_it_was_read_is_not_remembered(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    journal.write(entry())
    os.utime(tmp_path / "one.json", (1, 1))
    assert journal.entries() == {"one": entry()}
    (tmp_path / "one.json").write_bytes(b"{")
    assert journal.entries() == {}


def test_what_another_boot_wrote_is_not_known(tmp_path: Path) -> None:
    before, now = Journal(str(tmp_path), "boot-1"), Journal(str(tmp_path), "boot-2")
    before.write(entry())
    assert before.read("one") == before.stamp(entry())
    assert now.read("one") is None
    assert now.entries() == now.unreadable() == {}
    assert now.staying("two") == ()
    now.write(entry("two"))
    now.begin([])
    assert sorted(os.listdir(tmp_path)) == ["began", "two.json"], "what another boot wrote is forgotten"


def test_a_journal_has_begun_once_it_was_told_to_in_this_boot(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "made when needed"), "boot-1")
    assert journal.began() is None
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    journal.begin([(GPU, Placement(3, 1))])
    for same in (journal, Journal(str(tmp_path / "made when needed"), "boot-1")):
        began = same.began()
        assert began is not None
        assert began == Began(boot="boot-1", found=((GPU, Placement(3, 1)),), at=began.at)
        assert before <= began.at <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert Journal(str(tmp_path / "made when needed"), "boot-2").began() is None
    assert journal.entries() == journal.unreadable() == {}
    (tmp_path / "made when needed" / "began").write_text("{torn")
    assert journal.began() is None


def test_nothing_is_decided_while_one_file_cannot_be_read(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    journal.write(entry("two"))
    assert journal.whole() == {"two": entry("two")}
    (tmp_path / "one.json").write_text("{torn")
    for call in (journal.whole, lambda: journal.staying("two")):
        with pytest.raises(JournalError, match=r"nothing is decided.*one\.json.*the admin can remove"):
            call()
    assert journal.entries() == {"two": entry("two")}, "what is told goes on"
    assert journal.whole("one") == journal.entries(), "the claim itself can be undone"
    journal.set_aside("one")
    with pytest.raises(JournalError, match="set aside"):
        journal.whole("two")
    journal.remove("one")
    assert journal.whole() == {"two": entry("two")}
