"""Every violation of the contract is found at once, in the backend itself and in its answers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pydra.backends.contract import Inheritance, InheritedClaim
from pydra.backends.contract_validation import (
    MAX_SAMPLES,
    MAX_STATE,
    find_answer_type_violations,
    find_coroutine_violations,
    find_inheritance_violations,
    find_json_violations,
    find_methods,
    find_misspelt,
    find_object_violations,
    find_prepared_violations,
    find_sample_violations,
    find_settings_type_violations,
    find_value_violations,
    sort_prepared,
)
from pydra.backends.wire import Method, build_result
from pydra.claim import AllocatedDevice, Claim, PreparedDevice
from pydra.devices import Inventory, Sample


def allocated(device: str, **fields: Any) -> AllocatedDevice:
    return AllocatedDevice(request="gpu", pool="node", device=device, **fields)


A, B, SHARE = allocated("a"), allocated("b"), allocated("a", share_id="s1")
CLAIM = Claim(uid="u", namespace="ns", name="c", devices=(A, B, SHARE))


def test_what_prepare_returned_is_put_in_order_and_an_empty_share_id_is_none() -> None:
    unordered = [SHARE.prepared(), replace(B.prepared(), share_id=""), A.prepared()]
    assert sort_prepared(CLAIM, unordered) == (A.prepared(), B.prepared(), SHARE.prepared())


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
                "state of device a of pool node for request gpu is of type bytes, which is not JSON",
                "state of device b of pool node for request gpu has the key 1; keys of JSON objects are strings",
                "state of device b of pool node for request gpu.n is nan, which JSON does not have",
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


def test_a_plan_that_would_burden_the_checkpoint_is_refused() -> None:
    (violation,) = find_json_violations(Method.PLAN, "x" * MAX_STATE)
    assert f"plan returned {MAX_STATE + 2} bytes of JSON, the limit is {MAX_STATE}" in violation


def test_a_state_of_countless_values_is_refused_without_a_look_at_each() -> None:
    states: list[Any] = [[math.nan] * 1_000_000, {"x": [[0]] * 1_000_000}]
    for state in states:
        violations = find_prepared_violations(CLAIM, [A.prepared(state=state), B.prepared(), SHARE.prepared()])
        assert [one.rpartition(" more than ")[2] for one in violations] == ["131,072 values"]


@pytest.mark.parametrize(("innermost", "depth"), [(1, 200), ([], 65), ({}, 65)])
def test_a_state_nested_too_deeply_is_refused(innermost: Any, depth: int) -> None:
    state = innermost
    for _ in range(depth):
        state = [state]
    (violation,) = find_prepared_violations(CLAIM, [A.prepared(state=state), B.prepared(), SHARE.prepared()])
    assert violation.endswith("is nested more than 64 deep")


@pytest.mark.parametrize(
    ("names", "violation"),
    [
        ({"uid": ""}, "inherit: a claim without uid"),
        *(
            ({"uid": uid}, f"inherit: a claim whose uid is {uid[:128]!r}; it must be letters")
            for uid in ("../../etc/passwd", ".hidden", "a/b", "uid.", "u" * 129)
        ),
        ({"name": "team/train"}, "inherit: a claim whose name is 'team/train'; it must be a DNS subdomain"),
        ({"name": ""}, "inherit: a claim without name"),
        ({"namespace": ""}, "inherit: a claim without namespace"),
        ({"namespace": "../x"}, "inherit: a claim whose namespace is '../x'; it must be a DNS label"),
        ({"namespace": "", "name": ""}, ""),
    ],
)
def test_an_inherited_claim_whose_names_are_invalid_is_refused(names: dict[str, str], violation: str) -> None:
    inherited = InheritedClaim(claim=replace(CLAIM, **names), prepared=(A.prepared(), B.prepared(), SHARE.prepared()))
    found = find_inheritance_violations(Inheritance(claims=(inherited,)))
    assert [one.startswith(violation) for one in found] == ([True] if violation else [])


def test_a_claim_that_is_inherited_twice_is_refused() -> None:
    inherited = InheritedClaim(claim=CLAIM, prepared=(A.prepared(), B.prepared(), SHARE.prepared()))
    found = find_inheritance_violations(Inheritance(claims=(inherited, inherited)))
    assert found == (f"inherit: the claim with uid {CLAIM.uid} is listed 2 times",)


@pytest.mark.parametrize(("field", "name"), [("pool", "../x"), ("device", "GPU-0"), ("request", ""), ("share_id", "/")])
def test_an_inherited_device_whose_names_are_invalid_is_refused(field: str, name: str) -> None:
    device = replace(A, **{field: name})
    inherited = InheritedClaim(claim=replace(CLAIM, devices=(device,)), prepared=(device.prepared(),))
    (violation,) = find_inheritance_violations(Inheritance(claims=(inherited,)))
    assert violation.startswith(f"inherit: claim {CLAIM.uid}: devices[0].")


def test_a_measurement_has_at_most_the_samples_that_the_agent_keeps() -> None:
    sample = Sample(name="memory_bytes", value=1.0)
    assert find_sample_violations((sample,) * MAX_SAMPLES) == ()
    assert find_sample_violations((sample,) * (MAX_SAMPLES + 1)) == (
        "measure returned 10001 samples, the limit is 10000",
    )


def test_samples_have_names_that_prometheus_takes() -> None:
    labels = {"1x": "v", "__name__": "x", "_x": ""}
    samples = (Sample(name="memory_bytes", value=1.0), Sample(name="a-b", value=1.0, labels=labels))
    assert [violation.split(" must")[0] for violation in find_sample_violations(samples)] == [
        "measure: sample name 'a-b'",
        "measure: label name '1x'",
        "measure: label name '__name__'",
    ]


@pytest.mark.parametrize(
    ("method", "answer", "violations"),
    [
        (Method.DISCOVER, Inventory(), []),
        (Method.DISCOVER, {}, ["discover returned a value of type dict, not a pydra.Inventory"]),
        (Method.DISCOVER, Inventory(devices=({},)), ["discover: devices[0] is of type dict, not a pydra.Device"]),  # type: ignore[arg-type]
        (Method.PREPARE, [A.prepared()], []),
        (Method.PREPARE, None, ["prepare is None (is `return` missing?), not a list or tuple of pydra.PreparedDevice"]),
        (Method.PREPARE, [A], ["prepare[0] is of type AllocatedDevice, not a pydra.PreparedDevice"]),
        (Method.PREPARE, [A.prepared(edits={})], ["prepare: edits of a are of type dict, not pydra.ContainerEdits"]),  # type: ignore[arg-type]
        (Method.MEASURE, [1], ["measure[0] is of type int, not a pydra.Sample"]),
        (Method.UNPREPARE, True, ["unprepare returned a value of type bool; it must return nothing"]),
        (Method.WAIT_CHANGED, None, []),
        (Method.INHERIT, Inheritance(), []),
        (Method.INHERIT, None, ["inherit returned None (is `return` missing?), not a pydra.Inheritance"]),
        (
            Method.INHERIT,
            Inheritance(claims=(1,)),  # type: ignore[arg-type]
            ["inherit: claims[0] is of type int, not a pydra.InheritedClaim"],
        ),
    ],
)
def test_values_of_other_classes_are_reported(method: Method, answer: Any, violations: list[str]) -> None:
    assert list(find_answer_type_violations(method, answer)) == violations


def test_all_wrong_values_inside_an_answer_are_reported() -> None:
    body = build_result([{"request": 1, "pool": "p", "device": "d", "edits": {"env": {"A": 2}}}])
    assert find_value_violations(body, tuple[PreparedDevice, ...]) == (
        "$[0].request: found 1, allowed: a string",
        "$[0].edits.env.A: found 2, allowed: a string",
    )


ATTRIBUTE = "true or false or an integer or a string or a pydra.Version or a list"
DEVICE: dict[str, Any] = {"name": "a"}


@pytest.mark.parametrize(
    ("devices", "violation"),
    [
        ([DEVICE | {"attributes": {"speed": 1.5}}], f"attributes.speed: found 1.5, allowed: {ATTRIBUTE}"),
        ([DEVICE | {"capacity": {"memory": 8}}], "capacity.memory: found 8, allowed: a pydra.Capacity"),
        (
            [DEVICE | {"capacity": {"memory": {"value": 8.5}}}],
            "capacity.memory.value: found 8.5, allowed: a quantity such as 2, 80Gi, 1500m or 1e3",
        ),
        (
            [DEVICE | {"health": False}] * 3,
            "health: found false, allowed: a pydra.Health (and 2 more like this)",
        ),
    ],
    ids=["attribute", "class", "quantity", "alike"],
)
def test_what_a_field_of_an_answer_takes_is_reported_in_the_words_of_the_contract(
    devices: list[Any], violation: str
) -> None:
    body = build_result({"devices": devices})
    assert find_value_violations(body, Inventory) == (f"$.devices[0].{violation}",)


def test_bytes_that_are_no_value_are_reported() -> None:
    (violation,) = find_value_violations(msgspec.Raw(b"\xc1"), Inventory)
    assert violation.startswith("the answer cannot be decoded")


# The backend itself


class Config(msgspec.Struct):
    n: int = 0


class Unresolvable(msgspec.Struct):
    n: Nowhere  # type: ignore[name-defined]  # noqa: F821


async def nothing() -> None: ...
async def with_claim(claim: Any, /) -> None: ...
async def with_prepared(claim: Any, prepared: Any, /) -> None: ...
async def generating() -> AsyncIterator[int]:
    yield 1


def plain() -> None: ...


@contextlib.asynccontextmanager
async def connecting() -> AsyncIterator[Any]:
    yield None


@contextlib.asynccontextmanager  # type: ignore[arg-type]  # the mistake
async def returning() -> Any:
    return None


def backend(**changes: Any) -> Any:
    parts: dict[str, Any] = {"discover": nothing, "prepare": with_claim, "unprepare": with_prepared}
    return SimpleNamespace(**{name: part for name, part in (parts | changes).items() if part is not ...})


async def with_step(step: Any, result: Any, claim: Any, /) -> None: ...


class Step(msgspec.Struct, frozen=True, tag="step"): ...


class Twin(msgspec.Struct, frozen=True, tag="step"): ...


class Undecided(msgspec.Struct):
    one: Step | Twin


def with_steps(types: Any) -> Any:
    return backend(STEP_TYPES=types, plan=with_prepared, apply=with_step, undo=with_step)


class Callable:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    "good",
    [
        backend(),
        backend(wait_changed=nothing, measure=Callable()),
        backend(DRIVER="gpu.example.com", CONFIG_TYPES={"gpu.example.com/v1/C": Config}, DEVICE_CLASSES={"gpu.x": {}}),
        SimpleNamespace(connect=connecting),
    ],
    ids=["required", "optional", "constants", "connect"],
)
def test_a_backend_that_keeps_the_contract_has_no_violations(good: Any) -> None:
    assert find_object_violations(good) == ()


class ReadsHardware:
    @property
    def temperature(self) -> float:
        raise OSError("the device does not answer")

    @cached_property
    def meassure(self) -> float:
        raise OSError("the device does not answer")

    async def wait_change(self) -> None: ...

    @staticmethod
    async def resstore() -> None: ...


@pytest.mark.parametrize(
    "live", [ReadsHardware(), SimpleNamespace(wait_change=ReadsHardware().wait_change, resstore=ReadsHardware.resstore)]
)
def test_names_are_compared_without_reading_properties(live: object) -> None:
    assert find_misspelt(backend(), live) == {"wait_change": "wait_changed", "resstore": "restore"}


@pytest.mark.parametrize(
    ("bad", "violations"),
    [
        (backend(discover=..., discoverr=nothing), ["discover is missing; rename discoverr, or write `async def"]),
        (backend(unprepare=..., PreparedDevice=PreparedDevice), ["unprepare is missing; write `async def"]),
        (backend(prepare=plain), ["prepare is a plain function, not a coroutine", "prepare() cannot be called as"]),
        (backend(measure=generating), ["measure is an async generator"]),
        (backend(unprepare=with_claim), ["cannot be called as unprepare(claim, prepared): too many positional"]),
        (backend(wait_changed=3), ["wait_changed is of type int, not a coroutine"]),
        (backend(DRIVER="Gpu_Example"), ['DRIVER is "Gpu_Example"; it must be a lower-case DNS subdomain']),
        (backend(DRIVER=3), ["DRIVER is of type int"]),
        (backend(DEADLINE="3 min"), ["DEADLINE is '3 min'; it must be a number of seconds, 0 or more"]),
        (backend(CONFIG_TYPES=[]), ["CONFIG_TYPES is of type list"]),
        (backend(CONFIG_TYPES={"K": dict}), ["CONFIG_TYPES has the key 'K'", "CONFIG_TYPES['K'] is not a msgspec"]),
        (backend(CONFIG_TYPES={"g/v1/K": Unresolvable}), ["cannot be decoded into: name 'Nowhere' is not defined"]),
        (backend(CONFIG_TYPES={"g/v1/K": Undecided}), ["cannot be decoded into: "]),
        (backend(DEVICE_CLASSES={"UP": {"n": 1}}), ["DEVICE_CLASSES has the key 'UP'"]),
        (
            backend(DEVICE_CLASSES={"a.b": {"selector": [], "extendedResource": "a.b/c", "later": 1}}),
            [
                "DEVICE_CLASSES['a.b'] has no field selector; rename it to selectors",
                "DEVICE_CLASSES['a.b'] has no field extendedResource; rename it to extendedResourceName",
            ],
        ),
        (backend(ONE_POD="yes"), ["ONE_POD is of type str; it must be True or False"]),
        (backend(apply=with_step), ["apply needs STEP_TYPES, which is missing or empty"]),
        (with_steps({"a": Step}), ["STEP_TYPES is of type dict; it must be a list or tuple"]),
        (with_steps([dict]), ["STEP_TYPES[0] is <class 'dict'>; it must be a msgspec Struct"]),
        (with_steps([Config]), ['Config must be frozen and have a string tag: `frozen=True, tag="make-it"`']),
        (with_steps([Step, Twin]), ["STEP_TYPES cannot be decoded into"]),
        (backend(DEVICE_CLASSES=["a.b"]), ["DEVICE_CLASSES is of type list; it must map names to DeviceClass specs"]),
        (backend(DEVICE_CLASSES={"a.b": 1}), ["DEVICE_CLASSES['a.b'] is of type int; it must be a mapping"]),
        (backend(DEVICE_CLASSES={"a.b": {"n": {1}}}), ["DEVICE_CLASSES['a.b'].n is of type set, which is not JSON"]),
        (SimpleNamespace(connect=nothing), ["connect is a coroutine or generator; put @contextlib"]),
        (SimpleNamespace(connect=3), ["connect is of type int"]),
        (SimpleNamespace(connect=returning), ["connect has no yield; write `yield` and the object"]),
        (
            SimpleNamespace(DRIVER="-"),
            ["discover is missing", "prepare is missing", "unprepare is missing", 'DRIVER is "-"'],
        ),
    ],
)  # fmt: skip
def test_all_violations_are_reported_at_once(bad: Any, violations: list[str]) -> None:
    found = find_object_violations(bad)
    assert len(found) == len(violations)
    assert all(wanted in one for wanted, one in zip(violations, found, strict=True)), found


def test_what_connect_yields_needs_the_coroutines() -> None:
    nothing_yet = SimpleNamespace()
    assert len(find_coroutine_violations(nothing_yet, nothing_yet)) == 3
    assert find_coroutine_violations(backend(), nothing_yet) == ()


def test_the_coroutines_that_are_there_are_the_methods() -> None:
    assert find_methods(backend(measure=nothing)) == (
        Method.DISCOVER,
        Method.PREPARE,
        Method.UNPREPARE,
        Method.MEASURE,
    )


class Tuned(msgspec.Struct, frozen=True):
    level: int = 1


def test_settings_need_a_type_with_defaults_and_a_connect_that_takes_them() -> None:
    class Needy(msgspec.Struct):
        level: int

    def connect(settings: Tuned) -> None: ...

    def bare() -> None: ...

    good = SimpleNamespace(SETTINGS_TYPE=Tuned, connect=connect)
    assert find_object_violations(good) == ()
    unconnected = SimpleNamespace(**{**vars(good), "connect": None})
    assert "SETTINGS_TYPE needs `connect(settings)`, which is missing" in find_object_violations(unconnected)
    (violation,) = find_object_violations(SimpleNamespace(SETTINGS_TYPE=Tuned, connect=bare))
    assert "cannot be called as connect(settings)" in violation
    assert find_settings_type_violations(Tuned) == find_settings_type_violations(None) == ()
    (violation,) = find_settings_type_violations(Needy)
    assert violation == "SETTINGS_TYPE: level has no default; every setting must have one"
    (violation,) = find_settings_type_violations(dict)
    assert "it must be a msgspec Struct" in violation


def test_check_config_is_a_plain_function_of_config_and_settings() -> None:
    class Tuned(msgspec.Struct):
        level: int = 1

    async def waits(config: Any, settings: Any) -> list[str]:
        return []

    async def yields(config: Any, settings: Any) -> AsyncIterator[str]:
        yield ""

    def connect(settings: Any) -> None: ...

    good = SimpleNamespace(SETTINGS_TYPE=Tuned, connect=connect, check_config=lambda config, settings: ())
    assert find_object_violations(good) == ()
    for check, problem in {
        waits: "must be a plain function",
        yields: "must be a plain function",
        (lambda config: ()): "cannot be called as check_config(config, settings)",
    }.items():
        (violation,) = find_object_violations(SimpleNamespace(**{**vars(good), "check_config": check}))
        assert problem in violation
    (*_, violation) = find_object_violations(SimpleNamespace(**{**vars(good), "SETTINGS_TYPE": None}))
    assert "check_config needs SETTINGS_TYPE" in violation
    (violation,) = find_object_violations(SimpleNamespace(**{**vars(good), "examine": waits}))
    assert violation == "examine must be a plain function; write `def examine(settings, held)`"
