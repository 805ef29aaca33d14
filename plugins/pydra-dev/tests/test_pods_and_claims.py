"""What the controllers decide about pods, claims and conditions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_dev.api.pod_fields import build_condition, claim_names, set_condition
from pydra_dev.controllers.resource_claims import (
    build_claim,
    claim_base_name,
    find_generated,
    is_orphan,
    live_consumers,
)
from pydra_dev.scheduler.scheduler import is_schedulable

JsonObject = dict[str, Any]


def a_pod(uid: str = "1", phase: str = "Pending", **spec: Any) -> JsonObject:
    return {"metadata": {"name": "pod", "namespace": "n", "uid": uid}, "spec": spec, "status": {"phase": phase}}


@given(st.integers(1, 253), st.integers(1, 63))
def test_a_generated_name_has_room_for_its_suffix(pod: int, claim: int) -> None:
    base = claim_base_name("p" * pod, "c" * claim)
    assert len(base) <= 58
    assert base.startswith("p")
    assert base.endswith("c-")
    if pod + claim <= 56:
        assert base == f"{'p' * pod}-{'c' * claim}-"


def test_a_claim_takes_after_its_template_and_belongs_to_its_pod() -> None:
    template = {"spec": {"metadata": {"annotations": {"a": "b"}}, "spec": {"devices": {}}}}
    claim = build_claim(a_pod(), "gpu", template)
    assert claim["metadata"]["annotations"] == {"a": "b", "resource.kubernetes.io/pod-claim-name": "gpu"}
    assert find_generated(a_pod(), "gpu", [claim]) is claim
    assert find_generated(a_pod(), "other", [claim]) is None
    assert find_generated(a_pod("2"), "gpu", [claim]) is None


def test_a_pod_s_claims_have_their_names_from_its_status() -> None:
    pod = a_pod(
        resourceClaims=[
            {"name": "own", "resourceClaimName": "mine"},
            {"name": "made", "resourceClaimTemplateName": "t"},
            {"name": "later", "resourceClaimTemplateName": "t"},
        ]
    )
    pod["status"]["resourceClaimStatuses"] = [{"name": "made", "resourceClaimName": "made-x"}]
    assert claim_names(pod) == {"own": "mine", "made": "made-x", "later": None}


@pytest.mark.parametrize(
    ("pod", "schedulable"),
    [
        pytest.param(a_pod(), True, id="waiting"),
        pytest.param(a_pod(nodeName="n"), False, id="has a node"),
        pytest.param(a_pod(schedulerName="other"), False, id="another scheduler's"),
        pytest.param(a_pod(schedulingGates=[{"name": "g"}]), False, id="gated"),
        pytest.param(a_pod(phase="Failed"), False, id="finished"),
    ],
)
def test_only_a_waiting_pod_is_scheduled(pod: JsonObject, schedulable: bool) -> None:
    assert is_schedulable(pod) is schedulable


def test_consumers_that_are_gone_or_finished_need_the_claim_no_longer() -> None:
    consumers = [{"resource": "pods", "name": "p", "uid": uid} for uid in "123"]
    other = {"apiGroup": "x", "resource": "things", "name": "t", "uid": "9"}
    claim = {"metadata": {}, "status": {"reservedFor": [*consumers, other]}}
    pods = {"1": a_pod("1"), "2": a_pod("2", "Succeeded")}
    assert live_consumers(claim, pods) == [consumers[0], other]


@pytest.mark.parametrize(("owner", "orphan"), [("1", False), ("2", True), ("3", True)])
def test_a_claim_made_for_a_pod_that_is_gone_is_an_orphan(owner: str, orphan: bool) -> None:
    pods = {"1": a_pod("1"), "2": a_pod("2", "Failed")}
    reference = {"kind": "Pod", "uid": owner, "controller": True}
    assert is_orphan({"metadata": {"ownerReferences": [reference]}}, pods) is orphan


def test_a_condition_that_says_the_same_changes_nothing() -> None:
    first = build_condition("PodScheduled", status=False, now="t1", reason="Unschedulable", message="no")
    status = set_condition({"phase": "Pending"}, first)
    assert set_condition(status, {**first, "lastTransitionTime": "t2"}) is status
    changed = set_condition(status, build_condition("PodScheduled", status=True, now="t3"))
    assert [one["status"] for one in changed["conditions"]] == ["True"]
