"""The kubelet's messages and pydra's values: one answer for each claim, whatever the claims are."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydra.claims.outcome import ClaimRef, ContainerDevice
from pydra.errors import ClaimError, PydraError
from pydra.kubelet import messages
from pydra.kubelet.pb import dra_v1, dra_v1beta1

GOOD = dra_v1.Claim(uid="uid-1", namespace="team", name="gpu")
DEVICE = ContainerDevice(
    requests=("gpu",), pool="node-1", device="gpu-0", cdi_ids=("example.com/claim=uid-1:gpu:gpu-0",), share_id="s"
)


@pytest.mark.parametrize("version", [dra_v1, dra_v1beta1], ids=["v1", "v1beta1"])
def test_claims_of_both_versions_become_references_in_their_order(version: ModuleType) -> None:
    claims = [version.Claim(uid=uid, namespace="team", name=f"claim-{uid}") for uid in ("b", "a")]
    call = messages.parse_claims(claims)
    assert call.refs == (
        ClaimRef(uid="b", namespace="team", name="claim-b"),
        ClaimRef(uid="a", namespace="team", name="claim-a"),
    )
    assert call.refused == {}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("uid", "", "without uid"),
        ("uid", 5, "without uid"),
        ("uid", "../../etc/passwd", "whose uid is '../../etc/passwd'"),
        ("uid", "..", "whose uid"),
        ("uid", "a/b", "whose uid"),
        ("uid", "a\0b", "whose uid"),
        ("uid", "ä", "whose uid"),
        ("uid", "u" * 129, "at most 128 bytes"),
        ("uid", "uid\n", "whose uid"),
        ("namespace", "", "without namespace"),
        ("namespace", None, "without namespace"),
        ("namespace", "../x", "must be a DNS label"),
        ("namespace", "a.b", "must be a DNS label"),
        ("namespace", "n" * 64, "at most 63 bytes"),
        ("name", "", "without name"),
        ("name", "../../nodes/n", "must be a DNS subdomain"),
        ("name", "a%2fb", "must be a DNS subdomain"),
        ("name", "a?b=c", "must be a DNS subdomain"),
        ("name", "n" * 254, "at most 253 bytes"),
    ],
)
def test_a_claim_that_is_named_badly_is_refused_and_the_others_are_not(field: str, value: object, words: str) -> None:
    fields = {"uid": "uid-2", "namespace": "team", "name": "gpu", field: value}
    bad = dra_v1.Claim(**fields)  # type: ignore[arg-type]
    call = messages.parse_claims([bad, GOOD])
    assert call.refs == (ClaimRef(uid="uid-1", namespace="team", name="gpu"),)
    [(uid, error)] = call.refused.items()
    assert uid == (fields["uid"] if isinstance(fields["uid"], str) else "")
    assert words in str(error)


def test_what_is_no_claim_at_all_is_refused() -> None:
    assert list(messages.parse_claims([5, GOOD]).refused) == [""]


def test_a_claim_that_is_named_twice_is_served_once() -> None:
    call = messages.parse_claims([GOOD, GOOD])
    assert [ref.uid for ref in call.refs] == ["uid-1"]
    assert not call.refused


def test_one_uid_under_two_names_is_refused() -> None:
    call = messages.parse_claims([GOOD, dra_v1.Claim(uid="uid-1", namespace="team", name="other")])
    assert not call.refs
    assert str(call.refused["uid-1"]) == "the kubelet gives uid uid-1 to two claims: team/gpu and team/other"


def test_a_call_with_too_many_claims_is_refused_as_a_whole() -> None:
    many = [dra_v1.Claim(uid=f"uid-{n}", namespace="team", name="gpu") for n in range(messages.MAX_CLAIMS + 1)]
    assert len(messages.parse_claims(many[:-1]).refs) == messages.MAX_CLAIMS
    with pytest.raises(ClaimError, match="4097 claims in one call, at most 4096"):
        messages.parse_claims(many)


def test_v1_tells_the_kubelet_everything_of_a_device() -> None:
    response = messages.build_prepare_v1({"uid-1": (DEVICE,), "uid-2": ClaimError("taken"), "uid-3": ()})
    assert response == dra_v1.NodePrepareResourcesResponse(
        claims={
            "uid-1": dra_v1.NodePrepareResourceResponse(
                devices=[
                    dra_v1.Device(
                        request_names=["gpu"],
                        pool_name="node-1",
                        device_name="gpu-0",
                        cdi_device_ids=["example.com/claim=uid-1:gpu:gpu-0"],
                        share_id="s",
                    )
                ]
            ),
            "uid-2": dra_v1.NodePrepareResourceResponse(error="taken"),
            "uid-3": dra_v1.NodePrepareResourceResponse(),
        }
    )


def test_v1beta1_leaves_out_the_share() -> None:
    response = messages.build_prepare_v1beta1({"uid-1": (DEVICE,), "uid-2": ClaimError("taken")})
    assert response == dra_v1beta1.NodePrepareResourcesResponse(
        claims={
            "uid-1": dra_v1beta1.NodePrepareResourceResponse(
                devices=[
                    dra_v1beta1.Device(
                        request_names=["gpu"],
                        pool_name="node-1",
                        device_name="gpu-0",
                        cdi_device_ids=["example.com/claim=uid-1:gpu:gpu-0"],
                    )
                ]
            ),
            "uid-2": dra_v1beta1.NodePrepareResourceResponse(error="taken"),
        }
    )


def test_unprepare_answers_with_nothing_or_an_error() -> None:
    outcomes = {"uid-1": None, "uid-2": PydraError("busy")}
    v1 = messages.build_unprepare_v1(outcomes)
    v1beta1 = messages.build_unprepare_v1beta1(outcomes)
    assert {uid: answer.error for uid, answer in v1.claims.items()} == {"uid-1": "", "uid-2": "busy"}
    assert {uid: answer.error for uid, answer in v1beta1.claims.items()} == {"uid-1": "", "uid-2": "busy"}


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ClaimError("device gpu-0\n  is\tbusy \x1b[31m\x00"), "device gpu-0 is busy [31m"),
        (PydraError(""), "PydraError"),
        (PydraError(" \n "), "PydraError"),
        (PydraError("\x00"), "PydraError"),
        (ExceptionGroup("group", [ClaimError("one")]), "one"),
        (ExceptionGroup("group", [ClaimError("one"), ExceptionGroup("inner", [ClaimError("two")])]), "one; two"),
        (PydraError("Gerät \udcff kaputt"), "Gerät kaputt"),
    ],
    ids=["control characters", "empty", "blank", "only controls", "group of one", "nested", "no UTF-8"],
)
def test_an_error_is_one_line_that_is_never_empty(error: Exception, line: str) -> None:
    assert messages.describe(error) == line


@given(text=st.text(), limit=st.integers(8, 40))
def test_a_line_is_never_longer_than_its_limit(text: str, limit: int) -> None:
    line = messages.one_line(text, limit)
    assert len(line.encode()) <= limit
    assert "\n" not in line


@settings(deadline=None, max_examples=10)
@given(count=st.sampled_from([1, 16, 1000, messages.MAX_CLAIMS]))
def test_the_errors_of_any_call_fit_into_one_message(count: int) -> None:
    error = ClaimError("x" * 5000)
    response = messages.build_prepare_v1({f"{n:0128}": error for n in range(count)})
    assert len(bytes(response)) < 4 * 1024 * 1024
    assert all(len(answer.error) >= 500 for answer in response.claims.values())
