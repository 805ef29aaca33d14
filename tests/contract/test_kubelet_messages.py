"""The kubelet's messages against protobuf's own codec: the agent's own reading and writing, and the generated code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from grpclib import GRPCError, Status
from hypothesis import given, settings
from hypothesis import strategies as st

from pydra.claim import ClaimRef, ContainerDevice, PrepareOutcome, UnprepareOutcome
from pydra.devices import DeviceHealth, HealthStatus
from pydra.errors import PydraError
from pydra.kubelet import pb
from pydra.kubelet.message_conversion import (
    build_health_check,
    build_health_report,
    build_plugin_info,
    build_prepare_response,
    build_unprepare_response,
    describe,
    one_line,
    parse_claims,
    parse_health_check,
    parse_registration_status,
)
from tests.behaviour.kubelet import messages

PACKAGES = {
    "dra_v1": "k8s.io.kubelet.pkg.apis.dra.v1",
    "dra_health_v1": "v1",
    "pluginregistration_v1": "pluginregistration",
    "grpc_health_v1": "grpc.health.v1",
}
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture
def reference() -> Callable[[str, str], Any]:
    """protobuf's own message class for a .proto file and a message's name."""
    return lambda proto, name: messages()[f"{PACKAGES[proto]}.{name}"]


DEVICE_MESSAGES = st.builds(
    pb.Device,
    request_names=st.lists(TEXT, max_size=3),
    pool_name=TEXT,
    device_name=TEXT,
    cdi_device_ids=st.lists(TEXT, max_size=3),
    share_id=st.none() | TEXT,
)
CLAIM_MESSAGES = st.lists(st.builds(pb.Claim, namespace=TEXT, uid=TEXT, name=TEXT), max_size=3)
PREPARED = st.builds(pb.NodePrepareResourceResponse, devices=st.lists(DEVICE_MESSAGES, max_size=3), error=TEXT)
UNPREPARED = st.builds(pb.NodeUnprepareResourceResponse, error=TEXT)
NODE_MESSAGES = st.one_of(
    st.builds(pb.NodePrepareResourcesRequest, claims=CLAIM_MESSAGES),
    st.builds(pb.NodeUnprepareResourcesRequest, claims=CLAIM_MESSAGES),
    st.builds(pb.NodePrepareResourcesResponse, claims=st.dictionaries(TEXT, PREPARED, max_size=3)),
    st.builds(pb.NodeUnprepareResourcesResponse, claims=st.dictionaries(TEXT, UNPREPARED, max_size=3)),
)
HEALTH = st.builds(
    pb.DeviceHealth,
    device=st.none() | st.builds(pb.DeviceIdentifier, pool_name=TEXT, device_name=TEXT),
    health=st.sampled_from(list(pb.HealthStatus)),
    last_updated_time=INT64,
    health_check_timeout_seconds=INT64,
    message=TEXT,
)
HEALTH_MESSAGES = st.one_of(
    st.just(pb.NodeWatchResourcesRequest()),
    st.builds(pb.NodeWatchResourcesResponse, devices=st.lists(HEALTH, max_size=3)),
)
REGISTRATION_MESSAGES = st.one_of(
    st.just(pb.InfoRequest()),
    st.just(pb.RegistrationStatusResponse()),
    st.builds(pb.RegistrationStatus, plugin_registered=st.booleans(), error=TEXT),
    st.builds(
        pb.PluginInfo,
        type=TEXT,
        name=TEXT,
        endpoint=TEXT,
        supported_versions=st.lists(TEXT, max_size=3),
    ),
)
SERVING_MESSAGES = st.one_of(
    st.builds(pb.HealthCheckRequest, service=TEXT),
    st.builds(
        pb.HealthCheckResponse,
        status=st.sampled_from(list(pb.HealthCheckResponseServingStatus)),
    ),
)
MESSAGES = {
    "dra_v1": NODE_MESSAGES,
    "dra_health_v1": HEALTH_MESSAGES,
    "pluginregistration_v1": REGISTRATION_MESSAGES,
    "grpc_health_v1": SERVING_MESSAGES,
}


def canonical(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


@pytest.mark.parametrize("proto", MESSAGES)
def test_both_codecs_agree_on_every_message(proto: str, reference: Callable[[str, str], Any]) -> None:
    @settings(deadline=None)
    @given(message=MESSAGES[proto])
    def agree(message: Any) -> None:
        theirs = reference(proto, type(message).__name__).FromString(bytes(message))
        assert type(message).parse(canonical(theirs)) == message
        again = type(theirs).FromString(bytes(type(message).parse(canonical(theirs))))
        assert canonical(again) == canonical(theirs)

    agree()


@pytest.mark.parametrize("share_id", [None, "", "x"])
def test_an_absent_share_id_differs_from_an_empty_one(
    share_id: str | None, reference: Callable[[str, str], Any]
) -> None:
    theirs = reference("dra_v1", "Device").FromString(bytes(pb.Device(device_name="d", share_id=share_id)))
    assert (theirs.share_id if theirs.HasField("share_id") else None) == share_id
    assert pb.Device.parse(canonical(theirs)).share_id == share_id


def test_an_empty_submessage_is_sent_and_an_absent_one_is_not(reference: Callable[[str, str], Any]) -> None:
    device_health = reference("dra_health_v1", "DeviceHealth")
    ours = pb.DeviceHealth(device=pb.DeviceIdentifier())
    assert device_health.FromString(bytes(ours)).HasField("device")
    assert not device_health.FromString(bytes(pb.DeviceHealth())).HasField("device")


def test_fields_that_this_version_does_not_know_survive(reference: Callable[[str, str], Any]) -> None:
    newer = canonical(reference("dra_v1", "Claim")(uid="u", name="n")) + bytes([0x7A, 3]) + b"new" + bytes([0x80, 1, 7])
    claim = pb.Claim.parse(newer)
    assert (claim.uid, claim.name) == ("u", "n")
    assert canonical(reference("dra_v1", "Claim").FromString(bytes(claim))) == canonical(
        reference("dra_v1", "Claim").FromString(newer)
    )


def test_a_health_status_of_a_later_version_survives(reference: Callable[[str, str], Any]) -> None:
    later = canonical(reference("dra_health_v1", "DeviceHealth")(health=7, message="m"))
    ours = pb.DeviceHealth.parse(later)
    assert (int(ours.health), ours.message) == (7, "m")
    assert reference("dra_health_v1", "DeviceHealth").FromString(bytes(ours)).health == 7


@pytest.mark.parametrize("number", [-1, -(2**63), 2**63 - 1])
def test_whole_numbers_of_64_bits_keep_their_sign(number: int, reference: Callable[[str, str], Any]) -> None:
    ours = pb.DeviceHealth(last_updated_time=number)
    assert reference("dra_health_v1", "DeviceHealth").FromString(bytes(ours)).last_updated_time == number
    assert pb.DeviceHealth.parse(bytes(ours)).last_updated_time == number


FIELD_NUMBERS = {
    ("pluginregistration_v1", "PluginInfo"): "type=1 name=2 endpoint=3 supported_versions=4",
    ("pluginregistration_v1", "RegistrationStatus"): "plugin_registered=1 error=2",
    ("dra_v1", "Claim"): "namespace=1 uid=2 name=3",
    ("dra_v1", "Device"): "request_names=1 pool_name=2 device_name=3 cdi_device_ids=4 share_id=5",
    ("dra_v1", "NodePrepareResourceResponse"): "devices=1 error=2",
    ("dra_health_v1", "DeviceHealth"): (
        "device=1 health=2 last_updated_time=3 health_check_timeout_seconds=4 message=5"
    ),
    ("dra_health_v1", "DeviceIdentifier"): "pool_name=1 device_name=2",
}


@pytest.mark.parametrize(("proto", "name"), FIELD_NUMBERS)
def test_field_numbers_are_those_of_kubernetes(proto: str, name: str, reference: Callable[[str, str], Any]) -> None:
    fields = reference(proto, name).DESCRIPTOR.fields
    assert " ".join(f"{field.name}={field.number}" for field in fields) == FIELD_NUMBERS[proto, name]


# What the agent reads and writes by itself


NAME = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
CLAIMS = st.lists(st.builds(ClaimRef, uid=NAME, namespace=NAME, name=NAME), max_size=3, unique_by=lambda ref: ref.uid)
DEVICES = st.lists(
    st.builds(
        ContainerDevice,
        requests=st.lists(TEXT, max_size=3).map(tuple),
        pool=TEXT,
        device=TEXT,
        cdi_ids=st.lists(st.text(st.characters(codec="utf-8"), max_size=300), max_size=3).map(tuple),
        share_id=st.none() | TEXT,
    ),
    max_size=3,
)
ERRORS = st.text("abc xyz", min_size=1, max_size=300).filter(str.strip).map(PydraError)


@pytest.mark.parametrize("name", ["NodePrepareResourcesRequest", "NodeUnprepareResourcesRequest"])
def test_the_agent_reads_the_claims_that_protobuf_wrote(name: str, reference: Callable[[str, str], Any]) -> None:
    @settings(deadline=None)
    @given(refs=CLAIMS)
    def agree(refs: list[ClaimRef]) -> None:
        claims = [{"namespace": ref.namespace, "uid": ref.uid, "name": ref.name} for ref in refs]
        call = parse_claims(reference("dra_v1", name)(claims=claims).SerializeToString())
        assert (call.refs, call.refused) == (tuple(refs), {})

    agree()


@pytest.mark.parametrize("with_shares", [True, False], ids=["v1", "v1beta1"])
def test_protobuf_reads_the_prepared_devices_that_the_agent_wrote(
    with_shares: bool, reference: Callable[[str, str], Any]
) -> None:
    @settings(deadline=None)
    @given(outcomes=st.dictionaries(TEXT, DEVICES.map(tuple) | ERRORS, max_size=3))
    def agree(outcomes: dict[str, PrepareOutcome]) -> None:
        data = build_prepare_response(outcomes, share_ids=with_shares)
        response = reference("dra_v1", "NodePrepareResourcesResponse").FromString(data)
        assert len(response.SerializeToString()) == len(data)  # nothing unknown, nothing superfluous
        assert set(response.claims) == set(outcomes)
        for uid, outcome in outcomes.items():
            answer = response.claims[uid]
            assert answer.error == (describe(outcome) if isinstance(outcome, PydraError) else "")
            assert [
                ContainerDevice(
                    requests=tuple(device.request_names),
                    pool=device.pool_name,
                    device=device.device_name,
                    cdi_ids=tuple(device.cdi_device_ids),
                    share_id=device.share_id if device.HasField("share_id") else None,
                )
                for device in answer.devices
            ] == ([] if isinstance(outcome, PydraError) else [trimmed(one, with_shares) for one in outcome])

    agree()


def trimmed(device: ContainerDevice, with_shares: bool) -> ContainerDevice:
    return device if with_shares else msgspec.structs.replace(device, share_id=None)


def test_protobuf_reads_the_unprepared_claims_that_the_agent_wrote(reference: Callable[[str, str], Any]) -> None:
    @settings(deadline=None)
    @given(outcomes=st.dictionaries(TEXT, st.none() | ERRORS, max_size=3))
    def agree(outcomes: dict[str, UnprepareOutcome]) -> None:
        data = build_unprepare_response(outcomes)
        response = reference("dra_v1", "NodeUnprepareResourcesResponse").FromString(data)
        assert len(response.SerializeToString()) == len(data)
        assert {uid: answer.error for uid, answer in response.claims.items()} == {
            uid: describe(outcome) if outcome else "" for uid, outcome in outcomes.items()
        }

    agree()


def test_protobuf_reads_the_health_that_the_agent_wrote(reference: Callable[[str, str], Any]) -> None:
    numbers = {HealthStatus.UNKNOWN: 0, HealthStatus.HEALTHY: 1, HealthStatus.UNHEALTHY: 2}
    health = st.builds(DeviceHealth, pool=TEXT, device=TEXT, status=st.sampled_from(HealthStatus), message=TEXT)

    @settings(deadline=None)
    @given(devices=st.lists(health, max_size=3), updated=INT64, lease=st.integers(1, 10**6))
    def agree(devices: list[DeviceHealth], updated: int, lease: int) -> None:
        response = reference("dra_health_v1", "NodeWatchResourcesResponse").FromString(
            build_health_report(devices, updated=updated, lease=lease)
        )
        assert [
            (one.device.pool_name, one.device.device_name, one.health, one.message) for one in response.devices
        ] == [(one.pool, one.device, numbers[one.status], one_line(one.message, 1024)) for one in devices]
        assert {(one.last_updated_time, one.health_check_timeout_seconds) for one in response.devices} <= {
            (updated, lease)
        }

    agree()


def test_protobuf_and_the_agent_agree_on_the_registration(reference: Callable[[str, str], Any]) -> None:
    data = build_plugin_info(driver="gpu.example.com", endpoint="/x/dra.sock", versions=("v1.DRAPlugin", "v2"))
    info = reference("pluginregistration_v1", "PluginInfo").FromString(data)
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "gpu.example.com", "/x/dra.sock")
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v2"]
    status = reference("pluginregistration_v1", "RegistrationStatus")
    assert parse_registration_status(status(plugin_registered=True).SerializeToString()) == (True, "")
    assert parse_registration_status(status(error="ünknown").SerializeToString()) == (False, "ünknown")


def test_protobuf_and_the_agent_agree_on_grpcs_health_check(reference: Callable[[str, str], Any]) -> None:
    request = reference("grpc_health_v1", "HealthCheckRequest")
    assert parse_health_check(request(service="v1.X").SerializeToString()) == "v1.X"
    assert parse_health_check(request().SerializeToString()) == ""
    response = reference("grpc_health_v1", "HealthCheckResponse")
    names = response.ServingStatus
    for status in pb.HealthCheckResponseServingStatus:
        assert names.Name(response.FromString(build_health_check(status)).status) == status.name


def test_the_agent_skips_fields_of_later_versions(reference: Callable[[str, str], Any]) -> None:
    later = b"\x7a\x03new" + b"\x80\x01\x07" + b"\x49" + bytes(8) + b"\x4d" + bytes(4)
    claim = reference("dra_v1", "Claim")(uid="u", namespace="n", name="c").SerializeToString() + later
    request = later + b"\x0a" + bytes([len(claim)]) + claim
    assert parse_claims(request).refs == (ClaimRef(uid="u", namespace="n", name="c"),)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x03\x12\x01\xff",
        b"\x0a\x7f\x08",
        b"\x0b",
        b"\x0d\x01",
        b"\x08" + b"\xff" * 10,
        b"\x02" + b"\x80" * 9 + b"\x01",
        b"\x08\x01",
        b"\x0a\x02\x08\x01",
    ],
    ids=[
        "no length",
        "not UTF-8",
        "longer than the message",
        "a group",
        "half a number of four bytes",
        "a number without end",
        "a length that no memory has",
        "a number for a claim",
        "a number for a name",
    ],
)
def test_bytes_that_are_not_a_message_are_an_invalid_argument(data: bytes) -> None:
    with pytest.raises(GRPCError, match="the request is not a valid message: ") as caught:
        parse_claims(data)
    assert caught.value.status is Status.INVALID_ARGUMENT
