"""The table of a claim's life, row by row."""

from __future__ import annotations

import pytest

from pydra.checkpoint.record import Record, Stage
from pydra.checkpoint.scan import RecordSetAside, RecordTooNew, RecordTrouble
from pydra.claim import AllocatedDevice, Claim, OpaqueConfig
from pydra.claims.device_index import DeviceHolders
from pydra.claims.lifecycle import (
    NEXT,
    Answer,
    Leave,
    NextForTidy,
    NextForUnprepare,
    Prepare,
    Refuse,
    RemoveFile,
    RestoreFile,
    Step,
    Unprepare,
    begin,
    decide_prepare,
    decide_tidy,
    decide_unprepare,
    finish,
    undo,
)
from pydra.errors import (
    CheckpointError,
    ClaimError,
    DeviceInUse,
    KubeError,
    NotAllocated,
    NotFound,
    PydraError,
    Replaced,
    Unavailable,
)

BOOT = "boot-2"


def claim(uid: str = "a", *devices: str, value: int = 1, position: str = "FromClaim config 1") -> Claim:
    config = OpaqueConfig(source="FromClaim", position=position, parameters={"value": value})
    return Claim(
        uid=uid,
        namespace="ns",
        name=f"claim-{uid}",
        devices=tuple(
            AllocatedDevice(request="gpu", pool="p", device=name, configs=(config,)) for name in devices or ("gpu-0",)
        ),
    )


def record(of: Claim | None = None, stage: Stage = Stage.COMPLETED, boot: str = BOOT) -> Record:
    of = of or claim()
    prepared = tuple(device.prepared() for device in of.devices) if stage is Stage.COMPLETED else ()
    return Record(claim=of, driver="d", stage=stage, boot_id=boot, prepared=prepared, created=1.0)


def next_for(asked: Claim | PydraError, before: Record | None, *others: Claim) -> object:
    holders = DeviceHolders()
    for other in (*others, *((before.claim,) if before else ())):
        holders.hold(other.uid, [other])
    return decide_prepare(asked, before, boot_id=BOOT, holders=holders)


COMPLETED, STARTED = record(), record(stage=Stage.STARTED)
REBOOTED, STARTED_THEN_REBOOTED = record(boot="boot-1"), record(stage=Stage.STARTED, boot="boot-1")


@pytest.mark.parametrize(
    ("asked", "before", "expected"),
    [
        (claim(), None, Prepare(claim=claim())),
        (claim(), COMPLETED, Answer(COMPLETED)),
        (claim(position="FromClaim config 7"), COMPLETED, Answer(COMPLETED)),
        (claim(), STARTED, Prepare(claim=claim(), undo=STARTED)),
        (claim(), REBOOTED, Prepare(claim=claim())),
        (claim(), STARTED_THEN_REBOOTED, Prepare(claim=claim(), undo=STARTED_THEN_REBOOTED)),
        (claim("a", "gpu-1"), COMPLETED, Prepare(claim=claim("a", "gpu-1"), undo=COMPLETED)),
        (claim("a", "gpu-1"), REBOOTED, Prepare(claim=claim("a", "gpu-1"), undo=REBOOTED)),
        (claim(value=2), COMPLETED, Prepare(claim=claim(value=2), undo=COMPLETED)),
    ],
    ids=[
        "new",
        "repeated",
        "config-named-otherwise-by-another-version",
        "started",
        "rebooted",
        "started-then-rebooted",
        "re-allocated",
        "re-allocated-and-rebooted",
        "other-parameters",
    ],
)
def test_what_a_claim_needs_follows_from_its_record(asked: Claim, before: Record | None, expected: object) -> None:
    assert next_for(asked, before) == expected


@pytest.mark.parametrize(
    ("error", "before", "answered"),
    [
        (Unavailable("down"), COMPLETED, True),
        (KubeError("forbidden", status=403), COMPLETED, True),
        (Unavailable("down"), None, False),
        (Unavailable("down"), STARTED, False),
        (Unavailable("down"), REBOOTED, False),
        (NotFound("gone", status=404, cause="NotFound"), COMPLETED, False),
        (NotFound("404 page not found", status=404), COMPLETED, True),
        (Replaced("other uid"), COMPLETED, False),
        (NotAllocated("not yet"), COMPLETED, False),
        (ClaimError("broken"), COMPLETED, False),
    ],
    ids=[
        "silent",
        "forbidden",
        "silent-and-new",
        "silent-and-started",
        "silent-and-rebooted",
        "gone",
        "api-not-served",
        "replaced",
        "not-allocated",
        "unreadable",
    ],
)
def test_only_silence_is_answered_from_a_record_and_only_a_good_one(
    error: PydraError, before: Record | None, answered: bool
) -> None:
    expected = Answer(before) if answered and before else Refuse(error)
    assert next_for(error, before) == expected


