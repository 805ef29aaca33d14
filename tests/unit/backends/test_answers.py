"""An answer is believed only when it fits the contract and the question."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pydra.backends.answers import (
    MAX_STATE,
    find_answer_type_violations,
    find_inventory_violations,
    find_prepared_violations,
    find_sample_violations,
    find_value_violations,
)
from pydra.backends.wire import Method, build_result
from pydra.claim import AllocatedDevice, Claim, Inheritance, PreparedDevice
from pydra.devices import CounterConsumption, CounterSet, Device, Inventory, Sample


def allocated(device: str, **fields: Any) -> AllocatedDevice:
    return AllocatedDevice(request="gpu", pool="node", device=device, **fields)


A, B, SHARE = allocated("a"), allocated("b"), allocated("a", share_id="s1")
CLAIM = Claim(uid="u", namespace="ns", name="c", devices=(A, B, SHARE))


@pytest.mark.parametrize(
    ("prepared", "violations"),
    [
        ([A.prepared(), B.prepared(state={"x": [1, 2.5, None, "a", True]}), SHARE.prepared()], []),
        ([A.prepared(), SHARE.prepared()], ["prepare returned nothing for device b of pool node for request gpu"]),
        (
            [A.prepared(), B.prepared(), B.prepared(), SHARE.prepared()],
            ["prepare returned device b of pool node for request gpu, twice"],
        ),
        (
            [A.prepared(), B.prepared(), allocated("a", share_id="s2").prepared()],
            [
                "prepare returned nothing for device a of pool node for request gpu (share s1)",
                "prepare returned device a of pool node for request gpu (share s2), which the claim does not have",
            ],
        ),
        (
            [A.prepared(state=b"x"), B.prepared(state={"n": float("nan"), 1: 2}), SHARE.prepared(state=[2**70])],
            [
                "state of device a of pool node for request gpu is a bytes, which is not JSON",
                "state of device b of pool node for request gpu.n is nan, which JSON does not have",
                "state of device b of pool node for request gpu has the key 1; keys of JSON objects are strings",
                "state of device a of pool node for request gpu (share s1)[0] is an integer of more than 64 bits",
            ],
        ),
    ],
    ids=["complete", "missing", "twice", "another share", "not JSON"],
)
def test_prepare_answers_each_device_of_the_claim_once(prepared: list[PreparedDevice], violations: list[str]) -> None:
    assert list(find_prepared_violations(CLAIM, prepared)) == violations


def test_states_that_would_burden_the_checkpoint_are_refused() -> None:
    prepared = [A.prepared(state="x" * MAX_STATE), B.prepared(), SHARE.prepared()]
    (violation,) = find_prepared_violations(CLAIM, prepared)
    assert f"the limit is {MAX_STATE}" in violation


def test_a_state_nested_without_end_is_refused() -> None:
    state: Any = 1
    for _ in range(200):
        state = [state]
    (violation,) = find_prepared_violations(CLAIM, [A.prepared(state=state), B.prepared(), SHARE.prepared()])
    assert violation.endswith("is nested more than 64 deep")


def test_an_inventory_names_each_thing_once_and_consumes_what_there_is() -> None:
    def taking(name: str, counter_set: str, counter: str) -> Device:
        return Device(
            name=name, consumes_counters=(CounterConsumption(counter_set=counter_set, counters={counter: 1}),)
        )

    inventory = Inventory(
        devices=(taking("a", "s", "memory"), taking("b", "s", "slices"), taking("c", "t", "memory"), Device(name="a")),
        counter_sets=(CounterSet(name="s", counters={"memory": 8}), CounterSet(name="s", counters={"memory": 8})),
    )
    assert find_inventory_violations(inventory) == (
        "device a is listed 2 times",
        "counter set s is listed 2 times",
        "device b consumes counter slices, which counter set s lacks",
        "device c consumes from counter set t, which is not listed",
    )


def test_samples_have_names_that_prometheus_takes() -> None:
    samples = (Sample(name="memory_bytes", value=1.0), Sample(name="a-b", value=1.0, labels={"1x": "v"}))
    assert [violation.split(" must")[0] for violation in find_sample_violations(samples)] == [
        "measure: sample name 'a-b'",
        "measure: label name '1x'",
    ]


@pytest.mark.parametrize(
    ("method", "answer", "violations"),
    [
        (Method.DISCOVER, Inventory(), []),
        (Method.DISCOVER, {}, ["discover returned a dict, not a pydra.Inventory"]),
        (Method.DISCOVER, Inventory(devices=({"name": "a"},)), ["discover: devices[0] is a dict, not a pydra.Device"]),  # type: ignore[arg-type]
        (Method.PREPARE, [A.prepared()], []),
        (Method.PREPARE, None, ["prepare is a NoneType, not a list or tuple of pydra.PreparedDevice"]),
        (Method.PREPARE, [A], ["prepare[0] is a AllocatedDevice, not a pydra.PreparedDevice"]),
        (Method.PREPARE, [A.prepared(edits={})], ["prepare: edits of a are a dict, not pydra.ContainerEdits"]),  # type: ignore[arg-type]
        (Method.MEASURE, [1], ["measure[0] is a int, not a pydra.Sample"]),
        (Method.UNPREPARE, True, ["unprepare returned a bool; it must return nothing"]),
        (Method.WAIT_CHANGED, None, []),
        (Method.INHERIT, Inheritance(), []),
        (Method.INHERIT, None, ["inherit returned a NoneType, not a pydra.Inheritance"]),
        (
            Method.INHERIT,
            Inheritance(claims=(1,)),  # type: ignore[arg-type]
            ["inherit: claims[0] is a int, not a pydra.InheritedClaim"],
        ),
    ],
)
def test_values_of_other_classes_are_told(method: Method, answer: Any, violations: list[str]) -> None:
    assert list(find_answer_type_violations(method, answer)) == violations


def test_all_wrong_values_inside_an_answer_are_told() -> None:
    body = build_result([{"request": 1, "pool": "p", "device": "d", "edits": {"env": {"A": 2}}}])
    assert find_value_violations(body, tuple[PreparedDevice, ...]) == (
        "$[0].request: found 1, allowed: a string",
        "$[0].edits.env.A: found 2, allowed: a string",
    )


def test_bytes_that_are_no_value_are_told() -> None:
    (violation,) = find_value_violations(msgspec.Raw(b"\xc1"), Inventory)
    assert violation.startswith("the answer cannot be decoded")
