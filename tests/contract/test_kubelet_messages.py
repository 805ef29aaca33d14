"""The generated messages against protobuf's own codec: same bytes, same values, for every message."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
)
from grpclib import GRPCError, Status
from hypothesis import given, settings
from hypothesis import strategies as st

from pydra.kubelet.codec import Codec
from pydra.kubelet.messages import parse_claims
from pydra.kubelet.pb import (
    dra_health_v1,
    dra_health_v1alpha1,
    dra_v1,
    dra_v1beta1,
    grpc_health_v1,
    pluginregistration_v1,
)

PROTO = Path(__file__).resolve().parents[2] / "proto"
MODULES: dict[str, tuple[str, ModuleType]] = {
    "dra_v1": ("k8s.io.kubelet.pkg.apis.dra.v1", dra_v1),
    "dra_v1beta1": ("k8s.io.kubelet.pkg.apis.dra.v1beta1", dra_v1beta1),
    "dra_health_v1": ("v1", dra_health_v1),
    "dra_health_v1alpha1": ("v1alpha1", dra_health_v1alpha1),
    "pluginregistration_v1": ("pluginregistration", pluginregistration_v1),
    "grpc_health_v1": ("grpc.health.v1", grpc_health_v1),
}
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Any]:
    """protobuf's own message class for a .proto file and a message's name."""
    output = tmp_path_factory.mktemp("descriptors") / "all.pb"
    files = sorted(path.name for path in PROTO.glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"--descriptor_set_out={output}", *files]
    subprocess.run(command, check=True, capture_output=True)
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file:
        pool.Add(file)

    def message_class(proto: str, name: str) -> Any:
        package, _ = MODULES[proto]
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))

    return message_class


def devices(module: ModuleType) -> st.SearchStrategy[Any]:
    fields: dict[str, st.SearchStrategy[Any]] = {
        "request_names": st.lists(TEXT, max_size=3),
        "pool_name": TEXT,
        "device_name": TEXT,
        "cdi_device_ids": st.lists(TEXT, max_size=3),
    }
    if module is dra_v1:
        fields["share_id"] = st.none() | TEXT
    return st.builds(module.Device, **fields)


def node_messages(module: ModuleType) -> st.SearchStrategy[Any]:
    claims = st.lists(st.builds(module.Claim, namespace=TEXT, uid=TEXT, name=TEXT), max_size=3)
    prepared = st.builds(module.NodePrepareResourceResponse, devices=st.lists(devices(module), max_size=3), error=TEXT)
    unprepared = st.builds(module.NodeUnprepareResourceResponse, error=TEXT)
    return st.one_of(
        st.builds(module.NodePrepareResourcesRequest, claims=claims),
        st.builds(module.NodeUnprepareResourcesRequest, claims=claims),
        st.builds(module.NodePrepareResourcesResponse, claims=st.dictionaries(TEXT, prepared, max_size=3)),
        st.builds(module.NodeUnprepareResourcesResponse, claims=st.dictionaries(TEXT, unprepared, max_size=3)),
    )


def health_messages(module: ModuleType) -> st.SearchStrategy[Any]:
    identifier = st.none() | st.builds(module.DeviceIdentifier, pool_name=TEXT, device_name=TEXT)
    health = st.builds(
        module.DeviceHealth,
        device=identifier,
        health=st.sampled_from(list(module.HealthStatus)),
        last_updated_time=INT64,
        health_check_timeout_seconds=INT64,
        message=TEXT,
    )
    response = st.builds(module.NodeWatchResourcesResponse, devices=st.lists(health, max_size=3))
    return st.just(module.NodeWatchResourcesRequest()) | response


REGISTRATION_MESSAGES = st.one_of(
    st.just(pluginregistration_v1.InfoRequest()),
    st.just(pluginregistration_v1.RegistrationStatusResponse()),
    st.builds(pluginregistration_v1.RegistrationStatus, plugin_registered=st.booleans(), error=TEXT),
    st.builds(
        pluginregistration_v1.PluginInfo,
        type=TEXT,
        name=TEXT,
        endpoint=TEXT,
        supported_versions=st.lists(TEXT, max_size=3),
    ),
)
SERVING_MESSAGES = st.one_of(
    st.builds(grpc_health_v1.HealthCheckRequest, service=TEXT),
    st.builds(
        grpc_health_v1.HealthCheckResponse,
        status=st.sampled_from(list(grpc_health_v1.HealthCheckResponseServingStatus)),
    ),
)
MESSAGES = {
    "dra_v1": node_messages(dra_v1),
    "dra_v1beta1": node_messages(dra_v1beta1),
    "dra_health_v1": health_messages(dra_health_v1),
    "dra_health_v1alpha1": health_messages(dra_health_v1alpha1),
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


def test_values_arrive_under_their_own_names(reference: Callable[[str, str], Any]) -> None:
    ours = dra_v1.NodePrepareResourcesResponse(
        claims={
            "uid-1": dra_v1.NodePrepareResourceResponse(
                devices=[
                    dra_v1.Device(
                        request_names=["gpu"],
                        pool_name="node-1",
                        device_name="gpu-0",
                        cdi_device_ids=["vendor.com/claim=x"],
                        share_id="share",
                    )
                ]
            ),
            "uid-2": dra_v1.NodePrepareResourceResponse(error="no"),
        }
    )
    theirs = reference("dra_v1", "NodePrepareResourcesResponse").FromString(bytes(ours))
    assert json_format.MessageToDict(theirs, preserving_proto_field_name=True) == {
        "claims": {
            "uid-1": {
                "devices": [
                    {
                        "request_names": ["gpu"],
                        "pool_name": "node-1",
                        "device_name": "gpu-0",
                        "cdi_device_ids": ["vendor.com/claim=x"],
                        "share_id": "share",
                    }
                ]
            },
            "uid-2": {"error": "no"},
        }
    }


@pytest.mark.parametrize("proto", ["dra_v1", "dra_v1beta1"])
def test_an_empty_answer_keeps_its_claim_in_the_map(proto: str, reference: Callable[[str, str], Any]) -> None:
    module = MODULES[proto][1]
    ours = module.NodeUnprepareResourcesResponse(claims={"uid-1": module.NodeUnprepareResourceResponse()})
    theirs = reference(proto, "NodeUnprepareResourcesResponse").FromString(bytes(ours))
    assert list(theirs.claims) == ["uid-1"]
    assert theirs.claims["uid-1"].error == ""


@pytest.mark.parametrize("share_id", [None, "", "x"])
def test_an_absent_share_id_differs_from_an_empty_one(
    share_id: str | None, reference: Callable[[str, str], Any]
) -> None:
    theirs = reference("dra_v1", "Device").FromString(bytes(dra_v1.Device(device_name="d", share_id=share_id)))
    assert (theirs.share_id if theirs.HasField("share_id") else None) == share_id
    assert dra_v1.Device.parse(canonical(theirs)).share_id == share_id


def test_a_v1beta1_kubelet_skips_a_share_id(reference: Callable[[str, str], Any]) -> None:
    theirs = reference("dra_v1beta1", "Device").FromString(bytes(dra_v1.Device(device_name="d", share_id="x")))
    assert theirs.device_name == "d"
    assert b"x" in canonical(theirs)


@pytest.mark.parametrize("proto", ["dra_health_v1", "dra_health_v1alpha1"])
def test_an_empty_submessage_is_sent_and_an_absent_one_is_not(proto: str, reference: Callable[[str, str], Any]) -> None:
    module = MODULES[proto][1]
    device_health = reference(proto, "DeviceHealth")
    assert device_health.FromString(bytes(module.DeviceHealth(device=module.DeviceIdentifier()))).HasField("device")
    assert not device_health.FromString(bytes(module.DeviceHealth())).HasField("device")


def test_fields_that_this_version_does_not_know_survive(reference: Callable[[str, str], Any]) -> None:
    newer = canonical(reference("dra_v1", "Claim")(uid="u", name="n")) + bytes([0x7A, 3]) + b"new" + bytes([0x80, 1, 7])
    claim = dra_v1.Claim.parse(newer)
    assert (claim.uid, claim.name) == ("u", "n")
    assert canonical(reference("dra_v1", "Claim").FromString(bytes(claim))) == canonical(
        reference("dra_v1", "Claim").FromString(newer)
    )


def test_a_health_status_of_a_later_version_survives(reference: Callable[[str, str], Any]) -> None:
    later = canonical(reference("dra_health_v1", "DeviceHealth")(health=7, message="m"))
    ours = dra_health_v1.DeviceHealth.parse(later)
    assert (int(ours.health), ours.message) == (7, "m")
    assert reference("dra_health_v1", "DeviceHealth").FromString(bytes(ours)).health == 7


@pytest.mark.parametrize("number", [-1, -(2**63), 2**63 - 1])
def test_whole_numbers_of_64_bits_keep_their_sign(number: int, reference: Callable[[str, str], Any]) -> None:
    ours = dra_health_v1.DeviceHealth(last_updated_time=number)
    assert reference("dra_health_v1", "DeviceHealth").FromString(bytes(ours)).last_updated_time == number
    assert dra_health_v1.DeviceHealth.parse(bytes(ours)).last_updated_time == number


@pytest.mark.parametrize(
    ("module", "base", "paths"),
    [
        (
            dra_v1,
            "DraPluginBase",
            [
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            ],
        ),
        (
            dra_v1beta1,
            "DraPluginBase",
            [
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
            ],
        ),
        (dra_health_v1, "DraResourceHealthBase", ["/v1.DRAResourceHealth/NodeWatchResources"]),
        (dra_health_v1alpha1, "DraResourceHealthBase", ["/v1alpha1.DRAResourceHealth/NodeWatchResources"]),
        (
            pluginregistration_v1,
            "RegistrationBase",
            [
                "/pluginregistration.Registration/GetInfo",
                "/pluginregistration.Registration/NotifyRegistrationStatus",
            ],
        ),
        (grpc_health_v1, "HealthBase", ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"]),
    ],
    ids=lambda value: value.__name__.rpartition(".")[2] if isinstance(value, ModuleType) else "",
)
def test_methods_have_the_paths_that_kubelets_call(module: ModuleType, base: str, paths: list[str]) -> None:
    assert list(getattr(module, base)().__mapping__()) == paths


FIELD_NUMBERS = {
    ("pluginregistration_v1", "PluginInfo"): "type=1 name=2 endpoint=3 supported_versions=4",
    ("pluginregistration_v1", "RegistrationStatus"): "plugin_registered=1 error=2",
    ("dra_v1", "Claim"): "namespace=1 uid=2 name=3",
    ("dra_v1", "Device"): "request_names=1 pool_name=2 device_name=3 cdi_device_ids=4 share_id=5",
    ("dra_v1", "NodePrepareResourceResponse"): "devices=1 error=2",
    ("dra_v1beta1", "Claim"): "namespace=1 uid=2 name=3",
    ("dra_v1beta1", "Device"): "request_names=1 pool_name=2 device_name=3 cdi_device_ids=4",
    ("dra_health_v1", "DeviceHealth"): (
        "device=1 health=2 last_updated_time=3 health_check_timeout_seconds=4 message=5"
    ),
    ("dra_health_v1alpha1", "DeviceHealth"): (
        "device=1 health=2 last_updated_time=3 health_check_timeout_seconds=4 message=5"
    ),
    ("dra_health_v1", "DeviceIdentifier"): "pool_name=1 device_name=2",
    ("dra_health_v1alpha1", "DeviceIdentifier"): "pool_name=1 device_name=2",
}


@pytest.mark.parametrize(("proto", "name"), FIELD_NUMBERS)
def test_field_numbers_are_those_of_kubernetes(proto: str, name: str, reference: Callable[[str, str], Any]) -> None:
    fields = reference(proto, name).DESCRIPTOR.fields
    assert " ".join(f"{field.name}={field.number}" for field in fields) == FIELD_NUMBERS[proto, name]


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"\x0a\x05\xff\xfe\xfd\xfc\xfb", b"\x08\x05", b"\x0d" + struct.pack("<I", 5), b"\x0a\x02\x08\x05"],
    ids=["no field", "no claim", "a number for a claim", "four bytes for a claim", "a number for a namespace"],
)
def test_hostile_bytes_are_a_message_or_an_invalid_argument(data: bytes) -> None:
    decode_or_refuse(data)


@settings(deadline=None)
@given(data=st.binary(max_size=64))
def test_any_bytes_are_a_message_or_an_invalid_argument(data: bytes) -> None:
    decode_or_refuse(data)


def decode_or_refuse(data: bytes) -> None:
    try:
        message = Codec().decode(data, dra_v1.NodePrepareResourcesRequest)
    except GRPCError as error:
        refusal = error
    else:
        call = parse_claims(message.claims)
        assert len(call.refs) + len(call.refused) <= max(1, len(message.claims))
        return
    assert refusal.status is Status.INVALID_ARGUMENT
    assert "NodePrepareResourcesRequest" in str(refusal.message)
