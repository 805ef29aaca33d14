"""Names of CDI kinds, devices and files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra.cdi.edits import ContainerEdits
from pydra.cdi.names import cdi_file_name, cdi_id, cdi_ids, cdi_kind, parse_file_name
from pydra.claim import PreparedDevice

UID = "4f3c0e0a-0000-4000-8000-1d2e3f4a5b6c"


def _device(**changes: object) -> PreparedDevice:
    values: dict[str, object] = {"request": "gpu", "pool": "node-a", "device": "gpu-0", **changes}
    return PreparedDevice(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("driver", "device", "expected"),
    [
        pytest.param("gpu.example.com", _device(), f"gpu.example.com/claim={UID}:gpu:gpu-0", id="plain"),
        pytest.param(
            "gpu.example.com",
            _device(request="gpu/large"),
            f"gpu.example.com/claim={UID}:gpu:gpu-0",
            id="base request of a subrequest",
        ),
        pytest.param(
            "gpu.example.com",
            _device(share_id="0b1c"),
            f"gpu.example.com/claim={UID}:gpu:gpu-0:0b1c",
            id="share of a device",
        ),
        pytest.param("3d.example.com", _device(), f"k8s.3d.example.com/claim={UID}:gpu:gpu-0", id="leading digit"),
    ],
)
def test_a_device_is_named_by_claim_request_and_share(driver: str, device: PreparedDevice, expected: str) -> None:
    assert cdi_id(driver, UID, device) == expected


def test_a_device_that_edits_nothing_has_no_id() -> None:
    edits = ContainerEdits().with_env("A", "1")
    assert cdi_ids("gpu.example.com", UID, _device()) == ()
    assert cdi_ids("gpu.example.com", UID, _device(edits=edits)) == (f"gpu.example.com/claim={UID}:gpu:gpu-0",)


def test_the_kind_is_the_driver_and_claim() -> None:
    assert cdi_kind("gpu.example.com") == "gpu.example.com/claim"


@pytest.mark.parametrize("uid", ["", ".", "..", "../x", "a/b", "a\0b", ".hidden", "x" * 129, "é", "a\n", "-a"])
def test_a_uid_that_could_leave_the_directory_is_refused(uid: str) -> None:
    with pytest.raises(ValueError, match="cannot name a CDI file"):
        cdi_file_name("gpu.example.com", uid)
    assert parse_file_name("gpu.example.com", f"gpu.example.com-claim_{uid}.json") is None


@given(uid=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True))
def test_the_uid_is_read_back_from_its_file_name(uid: str) -> None:
    name = cdi_file_name("gpu.example.com", uid)
    assert "/" not in name
    assert len(name) < 200
    assert parse_file_name("gpu.example.com", name) == uid
    assert parse_file_name("tpu.example.com", name) is None


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.yaml",
        "gpu.example.com-claim_a.yaml",
        "gpu.example.com-gpu_a.json",
        ".gpu.example.com-claim_a.json.0123abcd.tmp",
        "my.gpu.example.com-claim_a.json",
        "gpu.example.com-claim_.json",
    ],
)
def test_files_of_others_are_not_taken_for_this_driver(name: str) -> None:
    assert parse_file_name("gpu.example.com", name) is None
