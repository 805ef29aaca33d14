"""The life of a claim on this node, and what to do next with it. Pure.

    ABSENT ──begin──> STARTED ──finish──> COMPLETED
      ^                │  ^ └─begin, undo     │
      └────forget──────┘  └──begin, undo──────┘

*begin* is written before the backend prepares, *finish* after its work can be used; *undo* is written
before anything is taken back, *forget* after all of it was. So STARTED always means: something may
have been done, nobody may use it, and undoing it is right. Whatever moment the agent dies in, the
record says enough.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import msgspec

from pydra.checkpoint.record import Record, Stage
from pydra.checkpoint.scan import RecordTooNew, RecordTrouble
from pydra.claim import Claim
from pydra.claims.allocation import same_devices
from pydra.claims.device_index import DeviceHolders
from pydra.errors import CheckpointError, KubeError, NotFound, PydraError


class Step(Enum):
    """What happens to the record of a claim."""

    BEGIN = "begin"
    FINISH = "finish"
    UNDO = "undo"
    FORGET = "forget"


NEXT: dict[tuple[Stage | None, Step], Stage | None] = {
    (None, Step.BEGIN): Stage.STARTED,
    (Stage.STARTED, Step.BEGIN): Stage.STARTED,
    (Stage.STARTED, Step.FINISH): Stage.COMPLETED,
    (Stage.STARTED, Step.UNDO): Stage.STARTED,
    (Stage.STARTED, Step.FORGET): None,
    (Stage.COMPLETED, Step.BEGIN): Stage.STARTED,
    (Stage.COMPLETED, Step.UNDO): Stage.STARTED,
}
"""The stage after a step; None is no record. What is absent must not happen."""


class Answer(msgspec.Struct, frozen=True):
    """It is prepared already: answer from the record, after a look at its CDI file."""

    record: Record


class Refuse(msgspec.Struct, frozen=True):
    """Change nothing and say why."""

    error: PydraError


class Prepare(msgspec.Struct, frozen=True, kw_only=True):
    """Prepare `claim`; first take back what `undo` holds."""

    claim: Claim
    undo: Record | None = None


class Unprepare(msgspec.Struct, frozen=True):
    """Take back what the record holds."""

    record: Record


class RemoveFile(msgspec.Struct, frozen=True):
    """There is no record: at most a CDI file."""


class RestoreFile(msgspec.Struct, frozen=True):
    """The claim is prepared and in use: see that its CDI file is there and right."""

    record: Record


class Leave(msgspec.Struct, frozen=True):
    """Nothing to do."""


NextForPrepare: TypeAlias = Answer | Refuse | Prepare
NextForUnprepare: TypeAlias = Unprepare | RemoveFile | Refuse
NextForTidy: TypeAlias = Unprepare | RemoveFile | RestoreFile | Leave


def decide_prepare(
    asked: Claim | PydraError, record: Record | None, *, boot_id: str, holders: DeviceHolders
) -> NextForPrepare:
    """What to do when the kubelet wants a claim prepared.

    `asked` is the claim as the API server has it now, or why that is not known. `record` is what this
    node did for its uid before.
    """
    usable = record is not None and record.stage is Stage.COMPLETED and record.boot_id == boot_id
    if isinstance(asked, PydraError):
        # The API server is silent: what was prepared stays right, since a claim in use cannot change.
        return Answer(record) if record is not None and usable and is_silence(asked) else Refuse(asked)
    if record is not None and usable and same_devices(record.claim, asked):
        return Answer(record)
    if in_use := holders.conflict(asked):
        return Refuse(in_use)
    # After a reboot the same devices are prepared over again, without taking anything back: it is gone,
    # and what the backend remembers of it (processes, paths) may be something else by now.
    rebooted = record is not None and record.stage is Stage.COMPLETED and same_devices(record.claim, asked)
    return Prepare(claim=asked, undo=None if rebooted else record)


def decide_unprepare(
    record: Record | None, *, trouble: RecordTrouble | None = None, asked: Claim | PydraError | None = None
) -> NextForUnprepare:
    """What to do when nobody on this node uses a claim any more.

    Only where `trouble` has cost the claim its record the API server was `asked` for the claim.
    """
    if record is not None:
        return Unprepare(record)
    if isinstance(trouble, RecordTooNew):
        return Refuse(CheckpointError(f"what was prepared cannot be undone: {trouble.why} ({trouble.path})"))
    if isinstance(asked, Claim):
        # Whatever may have been done for it is undone, as after a crash inside prepare.
        return Unprepare(Record(claim=asked, driver="", stage=Stage.STARTED, boot_id=""))
    return Refuse(asked) if asked is not None and is_silence(asked) else RemoveFile()


def decide_tidy(record: Record | None, *, boot_id: str, trouble: RecordTrouble | None = None) -> NextForTidy:
    """What to do for a claim that nobody asked about, whose record and CDI file may disagree."""
    if record is None:
        # A lost record says nothing of the pods: their containers may need the file to start again.
        return RemoveFile() if trouble is None else Leave()
    if record.stage is Stage.STARTED:
        return Unprepare(record)
    return RestoreFile(record) if record.boot_id == boot_id else Leave()


def is_silence(error: PydraError) -> bool:
    """Whether the API server did not say anything about the claim, not even that there is none."""
    return isinstance(error, KubeError) and not (isinstance(error, NotFound) and error.is_of_object)


def begin(claim: Claim, before: Record | None, *, driver: str, boot_id: str, created: float) -> Record:
    """The record to write before the backend prepares the claim; what `before` holds has been taken back."""
    stage = _next(before.stage if before else None, Step.BEGIN)
    return Record(claim=claim, driver=driver, stage=stage, boot_id=boot_id, created=created)


def finish(started: Record) -> Record:
    """The record to write when containers can have what was prepared."""
    return msgspec.structs.replace(started, stage=_next(started.stage, Step.FINISH))


def undo(record: Record) -> Record:
    """The record to write before anything of it is taken back; it keeps what the backend will need for that."""
    return msgspec.structs.replace(record, stage=_next(record.stage, Step.UNDO))


def _next(stage: Stage | None, step: Step) -> Stage:
    after = NEXT.get((stage, step))
    if after is None:
        raise ValueError(f"a claim that is {stage.value if stage else 'absent'} has no record after {step.value}")
    return after
