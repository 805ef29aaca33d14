"""What a sweep decides to put right, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pydra.checkpoint.record import Record, Stage
from pydra.claim import AllocatedDevice, Claim
from pydra.claims.leftovers import SweepPlan, plan_sweep
from pydra.claims.outcome import ClaimRef


def record(uid: str, stage: Stage = Stage.COMPLETED, boot: str = "boot-1") -> Record:
    device = AllocatedDevice(request="r", pool="p", device="gpu-0")
    claim = Claim(uid=uid, namespace="ns", name=f"claim-{uid}", devices=(device,))
    return Record(claim=claim, driver="d", stage=stage, boot_id=boot)


def expected_file(one: Record) -> bytes | None:
    return None if one.claim.uid.startswith("bare") else b"spec of " + one.claim.uid.encode()


def plan(records: tuple[Record, ...] = (), files: Mapping[str, bytes] | None = None, **more: Any) -> SweepPlan:
    defaults: dict[str, Any] = {"absent": (), "absent_since": {}, "now": 1000.0, "grace": 100.0, "unreadable": ()}
    by_uid = {one.claim.uid: one for one in records}
    return plan_sweep(by_uid, files, boot_id="boot-1", expected_file=expected_file, **{**defaults, **more})


@pytest.mark.parametrize(
    ("records", "files", "more", "tidy"),
    [
        ((), {}, {}, ()),
        ((record("a"),), {"a": b"spec of a"}, {}, ()),
        ((record("a"),), {}, {}, ("a",)),
        ((record("a"),), {"a": b"changed"}, {}, ("a",)),
        ((record("bare"),), {}, {}, ()),
        ((record("bare"),), {"bare": b"old"}, {}, ("bare",)),
        ((record("a"),), None, {}, ()),
        ((), {"a": b"spec of a", "b": b""}, {}, ("a", "b")),
        ((), {"a": b"spec of a"}, {"unreadable": ("a",)}, ()),
        ((record("a", Stage.STARTED),), {}, {}, ("a",)),
        ((record("a", Stage.STARTED),), None, {}, ("a",)),
        ((record("a", boot="boot-0"),), {}, {}, ()),
        ((record("a", Stage.STARTED, boot="boot-0"),), {}, {}, ("a",)),
    ],
    ids=[
        "nothing",
        "in-order",
        "file-missing",
        "file-changed",
        "nothing-to-edit",
        "file-too-many",
        "directory-unreadable",
        "orphans",
        "orphan-of-a-lost-record",
        "started",
        "started-and-directory-unreadable",
        "rebooted",
        "started-then-rebooted",
    ],
)
def test_what_disagrees_is_tidied(
    records: tuple[Record, ...], files: Mapping[str, bytes] | None, more: dict[str, Any], tidy: tuple[str, ...]
) -> None:
    assert plan(records, files, **more) == SweepPlan(tidy=tidy)


def test_a_claim_that_is_gone_is_first_left_to_the_kubelet() -> None:
    first = plan((record("a"),), {"a": b"spec of a"}, absent={"a"})
    assert (first.unprepare, first.waiting, first.absent_since) == ((), 1, {"a": 1000.0})


@pytest.mark.parametrize(("now", "unprepared"), [(1099.0, False), (1100.0, True)], ids=["in-grace", "after-grace"])
def test_a_claim_that_stays_gone_is_unprepared_when_the_grace_is_over(now: float, unprepared: bool) -> None:
    then = plan((record("a"),), {"a": b"spec of a"}, absent={"a"}, absent_since={"a": 1000.0}, now=now)
    assert then.unprepare == ((ClaimRef(uid="a", namespace="ns", name="claim-a"),) if unprepared else ())
    assert then.waiting == (0 if unprepared else 1)


def test_a_claim_that_the_api_server_has_again_starts_its_grace_anew() -> None:
    back = plan((record("a"),), {"a": b"spec of a"}, absent_since={"a": 1.0})
    assert back == SweepPlan()


def test_what_is_unprepared_is_not_tidied_too() -> None:
    both = plan((record("a", Stage.STARTED),), {}, absent={"a"}, absent_since={"a": 1.0})
    assert [ref.uid for ref in both.unprepare] == ["a"]
    assert both.tidy == ()


def test_a_claim_that_was_unprepared_meanwhile_is_forgotten() -> None:
    assert plan((), {}, absent={"a"}, absent_since={"a": 1.0}) == SweepPlan()
