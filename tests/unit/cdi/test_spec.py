"""From what a backend prepared to the claim's spec."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pydra.cdi.document import Spec, SpecDevice, build_document
from pydra.cdi.edits import ContainerEdits
from pydra.cdi.spec import build_spec, parse_spec
from pydra.claim import PreparedDevice
from pydra.errors import CdiError, ContractError, EditConflict

UID = "a1b2"
DRIVER = "gpu.example.com"
NOTHING = ContainerEdits()


def _device(name: str, edits: ContainerEdits, request: str = "gpu", share_id: str | None = None) -> PreparedDevice:
    return PreparedDevice(request=request, pool="node-a", device=name, share_id=share_id, edits=edits)


def test_each_device_of_the_claim_is_a_device_of_the_spec() -> None:
    first = _device("gpu-0", NOTHING.with_device_node("/dev/g0"))
    second = _device("gpu-1", NOTHING.with_device_node("/dev/g1"), request="more/big")
    assert build_spec(DRIVER, UID, [second, first]) == Spec(
        version="0.3.0",
        kind="gpu.example.com/claim",
        devices=(
            SpecDevice(name="a1b2:gpu:gpu-0", edits=NOTHING.with_device_node("/dev/g0")),
            SpecDevice(name="a1b2:more:gpu-1", edits=NOTHING.with_device_node("/dev/g1")),
        ),
    )


def test_a_claim_whose_devices_edit_nothing_has_no_spec() -> None:
    assert build_spec(DRIVER, UID, [_device("gpu-0", NOTHING), _device("gpu-1", NOTHING)]) is None


def test_a_device_that_edits_nothing_is_left_out() -> None:
    spec = build_spec(DRIVER, UID, [_device("gpu-0", NOTHING), _device("gpu-1", NOTHING.with_env("A", "1"))])
    assert spec is not None
    assert [device.name for device in spec.devices] == ["a1b2:gpu:gpu-1"]


def test_a_conflict_names_both_devices_and_their_requests() -> None:
    first = _device("gpu-0", NOTHING.with_env("MODE", "a").with_mount("/x", "/m"))
    second = _device("gpu-1", NOTHING.with_env("MODE", "b").with_mount("/y", "/m"), request="more/big")
    with pytest.raises(EditConflict) as caught:
        build_spec(DRIVER, UID, [first, second])
    assert caught.value.conflicts == (
        'environment variable MODE: device gpu-0 (request gpu) sets "a", device gpu-1 (request more/big) sets "b"',
        'mount at /m: device gpu-0 (request gpu) sets host_path="/x", '
        'device gpu-1 (request more/big) sets host_path="/y"',
    )


def test_edits_that_break_the_rules_are_the_backends_fault_all_at_once() -> None:
    first = _device("gpu-0", NOTHING.with_env("", "a").with_device_node("x"))
    second = _device("gpu-1", NOTHING.with_mount("y"))
    with pytest.raises(ContractError) as caught:
        build_spec(DRIVER, UID, [first, second])
    assert caught.value.violations == (
        "device gpu-0 (request gpu): containerEdits.env: '' is no name of a variable",
        "device gpu-0 (request gpu): containerEdits.deviceNodes[0].path: 'x' is no absolute path",
        "device gpu-1 (request gpu): containerEdits.mounts[0].containerPath: 'y' is no absolute path",
        "device gpu-1 (request gpu): containerEdits.mounts[0].hostPath: 'y' is no absolute path",
    )


def test_a_device_prepared_twice_is_refused() -> None:
    device = _device("gpu-0", NOTHING.with_env("A", "1"))
    with pytest.raises(ContractError, match="2 devices have the name 'a1b2:gpu:gpu-0'"):
        build_spec(DRIVER, UID, [device, device])


def test_shares_of_one_device_are_devices_of_their_own() -> None:
    shares = [_device("gpu-0", NOTHING.with_env("A", "1"), share_id=share) for share in ("s1", "s2")]
    spec = build_spec(DRIVER, UID, shares)
    assert spec is not None
    assert [device.name for device in spec.devices] == ["a1b2:gpu:gpu-0:s1", "a1b2:gpu:gpu-0:s2"]


@given(order=st.permutations(range(4)))
def test_the_bytes_do_not_depend_on_the_order_of_devices(order: list[int]) -> None:
    common = NOTHING.with_env("LIB", "1").with_mount("/lib")
    devices = [_device(f"gpu-{n}", common.with_device_node(f"/dev/g{n}")) for n in range(4)]
    first = build_spec(DRIVER, UID, devices)
    second = build_spec(DRIVER, UID, [devices[n] for n in order])
    assert first is not None
    assert second is not None
    assert build_document(first) == build_document(second)


def test_a_spec_is_read_back_from_its_file() -> None:
    spec = build_spec(DRIVER, "1a", [_device("gpu-0", NOTHING.with_device_node("/dev/a", host_path="/dev/b"))])
    assert spec is not None
    assert spec.version == "0.5.0"
    assert parse_spec(build_document(spec)) == spec


def test_a_file_that_breaks_the_rules_is_refused_with_all_problems() -> None:
    spec = Spec(version="9", kind="?", devices=(SpecDevice(name="d", edits=NOTHING.with_env("A", "1")),))
    with pytest.raises(CdiError) as caught:
        parse_spec(build_document(replace(spec)))
    assert len(caught.value.problems) == 2
