"""The kubelet's messages and pydra's values: one answer for each claim, whatever the claims are."""

from __future__ import annotations

import pytest
from grpclib import GRPCError, Status
from hypothesis import given, settings
from hypothesis import strategies as st

from pydra.claim import ClaimRef
from pydra.devices import DeviceHealth, HealthStatus
from pydra.errors import ClaimError, PydraError
from pydra.kubelet import message_conversion, pb
from pydra.kubelet.grpc_server import MAX_MESSAGE

GOOD = {"uid": "uid-1", "namespace": "team", "name": "gpu"}


def parse(*claims: dict[str, str]) -> message_conversion.ClaimCall:
    request = pb.NodePrepareResourcesRequest(claims=[pb.Claim(**claim) for claim in claims])
    return message_conversion.parse_claims(bytes(request))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("uid", "", "without uid"),
        ("uid", "../../etc/passwd", "whose uid is '../../etc/passwd'"),
        ("uid", "..", "whose uid"),
        ("uid", "a/b", "whose uid"),
        ("uid", "a\0b", "whose uid"),
        ("uid", "ä", "whose uid"),
        ("uid", "u" * 129, "at most 128 bytes"),
        ("uid", "uid\n", "whose uid"),
        ("uid", "uid.", "with a letter or digit at both ends"),
        ("namespace", "", "without namespace"),
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
def test_a_claim_with_a_bad_name_is_refused_and_the_others_are_not(field: str, value: str, words: str) -> None:
    bad = {"uid": "uid-2", "namespace": "team", "name": "gpu", field: value}
    call = parse(bad, GOOD)
    assert call.refs == (ClaimRef(**GOOD),)
    [(uid, error)] = call.refused.items()
    assert uid == bad["uid"]
    assert words in str(error)


def test_a_claim_that_is_listed_twice_is_served_once() -> None:
    call = parse(GOOD, GOOD)
    assert [ref.uid for ref in call.refs] == ["uid-1"]
    assert not call.refused


def test_one_uid_with_two_names_is_refused() -> None:
    call = parse(GOOD, {**GOOD, "name": "other"}, GOOD)
    assert not call.refs
    assert str(call.refused["uid-1"]) == "the kubelet gives uid uid-1 to two claims: team/gpu and team/other"


def test_a_call_with_too_many_claims_is_refused_as_a_whole() -> None:
    many = [{**GOOD, "uid": f"uid-{n}"} for n in range(message_conversion.MAX_CLAIMS + 1)]
    assert len(parse(*many[:-1]).refs) == message_conversion.MAX_CLAIMS
    with pytest.raises(GRPCError, match="4097 claims in one call; at most 4096") as caught:
        parse(*many)
    assert caught.value.status is Status.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ClaimError("device gpu-0\n  is\tbusy \x1b[31m\x00"), "device gpu-0 is busy [31m"),
        (PydraError(""), "PydraError"),
        (PydraError(" \n "), "PydraError"),
        (PydraError("\x00"), "PydraError"),
        (PydraError("Gerät \udcff kaputt"), "Gerät kaputt"),
    ],
    ids=["control characters", "empty", "blank", "only controls", "not UTF-8"],
)
def test_an_error_is_one_line_that_is_never_empty(error: PydraError, line: str) -> None:
    assert message_conversion.describe(error) == line


@given(text=st.text(), limit=st.integers(8, 40))
def test_a_line_is_never_longer_than_its_limit(text: str, limit: int) -> None:
    line = message_conversion.one_line(text, limit)
    assert len(line.encode()) <= limit
    assert "\n" not in line


@settings(deadline=None, max_examples=10)
@given(count=st.sampled_from([1, 16, 1000, message_conversion.MAX_CLAIMS]))
def test_the_errors_of_any_call_fit_into_one_message(count: int) -> None:
    error = ClaimError("x" * 5000)
    data = message_conversion.build_prepare_response({f"{n:0128}": error for n in range(count)}, share_ids=True)
    assert len(data) < MAX_MESSAGE
    claims = pb.NodePrepareResourcesResponse.parse(data).claims
    assert all(len(answer.error) >= 500 for answer in claims.values())


def test_the_health_of_very_many_devices_fits_into_one_report() -> None:
    devices = [
        DeviceHealth(pool="p", device=f"gpu-{n}", status=HealthStatus.UNHEALTHY, message="x" * 2000)
        for n in range(5000)
    ]
    report = message_conversion.build_health_report(devices, updated=0, lease=30)
    assert len(report) < MAX_MESSAGE
    assert len(pb.NodeWatchResourcesResponse.parse(report).devices) == 5000
    one = message_conversion.build_health_report(devices[:1], updated=0, lease=30)
    assert len(pb.NodeWatchResourcesResponse.parse(one).devices[0].message) == 1024