@pytest.mark.parametrize("before", [None, STARTED, REBOOTED, record(claim("a", "gpu-7"))], ids=str)
def test_a_device_of_another_claim_is_refused_and_nothing_is_undone_for_it(before: Record | None) -> None:
    refused = next_for(claim("a", "gpu-0"), before, claim("b", "gpu-0"))
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, DeviceInUse)
    assert refused.error.holder == "ns/claim-b"


def test_a_prepared_claim_is_answered_whoever_else_thinks_to_have_its_device() -> None:
    assert next_for(claim(), COMPLETED, claim("b", "gpu-0")) == Answer(COMPLETED)


TOO_NEW = RecordTooNew(uid="a", path="/p/a.json", why="schema 9")
SET_ASIDE = RecordSetAside(uid="a", path="/p/corrupt/a.json", why="damaged")


@pytest.mark.parametrize(
    ("before", "trouble", "asked", "expected"),
    [
        (None, None, None, RemoveFile()),
        (COMPLETED, None, None, Unprepare(COMPLETED)),
        (STARTED, None, None, Unprepare(STARTED)),
        (REBOOTED, None, None, Unprepare(REBOOTED)),
        (COMPLETED, SET_ASIDE, Unavailable("down"), Unprepare(COMPLETED)),
        (None, SET_ASIDE, NotFound("gone", cause="NotFound"), RemoveFile()),
        (None, SET_ASIDE, NotAllocated("no"), RemoveFile()),
    ],
    ids=["nothing", "completed", "started", "rebooted", "prepared-again", "record-lost-claim-gone", "record-lost"],
)
def test_unprepare_takes_back_what_there_is(
    before: Record | None, trouble: RecordTrouble | None, asked: PydraError | None, expected: NextForUnprepare
) -> None:
    assert decide_unprepare(before, trouble=trouble, asked=asked) == expected


def test_a_claim_whose_record_was_lost_is_undone_as_after_a_crash_inside_prepare() -> None:
    step = decide_unprepare(None, trouble=SET_ASIDE, asked=claim())
    assert isinstance(step, Unprepare)
    assert (step.record.claim, step.record.stage, step.record.prepared) == (claim(), Stage.STARTED, ())


def test_a_claim_whose_record_was_lost_waits_for_the_api_server() -> None:
    silence = Unavailable("down")
    assert decide_unprepare(None, trouble=SET_ASIDE, asked=silence) == Refuse(silence)


def test_a_record_of_a_newer_version_is_not_undone_by_this_one() -> None:
    step = decide_unprepare(None, trouble=TOO_NEW, asked=claim())
    assert isinstance(step, Refuse)
    assert isinstance(step.error, CheckpointError)
    assert "schema 9" in str(step.error)


@pytest.mark.parametrize(
    ("before", "trouble", "expected"),
    [
        (None, None, RemoveFile()),
        (None, SET_ASIDE, Leave()),
        (None, TOO_NEW, Leave()),
        (STARTED, None, Unprepare(STARTED)),
        (STARTED_THEN_REBOOTED, None, Unprepare(STARTED_THEN_REBOOTED)),
        (COMPLETED, None, RestoreFile(COMPLETED)),
        (REBOOTED, None, Leave()),
    ],
    ids=["orphan", "record-set-aside", "newer-record", "started", "started-then-rebooted", "completed", "rebooted"],
)
def test_tidying_makes_record_and_file_agree(
    before: Record | None, trouble: RecordTrouble | None, expected: NextForTidy
) -> None:
    assert decide_tidy(before, boot_id=BOOT, trouble=trouble) == expected


def test_a_record_goes_from_begun_to_finished_to_undone() -> None:
    started = begin(claim(), None, driver="d", boot_id=BOOT, created=2.0)
    assert (started.stage, started.prepared, started.boot_id, started.created) == (Stage.STARTED, (), BOOT, 2.0)
    completed = finish(record(stage=Stage.STARTED))
    assert completed.stage is Stage.COMPLETED
    undoing = undo(COMPLETED)
    assert undoing.stage is Stage.STARTED
    assert undoing.prepared == COMPLETED.prepared, "the backend needs it to take it back"


def test_what_the_table_does_not_have_cannot_be_recorded() -> None:
    with pytest.raises(ValueError, match="completed has no record after finish"):
        finish(COMPLETED)


def test_every_stage_can_be_reached_and_left_for_nothing() -> None:
    def reach(start: Stage | None) -> set[Stage | None]:
        seen, todo = {start}, [start]
        while todo:
            stage = todo.pop()
            for (before, _), after in NEXT.items():
                if before is stage and after not in seen:
                    seen.add(after)
                    todo.append(after)
        return seen

    everything = {None, *Stage}
    assert all(reach(stage) == everything for stage in everything)
    assert {step for _, step in NEXT} == set(Step)


def test_only_a_started_record_may_be_forgotten() -> None:
    assert [before for before, step in NEXT if step is Step.FORGET] == [Stage.STARTED]
