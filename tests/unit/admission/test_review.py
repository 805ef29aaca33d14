"""Reviews: what is read, what is refused in which words, in every version of the API, and what passes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra.admission.config_types import KnownBackend, read_backend, read_backends
from pydra.admission.review import (
    MAX_MESSAGE,
    Decision,
    MalformedReview,
    build_message,
    build_review,
    parse_review,
    review_object,
)
from pydra.backends.claim_config import MOST_PROBLEMS, find_config_problems
from pydra.errors import SettingsError
from tests.unit.admission.configs import CASES, gpu, mps, sim
from tests.unit.admission.questions import ask, build_body, encode, entry


def without(name: str) -> dict[str, Any]:
    body = build_body()
    del body["request"][name]
    return body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(b"", "not an AdmissionReview: Input data was truncated", id="empty"),
        pytest.param(b"hello", "not an AdmissionReview: JSON is malformed", id="no json"),
        pytest.param(b"[]", "not an AdmissionReview: Expected `object`, got `array`", id="a list"),
        pytest.param(b'"\xff"', "not an AdmissionReview", id="no utf-8"),
        pytest.param(b"[" * 100_000, "not an AdmissionReview", id="deeper than any object"),
        pytest.param(b'{"a":' * 100_000, "not an AdmissionReview", id="deeper than any object, in a field unknown"),
        pytest.param(encode({"apiVersion": "v1", "kind": "Pod"}), "missing required field `request`", id="a pod"),
        pytest.param(encode(without("uid")), "missing required field `uid` - at `$.request`", id="no uid"),
        pytest.param(encode(without("operation")), "missing required field `operation`", id="no operation"),
        pytest.param(
            encode({**build_body(), "apiVersion": "admission.k8s.io/v1beta1"}),
            "the webhook's configuration must have admissionReviewVersions: [v1]",
            id="another version",
        ),
    ],
)
def test_what_is_no_review_is_refused_in_words(body: bytes, words: str) -> None:
    with pytest.raises(MalformedReview) as caught:
        parse_review(body)
    assert words in str(caught.value)


def test_what_the_review_has_beside_the_question_is_not_read() -> None:
    question = ask(operation="UPDATE", old=(), namespace="ns", requestSubResource="x", newField={"a": 1})
    assert (question.uid, question.operation, question.namespace) == (
        "705ab4f5-6393-11e8-b7cc-42010a800002",
        "UPDATE",
        "ns",
    )
    assert str(question.resource) == "resourceclaims.v1.resource.k8s.io"


def test_what_may_be_is_answered_without_a_word() -> None:
    answer = msgspec.json.decode(build_review(ask(), Decision(result="allowed")))
    assert answer["response"] == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}


def test_a_refusal_is_no_longer_than_anybody_reads_and_says_how_much_is_left_out() -> None:
    message = build_message(tuple(f"spec.devices.config[{index}]: {'é' * 400}" for index in range(40)))
    assert len(message.encode()) <= MAX_MESSAGE + 20
    assert message.endswith("; and 21 more")


def test_one_fault_that_is_longer_is_reported_whole() -> None:
    assert build_message(("x" * 20_000,)) == "x" * 20_000


CPU, SIM, NVIDIA, NET = map(read_backend, ("cpu", "sim", "nvidia", "net"))
DRIVERS = {one.driver: one for one in (CPU, SIM, NVIDIA, NET)}
BY_NAME = {"cpu": CPU, "sim": SIM, "nvidia": NVIDIA, "net": NET}
PREFIXES = {
    "resourceclaims": "spec.devices.config",
    "resourceclaimtemplates": "spec.spec.devices.config",
    "deviceclasses": "spec.config",
}


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1beta2"])
@pytest.mark.parametrize("resource", sorted(PREFIXES))
def test_all_faults_of_all_configs_come_in_one_message_with_their_paths(resource: str, version: str) -> None:
    configs = [
        entry("other.example.com", {"anything": "goes"}),
        entry(SIM.driver, sim(clockMHz=1, env={"A": 2})),
        entry(NVIDIA.driver, gpu(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Tiny"}})),
        entry(NVIDIA.driver, gpu("GpuConfg"), requests=["gpu"]),
    ]
    question = ask(resource, configs, version=version)
    decision = review_object(question, DRIVERS)
    assert decision.result == "denied"
    at = PREFIXES[resource]
    group = "resource.nvidia.com/v1beta1"
    answer = msgspec.json.decode(build_review(question, decision))
    assert answer == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "allowed": False,
            "status": {
                "status": "Failure",
                "reason": "Invalid",
                "code": 422,
                "message": f"{at}[1].opaque.parameters.clockMHz: found 1, allowed: an integer >= 200 and <= 2000; "
                f"{at}[1].opaque.parameters.env.A: found 2, allowed: a string; "
                f'{at}[2].opaque.parameters.sharing.timeSlicingConfig.interval: found "Tiny", allowed: "Default", '
                '"Long", "Medium", "Short"; '
                f'{at}[3].opaque.parameters.kind: found "GpuConfg" (did you mean "GpuConfig"?), allowed '
                f"(apiVersion/kind): {group}/GpuConfig, {group}/MigDeviceConfig, {group}/VfioDeviceConfig",
            },
        },
    }


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        (sim(sharing={"interval": 3}), ".sharing: interval is for strategy TimeSliced, the strategy here is Exclusive"),
        (sim(Env={}), '.Env: unknown field (did you mean "env"?), allowed: clockMHz, env, sharing'),
        (None, ": found null, allowed: an object"),
        ([], ": found a list of 0, allowed: an object"),
        ("{}", ': found "{}", allowed: an object'),
        ({}, ".apiVersion: missing, allowed (apiVersion/kind): sim.pydra.dev/v1alpha1/SimConfig"),
    ],
    ids=str,
)
def test_each_fault_is_reported_at_its_place(parameters: Any, problem: str) -> None:
    problems = review_object(ask(configs=[entry(SIM.driver, parameters)]), DRIVERS).problems
    assert problems[0] == f"spec.devices.config[0].opaque.parameters{problem}"


def test_rules_between_fields_are_refused_as_the_backend_words_them() -> None:
    (problem,) = review_object(
        ask(configs=[entry(NVIDIA.driver, gpu(sharing={"strategy": "TimeSlicing", "mpsConfig": {}}))]), DRIVERS
    ).problems
    assert problem == (
        'spec.devices.config[0].opaque.parameters: sharing.mpsConfig: only for strategy "MPS",'
        ' the strategy here is "TimeSlicing"'
    )


def test_the_verdict_is_that_of_the_decoder_on_the_node() -> None:
    for case in CASES:
        known = BY_NAME[case.backend]
        wanted = find_config_problems(case.parameters, known.types)
        decision = review_object(ask(configs=[entry(known.driver, case.parameters)]), DRIVERS)
        assert decision.allowed is case.right, case
        assert decision.allowed is not bool(wanted), case
        assert len(decision.problems) == len(wanted), case


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 3000) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
sim_values = json_values | st.fixed_dictionaries(
    {},
    optional={
        "sharing": st.fixed_dictionaries(
            {}, optional={"strategy": st.sampled_from(["TimeSliced", "Exclusive", "x"]), "interval": json_values}
        )
        | json_values,
        "clockMHz": st.integers(0, 3000) | json_values,
        "env": st.dictionaries(st.text(max_size=4), json_values, max_size=3) | json_values,
        "kind": st.sampled_from(["SimConfig", "SimConfig2"]),
        "apiVersion": st.sampled_from(["sim.pydra.dev/v1alpha1", "v1"]),
    },
)


@pytest.mark.fuzz
@given(st.lists(sim_values, max_size=4), st.sampled_from(sorted(PREFIXES)), st.sampled_from(["v1", "v1beta1"]))
def test_nothing_is_refused_that_decodes_and_nothing_passes_that_does_not(
    values: list[Any], resource: str, version: str
) -> None:
    values = [{**sim(), **value} if isinstance(value, dict) else value for value in values]
    decision = review_object(ask(resource, [entry(SIM.driver, value) for value in values], version=version), DRIVERS)
    wanted = [
        f"{PREFIXES[resource]}[{index}].opaque.parameters{problem.removeprefix('$')}"
        for index, value in enumerate(values)
        for problem in find_config_problems(value, SIM.types)
    ]
    assert list(decision.problems) == wanted


WRONG = entry(SIM.driver, sim(clockMHz=1))


@pytest.mark.parametrize(
    ("options", "result"),
    [
        pytest.param({"operation": "DELETE"}, "not_ours", id="deletion"),
        pytest.param({"operation": ""}, "denied", id="no operation"),
        pytest.param({"sub_resource": "status"}, "not_ours", id="status"),
        pytest.param({"operation": "UPDATE", "old": [WRONG]}, "allowed", id="stored before"),
        pytest.param({"operation": "UPDATE", "old": [entry("other", 1), WRONG]}, "allowed", id="stored elsewhere"),
        pytest.param({"operation": "UPDATE", "old": []}, "denied", id="new in an update"),
        pytest.param({"operation": "UPDATE", "old": [entry("other", WRONG)]}, "denied", id="another driver's before"),
        pytest.param(
            {"operation": "UPDATE", "old": [entry(SIM.driver, sim(clockMHz=True))]}, "denied", id="true was no 1"
        ),
        pytest.param({"operation": "CREATE", "old": [WRONG]}, "denied", id="a creation has nothing before it"),
        pytest.param({"operation": "UPDATE"}, "denied", id="an update without the old object"),
    ],
)
def test_what_was_stored_before_stays_updatable(options: dict[str, Any], result: str) -> None:
    if "sub_resource" in options:
        options = {"subResource": options["sub_resource"]}
    assert review_object(ask("deviceclasses", configs=[WRONG], **options), DRIVERS).result == result


@pytest.mark.parametrize("resource", ["resourceclaims", "resourceclaimtemplates"])
def test_nothing_stands_in_the_way_of_updates_that_can_bring_no_config(resource: str) -> None:
    assert review_object(ask(resource, configs=[WRONG], operation="UPDATE", old=[]), DRIVERS).result == "not_ours"


STRANGE = {
    "unpaired surrogate": b'"\\ud800"',
    "other bytes": b'"\xff\xfe"',
    "many digits": b"1" * 5000,
    "no finite number": b"1e999",
}


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
def test_what_strict_json_lacks_costs_only_the_config_that_has_it(strange: bytes) -> None:
    body = encode(build_body(configs=[entry("other.example.com", {"a": "STRANGE"}), entry(SIM.driver, sim())]))
    assert review_object(parse_review(body.replace(b'"STRANGE"', strange)), DRIVERS).result == "allowed"
    body = encode(build_body(configs=[entry("other.example.com", {}), entry(SIM.driver, sim(env={"A": "STRANGE"}))]))
    decision = review_object(parse_review(body.replace(b'"STRANGE"', strange)), DRIVERS)
    if strange == STRANGE["other bytes"]:  # the API server itself sends them as U+FFFD, as they are read here
        assert decision.allowed
    else:
        (problem,) = decision.problems
        assert problem.startswith("spec.devices.config[1].opaque.parameters")
    assert msgspec.json.decode(build_review(ask(), decision))["response"]["allowed"] is decision.allowed


def test_parameters_that_are_larger_than_the_api_allows_are_not_judged() -> None:
    decision = review_object(ask(configs=[entry(SIM.driver, {f"k{index}": 1 for index in range(100_000)})]), DRIVERS)
    (problem,) = decision.problems
    assert problem == "spec.devices.config[0].opaque.parameters: found 1088891 bytes, allowed are 10240"


@pytest.mark.parametrize(
    ("resource", "group", "version"),
    [
        ("pods", "", "v1"),
        ("resourceslices", "resource.k8s.io", "v1"),
        ("resourceclaims", "resource.k8s.io", "v2"),
        ("resourceclaims", "elsewhere.example.com", "v1"),
    ],
)
def test_what_is_not_known_passes(resource: str, group: str, version: str) -> None:
    body = build_body(configs=[WRONG])
    body["request"]["resource"] = {"group": group, "version": version, "resource": resource}
    assert review_object(parse_review(encode(body)), DRIVERS).result == "not_ours"


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        {"spec": None},
        {"spec": {"devices": []}},
        {"spec": {"devices": {"config": {}}}},
        {"spec": {"devices": {"config": [None, 1, {"opaque": None}, {"opaque": {"driver": 5}}, {"opaque": {}}]}}},
    ],
    ids=str,
)
def test_what_has_not_the_shape_of_the_api_is_left_to_the_api_server(found: Any) -> None:
    assert review_object(ask(object=found), DRIVERS).result == "allowed"


def test_the_driver_name_that_the_admin_gave_counts() -> None:
    other = read_backend("sim", driver="gpu.example.com")
    assert review_object(ask(configs=[WRONG]), {other.driver: other}).allowed
    assert not review_object(ask(configs=[entry("gpu.example.com", sim(clockMHz=1))]), {other.driver: other}).allowed


class Roomy(msgspec.Struct):
    amount: int = 0


@pytest.mark.parametrize("amount", [2**64, -(2**63) - 1])
def test_an_integer_that_the_node_cannot_keep_is_refused_with_its_path(amount: int) -> None:
    parameters = {"apiVersion": "a.example.com/v1", "kind": "Roomy", "amount": amount}
    roomy = KnownBackend(name="a", types={"a.example.com/v1/Roomy": Roomy})
    decision = review_object(ask(configs=[entry("a.example.com", parameters)]), {"a.example.com": roomy})
    assert decision.problems == ("spec.devices.config[0].opaque.parameters.amount is an integer of more than 64 bits",)


class Careless(msgspec.Struct):
    n: int = 0

    def __post_init__(self) -> None:
        _ = {1: "one"}[self.n]


def test_a_backend_whose_rules_fail_is_named_and_the_config_refused_as_on_the_node() -> None:
    parameters = {"apiVersion": "a.example.com/v1", "kind": "Careless", "n": 2}
    careless = KnownBackend(name="a", types={"a.example.com/v1/Careless": Careless})
    decision = review_object(ask(configs=[entry("a.example.com", parameters)]), {"a.example.com": careless})
    (problem,) = decision.problems
    assert problem.startswith(
        "spec.devices.config[0].opaque.parameters: cannot be checked, the backend's own rules fail with KeyError: 2 "
        "(test_review.py:"
    )


def test_no_more_faults_are_looked_for_than_anybody_reads() -> None:
    configs = [entry(SIM.driver, sim(**{f"k{index}": 1 for index in range(400)})) for _ in range(32)]
    problems = review_object(ask(configs=configs), DRIVERS).problems
    assert len(problems) == MOST_PROBLEMS + 1
    assert problems[-1] == "these are the first 100, and there are more"


def test_a_limit_that_is_no_quantity_is_reported_beside_the_rest() -> None:
    decision = review_object(
        ask(configs=[entry(NVIDIA.driver, gpu(sharing=mps(defaultPinnedDeviceMemoryLimit="x")))]), DRIVERS
    )
    assert 'found "x", allowed: a quantity' in decision.problems[0]


MPS_OFF = {"nvidia": {"mps": False, "timeSlicing": True}}


def test_what_the_agents_settings_switch_off_is_refused_where_the_webhook_is_given_them() -> None:
    shared = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}
    question = ask(configs=[entry(NVIDIA.driver, shared)])
    (known,) = read_backends(["nvidia"], {}, MPS_OFF)
    (problem,) = review_object(question, {known.driver: known}).problems
    assert problem.startswith('spec.devices.config[0].opaque.parameters.sharing.strategy: found "MPS", which is')
    assert review_object(question, DRIVERS).allowed, "without settings nobody knows what they switch off"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [({"nvidia": {"mpss": False}}, "did you mean"), ({"sim": {"mps": False}}, "no such setting")],
)
def test_settings_that_the_agents_would_refuse_are_refused_by_the_webhook(
    settings: dict[str, dict[str, Any]], problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem):
        read_backends(list(settings), {}, settings)
