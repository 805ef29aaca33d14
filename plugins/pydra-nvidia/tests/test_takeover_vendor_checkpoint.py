"""NVIDIA's checkpoint is read in every form it has had, and what cannot be understood costs one entry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_nvidia.takeover.vendor_checkpoint import (
    NoCheckpoint,
    VendorClaim,
    VendorDevice,
    VendorResult,
    parse_vendor_checkpoint,
)

DATA = Path(__file__).parent / "data" / "vendor-checkpoints"
UID = "dab5ab50-d59a-42a6-af16-cfd4628c0f7a"
GPU = "GPU-2fa81118-5a5f-aa66-7660-471eed407181"


def read(name: str) -> bytes:
    return (DATA / f"{name}.json").read_bytes()


def only(text: bytes) -> VendorClaim:
    (claim,) = parse_vendor_checkpoint(text).claims
    return claim


@pytest.mark.parametrize("name", [file.stem for file in sorted(DATA.glob("*.json"))])
def test_its_own_files_are_read_whole(name: str) -> None:
    checkpoint = parse_vendor_checkpoint(read(name))
    assert checkpoint.problems == ()
    assert checkpoint.boot_id == "3a8b7c1e-5f2d-4e6a-9b0c-1d2e3f4a5b6c"


def device(kind: str, name: str, **fields: Any) -> VendorDevice:
    request = "gpu" if name == "gpu-0" else kind
    return VendorDevice(kind=kind, device=name, pool="node-1", request=request, **fields)


DEVICES = {
    "gpu": device("gpu", "gpu-0", uuid=GPU),
    "mig": device("mig", "gpu-0-mig-1g10gb-19-0", uuid="MIG-1a2b3c4d-5e6f-5a8b-9c0d-1e2f3a4b5c6d"),
    "vfio": device("vfio", "gpu-vfio-0", uuid="8533fd84-02c8-5350-bd10-3cf08fc7bcd0", address="0000:65:00.0"),
    "mps": device("gpu", "gpu-0", uuid=GPU, mps=f"{UID}-74a32"),
    "time-sliced": device("gpu", "gpu-0", uuid=GPU, time_sliced=True),
}


@pytest.mark.parametrize("name", DEVICES)
def test_a_completed_claim_has_its_devices(name: str) -> None:
    claim = only(read(name))
    assert (claim.uid, claim.completed, claim.devices) == (UID, True, (DEVICES[name],))
    assert claim.results[0].driver == "gpu.nvidia.com"


def test_a_claim_that_was_only_begun_has_its_allocation_and_its_name() -> None:
    assert only(read("started")) == VendorClaim(
        uid=UID,
        completed=False,
        namespace="default",
        name="claim-a",
        results=(VendorResult(request="gpu", driver="gpu.nvidia.com", pool="node-1", device="gpu-0"),),
    )


def without_v2(name: str) -> bytes:
    """The file as releases before 25.8 wrote it."""
    document = json.loads(read(name))
    del document["v2"]
    return json.dumps(document, separators=(",", ":")).encode()


@pytest.mark.parametrize("name", DEVICES)
def test_version_1_alone_is_read_as_completed(name: str) -> None:
    checkpoint = parse_vendor_checkpoint(without_v2(name))
    assert checkpoint.problems == ()
    assert checkpoint.boot_id == ""
    assert checkpoint.claims[0].completed
    assert checkpoint.claims[0].devices == (DEVICES[name],)


def test_partitions_before_25_12_carry_their_uuid_elsewhere() -> None:
    document = json.loads(without_v2("mig"))
    old = document["v1"]["preparedClaims"][UID]["preparedDevices"][0]["devices"][0]["mig"]
    old["info"] = {"uuid": old.pop("concrete")["migUUID"]}
    (found,) = only(json.dumps(document).encode()).devices
    assert found.uuid == DEVICES["mig"].uuid


def test_the_main_branchs_empty_config_state_is_read_too() -> None:
    text = read("gpu").replace(b'"configState":{"mpsControlDaemonID":""}', b'"configState":{}')
    assert only(text).devices == (DEVICES["gpu"],)


BAD_ENTRIES = {
    "the list of a release candidate": [{"request_names": ["gpu"]}],
    "no kind of device": {"preparedDevices": [{"devices": [{"gpu": None, "mig": None}]}]},
    "two kinds at once": {"preparedDevices": [{"devices": [{"gpu": {}, "mig": {}}]}]},
    "no names": {"preparedDevices": [{"devices": [{"gpu": {"info": {"uuid": "GPU-1"}}}]}]},
    "a wrong type": {"status": 7},
}


@pytest.mark.parametrize("entry", BAD_ENTRIES.values(), ids=BAD_ENTRIES)
def test_an_entry_that_cannot_be_understood_costs_only_itself(entry: Any) -> None:
    document = json.loads(without_v2("gpu"))
    document["v1"]["preparedClaims"]["bad"] = entry
    checkpoint = parse_vendor_checkpoint(json.dumps(document).encode())
    assert [claim.uid for claim in checkpoint.claims] == [UID]
    assert any(problem.startswith("claim bad cannot be understood") for problem in checkpoint.problems)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"v2": 3}',
        b'{"v2": {"preparedClaims": []}}',
        b'{"v2": "\xff"}',
        b'{"v2":' + b"[" * 10**5,
    ],
    ids=lambda text: ascii(text[:40]),
)
def test_what_is_no_checkpoint_is_said_to_be_none(text: bytes) -> None:
    with pytest.raises(NoCheckpoint):
        parse_vendor_checkpoint(text)


@pytest.mark.fuzz
@given(st.binary(max_size=40), st.integers(0, 2000))
def test_damage_never_ends_in_another_error(noise: bytes, at: int) -> None:
    text = read("mig")
    try:
        parse_vendor_checkpoint(text[:at] + noise + text[at + len(noise) :])
    except NoCheckpoint:
        return


@pytest.mark.parametrize("uid", ["../../etc/shadow", "a/b", "", ".hidden", "a" * 101, "a\n"], ids=ascii)
def test_a_uid_that_is_no_name_for_a_file_costs_its_entry(uid: str) -> None:
    content = json.loads(read("gpu"))
    claims = content["v2"]["preparedClaims"]
    claims[uid] = claims[UID]
    checkpoint = parse_vendor_checkpoint(json.dumps(content).encode())
    assert [claim.uid for claim in checkpoint.claims] == [UID]
    assert any("that is not a uid" in problem for problem in checkpoint.problems)
