"""Which claims a pod has, whether it may use them, and what counts as an answer for them."""

from __future__ import annotations

from typing import Any

import pytest

from pydra.kubelet import pb
from pydra_dev.kubelet.plugin_answers import PreparedDevice, check_unprepared, parse_prepared
from pydra_dev.kubelet.pod_claims import (
    ClaimKey,
    PodClaim,
    PodClaimError,
    check_claim,
    container_requests,
    explain_missing,
    find_pod_claims,
)

POD: dict[str, Any] = {"metadata": {"name": "p", "namespace": "ns", "uid": "pod-uid"}, "spec": {}}
GENERATED = PodClaim(entry="e", claim="c", generated=True)
ONE = ClaimKey(namespace="ns", name="one", uid="u1")
DIRECT = PodClaim(entry="e", claim="c", generated=False)


def pod(entries: list[dict[str, str]], statuses: list[dict[str, str]] | None = None) -> dict[str, Any]:
    return {**POD, "spec": {"resourceClaims": entries}, "status": {"resourceClaimStatuses": statuses or []}}


def claim(**status: Any) -> dict[str, Any]:
    owner = {"uid": "pod-uid", "controller": True}
    return {
        "metadata": {"name": "c", "namespace": "ns", "uid": "claim-uid", "ownerReferences": [owner]},
        "status": {"allocation": {"devices": {}}, "reservedFor": [{"uid": "pod-uid"}], **status},
    }


def test_claims_are_found_by_name_and_by_template() -> None:
    found = find_pod_claims(
        pod(
            [{"name": "a", "resourceClaimName": "own"}, {"name": "b", "resourceClaimTemplateName": "t"}],
            [{"name": "b", "resourceClaimName": "made"}],
        )
    )
    assert found == (
        PodClaim(entry="a", claim="own", generated=False),
        PodClaim(entry="b", claim="made", generated=True),
    )


def test_a_template_whose_claim_is_not_made_yet_is_waited_for() -> None:
    with pytest.raises(PodClaimError, match="not created yet"):
        find_pod_claims(pod([{"name": "b", "resourceClaimTemplateName": "t"}]))


def test_a_template_that_needs_no_claim_is_left_out() -> None:
    assert find_pod_claims(pod([{"name": "b", "resourceClaimTemplateName": "t"}], [{"name": "b"}])) == ()


def test_claims_without_devices_in_a_container_are_told_with_the_reason() -> None:
    entries = [{"name": name, "resourceClaimName": name} for name in ("used", "misnamed", "init", "forgotten")]
    main, init = (
        {"resources": {"claims": claims}}
        for claims in ([{"name": "used"}, {"name": "misnamed", "request": "gpus"}], [{"name": "init"}])
    )
    one = {**POD, "spec": {"resourceClaims": entries, "containers": [main], "initContainers": [init]}}
    assert explain_missing(one, main, [("claim:used", ["device"]), ("claim:misnamed/gpus", [])]) == (
        "no device of claim:misnamed/gpus: the claim has no such request",
        "no device of claim:forgotten: no container names it in resources.claims",
    )


@pytest.mark.parametrize(
    ("entry", "change", "message"),
    [
        (GENERATED, {"metadata": {"name": "c", "namespace": "ns", "uid": "u"}}, "was not created for pod ns/p"),
        (DIRECT, {"status": {"allocation": {}, "reservedFor": [{"uid": "other"}]}}, "is not allowed to use"),
        (DIRECT, {"status": {"reservedFor": [{"uid": "pod-uid"}]}}, "is not allocated"),
        (DIRECT, {"status": {}}, "is not allowed to use"),
    ],
    ids=["foreign", "not reserved", "not allocated", "no status"],
)
def test_a_claim_that_is_not_the_pods_to_use_is_refused(entry: PodClaim, change: dict[str, Any], message: str) -> None:
    with pytest.raises(PodClaimError, match=message):
        check_claim(POD, entry, {**claim(), **change})


def test_a_container_names_claims_and_perhaps_requests() -> None:
    container = {"resources": {"claims": [{"name": "a"}, {"name": "b", "request": "r"}]}}
    assert container_requests(container) == (("a", ""), ("b", "r"))
    assert container_requests({}) == ()


def test_devices_are_read_with_all_they_have() -> None:
    device = pb.Device(request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["a/b=c"], share_id="s")
    assert parse_prepared([ONE], {"u1": pb.NodePrepareResourceResponse(devices=[device])}) == {
        "u1": (PreparedDevice(pool="p", device="d", share_id="s", requests=("r",), cdi_ids=("a/b=c",)),)
    }


def test_an_answer_without_a_value_is_an_empty_one() -> None:
    assert parse_prepared([ONE], {"u1": None}) == {"u1": ()}
    check_unprepared([ONE], {"u1": None})
