"""Claims, templates and classes as the API server admits them; what kube-apiserver 1.36.2 says, field by field."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import pytest

from pydra_dev.api.errors import StatusError
from pydra_dev.api.feature_gates import ALLOCATABLE, GROUPS, PARTITION_TYPE, build_gates
from pydra_dev.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from pydra_dev.apiserver.registry_strategy import Context, admit_create, admit_update, find_unknown_fields

JsonObject = dict[str, Any]
CONTEXT = Context(minor=36, gates=build_gates(36), now="2026-01-01T00:00:00Z")
CLASS = {"deviceClassName": "gpu.example.com"}


def admit(kind: Kind, spec: JsonObject, context: Context = CONTEXT) -> JsonObject:
    head = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": {"name": "object"}}
    return admit_create(kind, {**head, "spec": spec}, context)


def refused(kind: Kind, spec: JsonObject, context: Context = CONTEXT) -> list[tuple[str, str]]:
    with pytest.raises(StatusError) as caught:
        admit(kind, spec, context)
    assert (caught.value.code, caught.value.reason) == (422, "Invalid")
    return [(one["field"], one["message"]) for one in (caught.value.details or {})["causes"]]


def claim(*requests: JsonObject, **devices: Any) -> JsonObject:
    return {"devices": {"requests": list(requests), **devices}}


def exactly(**fields: Any) -> JsonObject:
    return {"name": "a", "exactly": {**CLASS, **fields}}


ONE = "exactly one of `exactly` or `firstAvailable` is required"
REFERENCE = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
CLAIMS: list[tuple[JsonObject, str, str]] = [
    (claim({"name": "a"}), "requests[0]", f"Required value: {ONE}"),
    (
        claim({"name": "a", "exactly": CLASS, "firstAvailable": [{"name": "s", **CLASS}]}),
        "requests[0]",
        f"Invalid value: null: {ONE}, but multiple fields are set",
    ),
    (claim({"name": "", "exactly": CLASS}), "requests[0].name", f'Invalid value: "": {LABEL}'),
    (claim({"name": "a.b", "exactly": CLASS}), "requests[0].name", 'Invalid value: "a.b": must not contain dots'),
    (claim({"name": "a", "exactly": {}}), "requests[0].exactly.deviceClassName", "Required value"),
    (claim(exactly(count=-1)), "requests[0].exactly.count", "Invalid value: -1: must be greater than zero"),
    (
        claim(exactly(allocationMode="All", count=2)),
        "requests[0].exactly.count",
        "Invalid value: 2: must not be specified when allocationMode is 'All'",
    ),
    (
        claim(exactly(allocationMode="Some")),
        "requests[0].exactly.allocationMode",
        'Unsupported value: "Some": supported values: "All", "ExactCount"',
    ),
    (
        claim(exactly(adminAccess=True)),
        "requests[0].adminAccess",
        "Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the "
        "containing namespace",
    ),
    (claim(exactly(), exactly()), "requests[1]", 'Duplicate value: "a"'),
    (
        claim(*[{"name": f"a{index}", "exactly": CLASS} for index in range(33)]),
        "requests",
        "Too many: 33: must have at most 32 items",
    ),
    (claim(exactly(selectors=[{}])), "requests[0].exactly.selectors[0].cel", "Required value"),
    (
        claim(exactly(selectors=[{"cel": {"expression": "x" * 10241}}])),
        "requests[0].exactly.selectors[0].cel.expression",
        "Too long: may not be more than 10240 bytes",
    ),
    (
        claim(exactly(selectors=[{"cel": {"expression": "device.driver == 1"}}])),
        "requests[0].exactly.selectors[0].cel.expression",
        'Invalid value: "device.driver == 1": compilation failed: ERROR: <input>:1:15: found no matching overload for '
        "'_==_' applied to '(string, int)'\n | device.driver == 1\n | ..............^",
    ),
    (
        claim(exactly(selectors=[{"cel": {"expression": "devices.driver == 'd'"}}])),
        "requests[0].exactly.selectors[0].cel.expression",
        "Invalid value: \"devices.driver == 'd'\": compilation failed: ERROR: <input>:1:1: undeclared reference to "
        "'devices' (in container '')\n | devices.driver == 'd'\n | ^",
    ),
    (
        claim(exactly(), constraints=[{"requests": ["b"], "matchAttribute": "a.example.com/b"}]),
        "constraints[0].requests[0]",
        f'Invalid value: "b": {REFERENCE}',
    ),
    (
        claim(exactly(), constraints=[{"matchAttribute": "b"}]),
        "constraints[0].matchAttribute",
        'Invalid value: "b": a fully qualified name must be a domain and a name separated by a slash',
    ),
    (claim(exactly(), config=[{}]), "config[0].opaque", "Required value"),
    (
        claim(exactly(), config=[{"opaque": {"driver": "d", "parameters": [1]}}]),
        "config[0].opaque.parameters",
        'Invalid value: "<value omitted>": must be a valid JSON object',
    ),
    (claim(exactly(), config=[{"opaque": {"driver": "d"}}]), "config[0].opaque.parameters", "Required value"),
]


@pytest.mark.parametrize(("spec", "field", "message"), CLAIMS)
def test_an_invalid_claim_is_refused_in_the_server_s_words(spec: JsonObject, field: str, message: str) -> None:
    assert refused(RESOURCE_CLAIMS, spec) == [(f"spec.devices.{field}", message)]


def test_a_template_is_held_to_the_same_rules() -> None:
    for spec, field, message in CLAIMS:
        assert refused(RESOURCE_CLAIM_TEMPLATES, {"spec": spec}) == [(f"spec.spec.devices.{field}", message)]


def test_a_namespace_may_allow_admin_access() -> None:
    labels = {"resource.kubernetes.io/admin-access": "true"}
    context = Context(minor=36, gates=CONTEXT.gates, now=CONTEXT.now, namespace_labels=labels)
    admitted = admit(RESOURCE_CLAIMS, claim(exactly(adminAccess=True)), context)
    assert admitted["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] is True


def test_an_alternative_cannot_have_admin_access() -> None:
    labels = {"resource.kubernetes.io/admin-access": "true"}
    context = Context(minor=36, gates=CONTEXT.gates, now=CONTEXT.now, namespace_labels=labels)
    body = claim({"name": "a", "firstAvailable": [{"name": "s", **CLASS, "adminAccess": True}]})
    (request,) = admit(RESOURCE_CLAIMS, body, context)["spec"]["devices"]["requests"]
    assert "adminAccess" not in request["firstAvailable"][0]
    unknown = find_unknown_fields(RESOURCE_CLAIMS, {"spec": body})
    assert unknown == ("spec.devices.requests[0].firstAvailable[0].adminAccess",)


def test_a_field_that_is_null_is_absent() -> None:
    parameters = {"opaque": {"driver": "d", "parameters": {"a": None}}}
    body = claim(exactly(selectors=None, count=None), constraints=None, config=[parameters])
    assert admit(RESOURCE_CLAIMS, body) == admit(RESOURCE_CLAIMS, claim(exactly(), config=[parameters]))


def test_the_requests_are_shown_even_when_there_are_none() -> None:
    assert admit(RESOURCE_CLAIMS, {})["spec"] == {"devices": {"requests": None}}


def test_a_template_s_spec_is_immutable_as_a_whole() -> None:
    old = admit(RESOURCE_CLAIM_TEMPLATES, {"spec": claim(exactly())})
    same = admit_update(
        RESOURCE_CLAIM_TEMPLATES, {**old, "spec": {"spec": claim(exactly())}}, old, CONTEXT, status=False
    )
    assert same == old
    with pytest.raises(StatusError, match="field is immutable"):
        admit_update(
            RESOURCE_CLAIM_TEMPLATES, {**old, "spec": {"spec": claim(exactly(count=2))}}, old, CONTEXT, status=False
        )


@pytest.mark.parametrize(
    "name", ["gpu", "kubernetes.io/gpu", "requests.kubernetes.io/gpu", "requests.example.com/gpu", "Example.com/gpu"]
)
def test_a_class_s_extended_resource_has_a_domain_of_one_s_own(name: str) -> None:
    told = refused(DEVICE_CLASSES, {"extendedResourceName": name})
    assert told == [("spec.extendedResourceName", f'Invalid value: "{name}": must be a valid extended resource name')]


def test_a_selector_may_not_read_of_sharing_where_its_gate_is_off() -> None:
    selectors = [{"cel": {"expression": "device.allowMultipleAllocations"}}]
    admit(DEVICE_CLASSES, {"selectors": selectors})
    older = Context(minor=35, gates=build_gates(35), now=CONTEXT.now)
    ((field, message),) = refused(DEVICE_CLASSES, {"selectors": selectors}, older)
    assert field == "spec.selectors[0].cel.expression"
    assert "undefined field 'allowMultipleAllocations'" in message


def test_what_a_slice_does_not_say_is_filled_in_or_left_out() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "Exists", "values": []}], "matchFields": [], "x": 1}]
    nodes = {"nodeName": None, "nodeSelector": {"nodeSelectorTerms": terms}}
    admitted = admit(RESOURCE_SLICES, device_slice({"name": "gpu", "capacity": {"m": {}}}, **nodes))["spec"]
    assert admitted["devices"] == [{"name": "gpu", "capacity": {"m": {"value": "0"}}}]
    term = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
    assert admitted["nodeSelector"] == {"nodeSelectorTerms": [term]}


def test_a_status_is_held_to_the_rules_of_claims_and_nodes() -> None:
    labels = {"resource.kubernetes.io/admin-access": "true"}
    allowed = Context(minor=36, gates=CONTEXT.gates, now=CONTEXT.now, namespace_labels=labels)
    old = admit(RESOURCE_CLAIMS, claim(exactly(adminAccess=True)), allowed)
    result = {"request": "a", "driver": "d", "pool": "p", "device": "", "adminAccess": True}
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": []}}
    with pytest.raises(StatusError) as caught:
        admit_update(RESOURCE_CLAIMS, {**old, "status": {"allocation": allocation}}, old, CONTEXT, status=True)
    told = {
        one["field"].removeprefix("status.allocation."): one["message"]
        for one in (caught.value.details or {})["causes"]
    }
    assert told == {
        "devices.results[0].adminAccess": next(text for _, field, text in CLAIMS if "adminAccess" in field),
        "devices.results[0].device": f'Invalid value: "": {LABEL}',
        "nodeSelector.nodeSelectorTerms": "Required value: must have at least one node selector term",
    }


def test_a_rule_without_a_selector_has_none() -> None:
    taint = {"key": "a", "effect": "None", "timeAdded": "2026-01-01T00:00:00Z"}
    assert admit(DEVICE_TAINT_RULES, {"taint": taint})["spec"] == {"taint": taint}


def test_an_allocation_has_no_fields_of_disabled_gates() -> None:
    older = Context(minor=35, gates=build_gates(35), now=CONTEXT.now)
    old = admit(RESOURCE_CLAIMS, claim(exactly()), older)
    result = {"request": "a", "driver": "d", "pool": "p", "device": "x"}
    newer = {"shareID": "s", "consumedCapacity": {"c": "1"}, "bindingConditions": ["b"]}
    status = {"allocation": {"devices": {"results": [{**result, **newer}]}}}
    updated = admit_update(RESOURCE_CLAIMS, {**old, "status": status}, old, older, status=True)
    assert updated["status"]["allocation"]["devices"]["results"] == [result]


def test_only_attributes_that_match_are_known_where_the_gate_of_sharing_is_off() -> None:
    older = Context(minor=35, gates=build_gates(35), now=CONTEXT.now)
    spec = claim(exactly(), constraints=[{"distinctAttribute": "a.example.com/b"}])
    assert refused(RESOURCE_CLAIMS, spec, older) == [("spec.devices.constraints[0].matchAttribute", "Required value")]


def test_a_device_taint_rule_is_held_to_the_rules_of_taints() -> None:
    spec = {"deviceSelector": {"driver": "-", "pool": "A", "device": "A"}, "taint": {"key": "a"}}
    fields = [field for field, _ in refused(DEVICE_TAINT_RULES, spec)]
    assert fields == [*(f"spec.deviceSelector.{name}" for name in ("driver", "pool", "device")), "spec.taint.effect"]
    kept = admit(DEVICE_TAINT_RULES, {"taint": {"key": "a", "effect": "NoExecute"}})["spec"]
    assert kept["taint"]["timeAdded"] == CONTEXT.now


@pytest.mark.parametrize(
    ("minor", "effect", "time", "kept"),
    [
        pytest.param(36, "None", "2020-01-01T00:00:00Z", "2020-01-01T00:00:00Z", id="the same effect"),
        pytest.param(36, "NoExecute", "2020-01-01T00:00:00Z", CONTEXT.now, id="another effect"),
        pytest.param(36, "NoExecute", "2021-01-01T00:00:00Z", "2021-01-01T00:00:00Z", id="and a time"),
        pytest.param(35, "NoExecute", "2020-01-01T00:00:00Z", "2020-01-01T00:00:00Z", id="not in 1.35"),
    ],
)
def test_the_time_of_a_taint_rule_is_when_its_taint_got_its_effect(
    minor: int, effect: str, time: str, kept: str
) -> None:
    def rule(effect: str, time: str) -> JsonObject:
        return {"taint": {"key": "a", "effect": effect, "timeAdded": time}}

    context = Context(minor=minor, gates=build_gates(minor), now=CONTEXT.now)
    old = admit(DEVICE_TAINT_RULES, rule("None", "2020-01-01T00:00:00Z"))
    new = admit_update(DEVICE_TAINT_RULES, {**old, "spec": rule(effect, time)}, old, context, status=False)
    assert new["spec"]["taint"]["timeAdded"] == kept


def test_fields_are_unknown_in_every_kind_of_the_api() -> None:
    body = {"spec": {"taint": {"key": "a", "efect": "None"}}, "status": {"conditions": []}, "extra": 1}
    assert find_unknown_fields(DEVICE_TAINT_RULES, body) == ("extra", "spec.taint.efect")
    assert find_unknown_fields(RESOURCE_CLAIMS, {"status": {"device": []}}) == ("status.device",)


def test_a_field_of_a_disabled_gate_is_kept_where_it_is_used_already() -> None:
    spec = {
        "driver": "gpu.example.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d", "taints": [{"key": "a", "effect": "NoSchedule"}]}],
    }
    old = admit(RESOURCE_SLICES, spec)
    off = Context(minor=36, gates=build_gates(36, {"DRADeviceTaints": False}), now=CONTEXT.now)
    assert "taints" not in admit(RESOURCE_SLICES, spec, off)["spec"]["devices"][0]
    kept = admit_update(RESOURCE_SLICES, old, old, off, status=False)
    assert kept["spec"]["devices"][0]["taints"][0]["key"] == "a"


@pytest.mark.parametrize(("minor", "enabled"), [(34, False), (35, False), (36, True), (37, True)])
def test_a_release_decides_the_gates(minor: int, enabled: bool) -> None:
    assert build_gates(minor)["DRAPartitionableDevices"] is enabled
    assert build_gates(minor)["DRAAdminAccess"] is True
    assert build_gates(minor, {"DRAPartitionableDevices": not enabled})["DRAPartitionableDevices"] is not enabled


def device_slice(*devices: JsonObject, **spec: Any) -> JsonObject:
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    listed = {"devices": list(devices)} if devices else {}
    return {"driver": "gpu.example.com", "nodeName": "n", "pool": pool, **listed, **spec}


def shared_device(policy: JsonObject) -> JsonObject:
    capacity = {"m": {"value": "8Gi", "requestPolicy": policy}}
    return device_slice({"name": "gpu", "allowMultipleAllocations": True, "capacity": capacity})


def taints(count: int, effect: str = "NoSchedule") -> list[JsonObject]:
    return [{"key": f"example.com/{number}", "effect": effect} for number in range(count)]


BOARD = {"name": "board", "counters": {"slots": {"value": "4"}}}
PART = {"name": "part", "consumesCounters": [{"counterSet": "board", "counters": {"slots": {"value": "1"}}}]}
WRONG_COUNTER = [{"counterSet": "board", "counters": {"cores": {"value": "1"}}}]
MANY_COUNTERS = {f"c{number}": {"value": "1"} for number in range(17)}
DEVICES = "spec.devices[0]"
SHARED = f"{DEVICES}.capacity[m].requestPolicy"
IN_STEPS = {"default": "3", "validRange": {"min": "1500m", "step": "1500m"}}
OF_A_RELEASE: dict[str, tuple[JsonObject, dict[int, list[tuple[str, str]]]]] = {
    "counters beside their devices": (
        device_slice(PART, sharedCounters=[BOARD]),
        {34: [], 35: [("spec", 'Invalid value: "": only one of `sharedCounters` or `devices` is allowed')]},
    ),
    "counters in another slice": (
        device_slice(PART),
        {
            34: [
                (
                    f"{DEVICES}.consumesCounters[0].counterSet",
                    'Invalid value: "board": must reference a counterSet defined in the ResourceSlice sharedCounters',
                )
            ],
            35: [],
        },
    ),
    "a counter that its set does not have": (
        device_slice({"name": "part", "consumesCounters": WRONG_COUNTER}, sharedCounters=[BOARD]),
        {
            34: [
                (
                    f"{DEVICES}.consumesCounters[0].counters",
                    'Invalid value: "cores": must reference a counter defined in the ResourceSlice sharedCounters',
                )
            ]
        },
    ),
    "34 counters in two sets": (
        device_slice(sharedCounters=[{"name": name, "counters": MANY_COUNTERS} for name in "ab"]),
        {
            34: [
                (
                    "spec.sharedCounters",
                    "Invalid value: 34: the total number of shared counters must not exceed 32",
                )
            ],
            35: [],
        },
    ),
    "nine counter sets": (
        device_slice(sharedCounters=[{**BOARD, "name": f"board-{number}"} for number in range(9)]),
        {34: [], 35: [("spec.sharedCounters", "Too many: 9: must have at most 8 items")]},
    ),
    "an informational taint": (
        device_slice({"name": "gpu", "taints": taints(1, "None")}),
        {
            34: [
                (
                    f"{DEVICES}.taints[0].effect",
                    'Unsupported value: "None": supported values: "NoExecute", "NoSchedule"',
                )
            ],
            35: [],
        },
    ),
    "five taints": (
        device_slice({"name": "gpu", "taints": taints(5)}),
        {34: [(f"{DEVICES}.taints", "Too many: 5: must have at most 4 items")], 35: []},
    ),
    "seventeen taints": (
        device_slice({"name": "gpu", "taints": taints(17)}),
        {
            34: [(f"{DEVICES}.taints", "Too many: 17: must have at most 4 items")],
            35: [(f"{DEVICES}.taints", "Too many: 17: must have at most 16 items")],
        },
    ),
    "65 devices and a taint": (
        device_slice({"name": "gpu", "taints": taints(1)}, *({"name": f"gpu-{number}"} for number in range(64))),
        {34: [], 35: [("spec.devices", "Too many: 65: must have at most 64 items")]},
    ),
    "what it uses of the node, as 1.36 has it": (
        device_slice({"name": "cpu", "nodeAllocatableResourceMappings": {"example.com/cpu": {"capacityKey": "c"}}}),
        {
            35: [],
            36: [
                (f"{DEVICES}.nodeAllocatableResourceMappings[example.com/cpu]", ANY),
                (f"{DEVICES}.nodeAllocatableResourceMappings[example.com/cpu].capacityKey", ANY),
            ],
            37: [],
        },
    ),
    "what it uses of the node, as 1.37 has it": (
        device_slice({"name": "cpu", "nodeAllocatableResources": {"cpu": {"mapping": {"capacityMultiplier": "0"}}}}),
        {
            36: [],
            37: [
                (f"{DEVICES}.nodeAllocatableResources[cpu].mapping", ANY),
                (f"{DEVICES}.nodeAllocatableResources[cpu].mapping.capacityMultiplier", ANY),
            ],
        },
    ),
    "three compatibility groups": (
        device_slice(
            {
                "name": "part",
                "consumesCounters": [
                    {"counterSet": "c", "counters": {"m": {"value": "1"}}, "compatibilityGroups": list("abc")}
                ],
            }
        ),
        {
            36: [],
            37: [(f"{DEVICES}.consumesCounters[0].compatibilityGroups", "Too many: 3: must have at most 2 items")],
        },
    ),
    "a type of partitions without a domain": (
        device_slice(partitionTypeAttribute="profile"),
        {36: [], 37: [("spec.partitionTypeAttribute", ANY)]},
    ),
    "nothing used besides": (
        device_slice({"name": "cpu", "nodeAllocatableResources": {"cpu": {"overhead": {}}, "memory": {}}}),
        {
            37: [
                (f"{DEVICES}.nodeAllocatableResources[cpu].overhead", ANY),
                (f"{DEVICES}.nodeAllocatableResources[memory]", ANY),
            ]
        },
    ),
    "shares that are the same in whole numbers": (
        shared_device({"default": "1", "validValues": ["500m", "1"]}),
        {36: [(f"{SHARED}.validValues[1]", 'Duplicate value: "1"')]},
    ),
    "steps are counted in whole numbers": (
        shared_device(IN_STEPS),
        {
            36: [
                (
                    f"{SHARED}.validRange.step",
                    'Invalid value: "3": value is not a multiple of a given step (1500m) from (1500m)',
                )
            ]
        },
    ),
    "a step beyond the whole": (
        shared_device({"default": "4Gi", "validRange": {"min": "4Gi", "step": "8Gi"}}),
        {
            36: [
                (
                    f"{SHARED}.validRange.step",
                    'Invalid value: "8Gi": one step 12Gi is larger than capacity value: 8Gi',
                )
            ]
        },
    ),
    "a taint without a key": (
        device_slice({"name": "gpu", "taints": [{"effect": "None"}]}),
        {
            36: [
                (f"{DEVICES}.taints[0].key", 'Invalid value: "": name part must be non-empty'),
                (f"{DEVICES}.taints[0].key", ANY),
            ]
        },
    ),
    "a taint of a domain that is none": (
        device_slice({"name": "gpu", "taints": [{"key": "A/b", "effect": "None"}, {"key": "/b", "effect": "None"}]}),
        {
            36: [
                (f"{DEVICES}.taints[0].key", ANY),
                (f"{DEVICES}.taints[1].key", 'Invalid value: "/b": prefix part must be non-empty'),
            ]
        },
    ),
    "a name with two slashes": (
        device_slice({"name": "gpu", "attributes": {"a.example.com/b/c": {"int": 1}}}),
        {34: [], 37: [], 38: [("spec.devices[0].attributes", ANY)]},
    ),
}


@pytest.mark.parametrize(
    ("minor", "spec", "told"),
    [(minor, spec, told) for spec, by_minor in OF_A_RELEASE.values() for minor, told in by_minor.items()],
    ids=[f"1.{minor}: {name}" for name, (_, by_minor) in OF_A_RELEASE.items() for minor in by_minor],
)
def test_each_release_has_its_own_rules_for_slices(minor: int, spec: JsonObject, told: list[tuple[str, str]]) -> None:
    alpha = {
        gate: True for gate in (ALLOCATABLE, GROUPS, PARTITION_TYPE) if minor >= (36 if gate == ALLOCATABLE else 37)
    }
    gates = build_gates(minor, {"DRADeviceTaints": True, "DRAPartitionableDevices": True, **alpha})
    context = Context(minor=minor, gates=gates, now=CONTEXT.now)
    if told:
        assert refused(RESOURCE_SLICES, spec, context) == told
    else:
        admit(RESOURCE_SLICES, spec, context)


def test_a_release_does_not_know_the_gates_of_later_ones() -> None:
    with pytest.raises(ValueError, match="unknown feature gates DRAListTypeAttributes"):
        build_gates(35, {"DRAListTypeAttributes": True})
    assert not build_gates(35)["DRAListTypeAttributes"]


def test_a_gate_that_is_locked_cannot_be_turned_off() -> None:
    assert not build_gates(37, {"DRADeviceTaints": False})["DRADeviceTaints"]
    with pytest.raises(ValueError, match="DRADeviceTaints cannot be turned off"):
        build_gates(38, {"DRADeviceTaints": False})
    assert build_gates(38, {"DRADeviceTaints": True})["DRADeviceTaints"]
