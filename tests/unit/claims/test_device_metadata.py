"""The metadata files of a claim, in the cases that the behaviour tests do not show."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from pydra import AllocatedDevice, AttributeValue, Claim, Device, DeviceStatus, NetworkData, Version
from pydra.cdi.device_metadata_files import MetadataPaths
from pydra.checkpoint.record import Record, Stage, build_record, parse_record
from pydra.claims.device_metadata import begin_again, build_metadata, build_metadata_files, renew_metadata
from pydra.claims.device_use import PublishedPool
from pydra.errors import ContractError


def make_record(*, request: str = "gpu", attributes: dict[str, AttributeValue] | None = None) -> Record:
    """The record of a claim for one device that is published with a list and a version."""
    device = AllocatedDevice(request=request, pool="node-1", device="gpu-0")
    claim = Claim(uid="1-2", namespace="lab", name="mine", devices=(device,))
    found = Device(name="gpu-0", attributes={"links": ("a", "b"), "firmware": Version("1.0.0")})
    return Record(
        claim=claim,
        driver="gpu.example.com",
        stage=Stage.COMPLETED,
        boot_id="b",
        prepared=(device.prepared(attributes=attributes or {}),),
        metadata=build_metadata(claim, {"node-1": PublishedPool(devices={"gpu-0": found})}, pod_claim_name=""),
    )


def build(record: Record, driver: str = "gpu.example.com") -> tuple[list[str], Any, Any]:
    """The paths, and the first document of the first file, and the CDI spec."""
    files = build_metadata_files(
        record, MetadataPaths(driver=driver, plugin_directory="/plugins/gpu", cdi_directory="/cdi")
    )
    document, spec = (json.JSONDecoder().raw_decode(content.decode())[0] for content in files.values())
    return list(files), document, spec


def test_the_chosen_alternative_is_in_the_file_and_its_request_in_the_paths() -> None:
    paths, document, _ = build(make_record(request="gpu/large"))
    assert paths == [
        "/plugins/gpu/dra-device-metadata/lab_mine/gpu/metadata.json",
        "/cdi/gpu.example.com_metadata_1-2_gpu.json",
    ]
    assert document["requests"][0]["name"] == "gpu/large"


def test_a_record_that_was_stored_and_read_again_gives_the_same_files() -> None:
    record = make_record(attributes={"uuid": "GPU-1", "ready": True})
    assert build(parse_record(build_record(record))) == build(record)
    assert build(record)[1]["requests"][0]["devices"][0]["attributes"] == {
        "firmware": {"version": "1.0.0"},
        "links": {"strings": ["a", "b"]},
        "ready": {"bool": True},
        "uuid": {"string": "GPU-1"},
    }


def test_a_driver_name_that_begins_with_a_digit_gets_a_vendor_that_cdi_accepts() -> None:
    paths, _, spec = build(make_record(), driver="3d.example.com")
    assert paths[1] == "/cdi/k8s.3d.example.com_metadata_1-2_gpu.json"
    assert spec["kind"] == "k8s.3d.example.com/metadata"


def test_more_attributes_than_a_device_may_have_are_the_backends_fault() -> None:
    with pytest.raises(ContractError, match="at most 32"):
        build(make_record(attributes={f"a{number}": number for number in range(31)}))


def test_each_change_of_network_data_is_a_generation_and_a_claim_prepared_again_begins_with_what_prepare_said() -> None:
    def tell(address: str) -> dict[tuple[str, str, str | None], DeviceStatus]:
        return {("1-2", "gpu-0", None): DeviceStatus(network_data=NetworkData(ips=(address,)))}

    def read(record: Record) -> tuple[int, Any]:
        document = build(parse_record(build_record(record)))[1]
        return document["metadata"]["generation"], document["requests"][0]["devices"][0].get("networkData")

    record = make_record()
    assert read(record) == (1, None)
    for generation, told, network in (
        (2, tell("192.0.2.5/24"), {"ips": ["192.0.2.5/24"]}),
        (3, {}, None),
        (4, tell("192.0.2.6/24"), {"ips": ["192.0.2.6/24"]}),
    ):
        changed = renew_metadata(record, told)
        assert changed is not None
        assert renew_metadata(changed, told) is None
        record = changed
        assert read(record) == (generation, network)
    assert record.metadata is not None
    assert read(replace(record, metadata=begin_again(record.metadata))) == (5, None)
    assert renew_metadata(replace(record, stage=Stage.STARTED), {}) is None
