"""Fields that a server drops, and the gates that are to blame."""

from __future__ import annotations

from typing import Any

import pytest

from pydra.slices.build import WantedPool
from pydra.slices.dropped import adopt, find_adoption, name_gates
from pydra.slices.events import FieldsDropped

JsonObject = dict[str, Any]


def gpu(**fields: Any) -> JsonObject:
    return {"devices": [{"name": "gpu-0", **fields}]}


LOSSES: dict[str, tuple[JsonObject, JsonObject, tuple[str, ...]]] = {
    "taints": (gpu(taints=[{"key": "k"}]), gpu(), ("DRADeviceTaints",)),
    "one of two taints": (
        gpu(taints=[{"key": "k"}, {"key": "l"}]),
        gpu(taints=[{"key": "k"}]),
        ("DRADeviceTaints",),
    ),
    "counters": ({"sharedCounters": [{"name": "c"}]}, {}, ("DRAPartitionableDevices",)),
    "consumption": (gpu(consumesCounters=[{"counterSet": "c"}]), gpu(), ("DRAPartitionableDevices",)),
    "node selection": ({"perDeviceNodeSelection": True}, {}, ("DRAPartitionableDevices",)),
    "binding": (gpu(bindingConditions=["a"]), gpu(), ("DRADeviceBindingConditions",)),
    "binding to the node": (gpu(bindsToNode=True), gpu(), ("DRADeviceBindingConditions",)),
    "sharing": (gpu(allowMultipleAllocations=True), gpu(), ("DRAConsumableCapacity",)),
    "a policy": (
        gpu(capacity={"m": {"value": "1", "requestPolicy": {"default": "1"}}}),
        gpu(capacity={"m": {"value": "1"}}),
        ("DRAConsumableCapacity",),
    ),
    "a partition type": ({"partitionTypeAttribute": "x"}, {}, ("DRAPartitionableDevicesType",)),
    "skipped operations": ({"skipNodeOperations": ["*"]}, {}, ("DRAOptionalNodeOperations",)),
    "two things": (
        gpu(taints=[{"key": "k"}], allowMultipleAllocations=True),
        gpu(),
        ("DRAConsumableCapacity", "DRADeviceTaints"),
    ),
    "something else": (gpu(novelty=True), gpu(), ()),
}


@pytest.mark.parametrize(("sent", "stored", "gates"), LOSSES.values(), ids=LOSSES)
def test_a_loss_names_its_gate(sent: JsonObject, stored: JsonObject, gates: tuple[str, ...]) -> None:
    assert name_gates(sent, stored) == gates
    assert name_gates(sent, sent) == ()


@pytest.mark.parametrize(("sent", "stored", "gates"), LOSSES.values(), ids=LOSSES)
def test_what_was_dropped_is_not_asked_for_again_until_something_else_is(
    sent: JsonObject, stored: JsonObject, gates: tuple[str, ...]
) -> None:
    wanted = WantedPool(driver="d", name="p", scope={}, slices=(gpu(), sent))
    adoption = find_adoption(sent, {"spec": sent}, {"spec": stored})
    assert adoption is not None
    assert adopt(wanted, {1: adoption}).slices == (gpu(), {k: v for k, v in stored.items() if v})
    changed = WantedPool(driver="d", name="p", scope={}, slices=(gpu(), {**sent, "devices": [{"name": "new"}]}))
    assert adopt(changed, {1: adoption}) == changed


def test_a_faithful_server_gives_nothing_to_adopt() -> None:
    assert find_adoption(gpu(), {"spec": gpu()}, {"spec": gpu(taints=[])}) is None


def test_the_warning_names_the_gates_and_what_is_not_published() -> None:
    warning = str(FieldsDropped(pool="p", gates=("DRADeviceTaints", "DRAListTypeAttributes"), withheld=("a", "b")))
    assert warning == (
        'pool "p": some fields are dropped by the API server, probably because these feature gates are off: '
        "DRADeviceTaints, DRAListTypeAttributes. Turn them on in the control plane and the kubelets "
        "(DRADeviceTaints: on by default from Kubernetes 1.36). "
        "Not published until then, since unsafe without: 2 devices: a, b"
    )
    many = tuple(f"part-{number}" for number in range(200))
    assert len(str(FieldsDropped(pool="p" * 253, gates=("DRAPartitionableDevices",), withheld=many)).encode()) < 1024
    assert str(FieldsDropped(pool="p", gates=())).endswith("for a reason that is not known")
