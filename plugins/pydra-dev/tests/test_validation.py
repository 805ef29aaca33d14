"""What any Kubernetes API server demands of objects and fills in; with KUBECONFIG set, asked of a real one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from answers import assert_refused, causes, connected
from bodies import allocation, claim_body, pod_body, slice_body
from tests.integration.api_handle import CLASSES, SLICES, ApiHandle

JsonObject = dict[str, Any]


async def test_the_server_canonicalises_quantities_and_dates_taints(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        device = {
            "name": "dev-0",
            "capacity": {"memory": {"value": "1024Mi"}, "cores": {"value": "1000m"}, "bandwidth": {"value": 2000}},
            "taints": [{"key": "example.com/sick", "effect": "NoSchedule"}],
        }
        stored = (await client.create(SLICES, slice_body(scratch, devices=[device])))["spec"]["devices"][0]
        assert {name: value["value"] for name, value in stored["capacity"].items()} == {
            "memory": "1Gi",
            "cores": "1",
            "bandwidth": "2k",
        }
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", stored["taints"][0]["timeAdded"])


async def test_fields_that_the_api_does_not_know_are_dropped(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        body = slice_body(scratch, devices=[{"name": "dev-0", "futureField": {"a": 1}}], alsoUnknown=True)
        stored = await client.create(SLICES, body)
        assert stored["spec"]["devices"] == [{"name": "dev-0"}]
        assert "alsoUnknown" not in stored["spec"]


async def test_unknown_fields_are_warned_of_or_refused_as_the_writer_asks(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        body = slice_body(scratch, devices=[{"name": "dev-0", "futureField": 1}])
        strict = await client.request("POST", SLICES, body, params={"fieldValidation": "Strict"})
        assert_refused(strict, 400, "BadRequest")
        assert 'unknown field "spec.devices[0].futureField"' in strict.body["message"]
        warned = await client.request("POST", SLICES, body)
        assert warned.headers["Warning"] == '299 - "unknown field \\"spec.devices[0].futureField\\""'


async def test_a_value_of_the_wrong_type_is_a_bad_request(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        assert_refused(await client.request("POST", SLICES, slice_body(scratch, driver=7)), 400, "BadRequest")
        body = slice_body(scratch, devices=[{"name": "dev-0", "capacity": {"memory": {"value": "lots"}}}])
        assert_refused(await client.request("POST", SLICES, body), 400, "BadRequest")
        assert_refused(await client.request("POST", SLICES, b"{"), 400, "BadRequest")


async def test_the_spec_of_a_claim_is_immutable(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body())
        requests = [{"name": "other", "exactly": {"deviceClassName": "gpu.example.com"}}]
        answer = await client.patch(f"{scratch.claims}/claim", {"spec": {"devices": {"requests": requests}}})
        assert_refused(answer, 422, "Invalid")
        assert causes(answer) == {("spec", "FieldValueInvalid")}
        assert answer.body["message"].startswith(
            'ResourceClaim.resource.k8s.io "claim" is invalid: spec: Invalid value'
        )
        assert answer.body["message"].endswith("field is immutable")


async def test_a_claim_is_defaulted(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        stored = await client.create(scratch.claims, claim_body())
        assert stored["spec"]["devices"]["requests"][0]["exactly"] == {
            "deviceClassName": "gpu.example.com",
            "allocationMode": "ExactCount",
            "count": 1,
        }


@pytest.mark.parametrize(
    ("field", "patch"),
    [
        pytest.param("spec.driver", {"driver": "other.example.com"}, id="driver"),
        pytest.param("spec.pool.name", {"pool": {"name": "other"}}, id="pool name"),
        pytest.param("spec.nodeName", {"nodeName": "other"}, id="node name"),
    ],
)
async def test_what_a_slice_belongs_to_is_immutable(api_server: ApiHandle, field: str, patch: JsonObject) -> None:
    async with connected(api_server) as (client, scratch):
        name = (await client.create(SLICES, slice_body(scratch)))["metadata"]["name"]
        answer = await client.patch(f"{SLICES}/{name}", {"spec": patch})
        assert_refused(answer, 422, "Invalid")
        assert (field, "FieldValueInvalid") in causes(answer)


def _nodes(**requirement: Any) -> JsonObject:
    return {"nodeName": None, "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}


_AT_TERM = "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0]"
_ATTRIBUTES = {f"a{index}": {"int": index} for index in range(33)}
_TAINT = {"key": "example.com/a", "effect": "NoSchedule"}
INVALID_SLICES = [
    ({"nodeName": None}, "spec", "FieldValueRequired", "no node"),
    ({"nodeName": ""}, "spec.nodeName", "FieldValueInvalid", "empty node name"),
    ({"allNodes": True}, "spec", "FieldValueInvalid", "two kinds of nodes"),
    (_nodes(key="zone", operator="in", values=["a"]), f"{_AT_TERM}.operator", "FieldValueInvalid", "node operator"),
    (_nodes(key="zone", operator="In"), f"{_AT_TERM}.values", "FieldValueRequired", "no values of a node label"),
    (_nodes(key="zone", operator="Exists", values=["a"]), f"{_AT_TERM}.values", "FieldValueForbidden", "node values"),
    (_nodes(key="the zone", operator="Exists"), f"{_AT_TERM}.key", "FieldValueInvalid", "key of a node label"),
    (
        {
            "nodeName": None,
            "perDeviceNodeSelection": True,
            "devices": [{"name": "d", "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "spec.x"}]}]}}],
        },
        "spec.devices[0].nodeSelector.nodeSelectorTerms[0].matchFields[0].key",
        "FieldValueInvalid",
        "field of a node",
    ),
    ({"driver": "Not_a_name"}, "spec.driver", "FieldValueInvalid", "driver name"),
    ({"driver": f"{'d' * 60}.com"}, "spec.driver", "FieldValueTooLong", "long driver name"),
    ({"pool": {"name": "a//b", "resourceSliceCount": 1}}, "spec.pool.name", "FieldValueInvalid", "pool name"),
    ({"pool": {"name": "p"}}, "spec.pool.resourceSliceCount", "FieldValueInvalid", "no slice count"),
    ({"devices": [{"name": "A_"}]}, "spec.devices[0].name", "FieldValueInvalid", "device name"),
    ({"devices": [{"name": "d"}, {"name": "d"}]}, "spec.devices[1]", "FieldValueDuplicate", "device twice"),
    ({"devices": [{"name": f"d{i}"} for i in range(129)]}, "spec.devices", "FieldValueTooMany", "129 devices"),
    (
        {"devices": [{"name": f"d{i}", "taints": [_TAINT]} for i in range(65)]},
        "spec.devices",
        "FieldValueTooMany",
        "65 tainted devices",
    ),
    ({"devices": [{"name": "d", "attributes": _ATTRIBUTES}]}, "spec.devices[0]", "FieldValueInvalid", "33 attributes"),
    (
        {"devices": [{"name": "d", "attributes": {"v": {"version": "v1"}}}]},
        "spec.devices[0].attributes[v].version",
        "FieldValueInvalid",
        "version",
    ),
    (
        {"devices": [{"name": "d", "attributes": {"s": {"string": "x" * 65}}}]},
        "spec.devices[0].attributes[s].string",
        "FieldValueTooLong",
        "65 bytes of string",
    ),
    (
        {"devices": [{"name": "d", "taints": [{"key": "a", "effect": "Sometimes"}]}]},
        "spec.devices[0].taints[0].effect",
        "FieldValueNotSupported",
        "taint effect",
    ),
    (
        {"devices": [{"name": "d", "consumesCounters": [{"counterSet": "s"}]}]},
        "spec.devices[0].consumesCounters[0].counters",
        "FieldValueRequired",
        "no counters",
    ),
    (
        {"devices": [{"name": "d", "capacity": {"m": {"value": "1", "requestPolicy": {"default": "1"}}}}]},
        "spec.devices[0].capacity[m].requestPolicy",
        "FieldValueForbidden",
        "policy without sharing",
    ),
]


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [pytest.param(*case[:3], id=case[3]) for case in INVALID_SLICES],
)
async def test_an_invalid_slice_is_refused_with_the_field(
    api_server: ApiHandle, spec: JsonObject, field: str, reason: str
) -> None:
    async with connected(api_server) as (client, scratch):
        answer = await client.request("POST", SLICES, slice_body(scratch, **spec))
        assert_refused(answer, 422, "Invalid")
        assert (field, reason) in causes(answer), answer.text


async def test_all_faults_of_an_object_are_told_at_once(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        body = slice_body(scratch, nodeName=None, devices=[{"name": "A_"}, {"name": "ok"}, {"name": "ok"}])
        answer = await client.request("POST", SLICES, body)
        assert {field for field, _ in causes(answer)} >= {"spec", "spec.devices[0].name", "spec.devices[2]"}
        assert answer.body["message"].startswith(
            f'ResourceSlice.resource.k8s.io "{body["metadata"]["name"]}" is invalid: ['
        )


async def test_a_reservation_needs_an_allocation(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body())
        reserved = [{"resource": "pods", "name": "p", "uid": "1"}]
        answer = await client.patch(f"{scratch.claims}/claim/status", {"status": {"reservedFor": reserved}})
        assert_refused(answer, 422, "Invalid")
        assert ("status.reservedFor", "FieldValueForbidden") in causes(answer)


async def test_an_allocation_cannot_change_but_can_be_cleared(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body())
        path = f"{scratch.claims}/claim/status"
        assert (await client.patch(path, {"status": {"allocation": allocation(scratch)}})).status == 200
        answer = await client.patch(path, {"status": {"allocation": allocation(scratch, "dev-1")}})
        assert_refused(answer, 422, "Invalid")
        assert ("status.allocation", "FieldValueInvalid") in causes(answer)
        assert "allocation" not in (await client.patch(path, {"status": {"allocation": None}})).body["status"]


async def test_device_status_is_for_allocated_devices_and_goes_with_them(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body())
        path = f"{scratch.claims}/claim/status"
        device = {"driver": scratch.driver, "pool": scratch.node, "device": "dev-0", "data": {"mac": "x"}}
        refused = await client.patch(path, {"status": {"devices": [device]}})
        assert_refused(refused, 422, "Invalid")
        assert "must be an allocated device in the claim" in refused.body["message"]
        both = {"allocation": allocation(scratch), "devices": [device]}
        stored = (await client.patch(path, {"status": both})).body["status"]["devices"]
        assert stored == [{**device, "conditions": None}]
        assert "devices" not in (await client.patch(path, {"status": {"allocation": None}})).body["status"]


CONDITION = {"type": "Ready", "status": "True", "reason": "Linked", "lastTransitionTime": "2026-01-02T03:04:05Z"}


@pytest.mark.parametrize(
    ("field", "value", "at", "reason"),
    [
        ("type", "not ready", "type", "FieldValueInvalid"),
        ("status", "Yes", "status", "FieldValueNotSupported"),
        ("reason", "the link is up", "reason", "FieldValueInvalid"),
        ("reason", "", "reason", "FieldValueRequired"),
        ("message", "x" * 32769, "message", "FieldValueTooLong"),
        ("lastTransitionTime", None, "lastTransitionTime", "FieldValueRequired"),
        ("observedGeneration", -1, "observedGeneration", "FieldValueInvalid"),
    ],
)
async def test_a_condition_of_a_device_must_be_valid(
    api_server: ApiHandle, field: str, value: object, at: str, reason: str
) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body())
        device: JsonObject = {"driver": scratch.driver, "pool": scratch.node, "device": "dev-0"}
        device["conditions"] = [CONDITION, {**CONDITION, "type": "Other", field: value}]
        body = {"status": {"allocation": allocation(scratch), "devices": [device]}}
        answer = await client.patch(f"{scratch.claims}/claim/status", body)
        assert_refused(answer, 422, "Invalid")
        assert causes(answer) == {(f"status.devices[0].conditions[1].{at}", reason)}, answer.text


async def test_times_are_kept_in_whole_seconds_of_utc(api_server: ApiHandle) -> None:
    """A driver that compares what it wrote with what is stored would otherwise write for ever."""
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body())
        device: JsonObject = {"driver": scratch.driver, "pool": scratch.node, "device": "dev-0"}
        device["conditions"] = [{**CONDITION, "lastTransitionTime": "2026-01-02T05:04:05.678+02:00"}]
        body = {"status": {"allocation": allocation(scratch), "devices": [device]}}
        path = f"{scratch.claims}/claim/status"
        (stored,) = (await client.patch(path, body)).body["status"]["devices"]
        assert stored["conditions"] == [{**CONDITION, "message": ""}]
        device["conditions"] = [{**CONDITION, "lastTransitionTime": "2026-01-02"}]
        assert_refused(await client.patch(path, {"status": {"devices": [device]}}), 400, "BadRequest")


async def test_a_pod_names_its_claims(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        unknown = pod_body(resourceClaims=[{"name": "gpu"}])
        unknown["spec"]["containers"][0]["resources"] = {"claims": [{"name": "cpu"}]}
        answer = await client.request("POST", scratch.pods, unknown)
        assert_refused(answer, 422, "Invalid")
        fields = {field for field, _ in causes(answer)}
        assert fields == {"spec.resourceClaims[0]", "spec.containers[0].resources.claims[0]"}


async def test_an_event_lies_where_its_object_lies(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        event = {"metadata": {"name": "event"}, "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}}
        answer = await client.request("POST", scratch.events, event)
        assert_refused(answer, 422, "Invalid")
        assert causes(answer) == {("involvedObject.namespace", "FieldValueInvalid")}


async def test_a_class_is_mutable_and_counts_its_generations(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        name = f"{scratch.namespace}.example.com"
        body = {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}
        try:
            assert (await client.create(CLASSES, body))["metadata"]["generation"] == 1
            changed = await client.patch(f"{CLASSES}/{name}", {"spec": {"selectors": None}})
            assert changed.body["metadata"]["generation"] == 2
            refused = await client.patch(f"{CLASSES}/{name}", {"spec": {"selectors": [{}]}})
            assert causes(refused) == {("spec.selectors[0].cel", "FieldValueRequired")}
        finally:
            await client.request("DELETE", f"{CLASSES}/{name}")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        pytest.param("pods", {"metadata": {"name": "p"}, "spec": ["a"]}, "spec", id="spec"),
        pytest.param("pods", {"metadata": {"name": "p"}, "spec": {"containers": 3}}, "containers", id="list"),
        pytest.param("claims", {"metadata": {"name": "c", "labels": 3}}, "labels", id="labels"),
        pytest.param("claims", {"metadata": "c"}, "metadata", id="metadata"),
    ],
)
async def test_a_field_of_another_type_is_named(api_server: ApiHandle, path: str, body: JsonObject, field: str) -> None:
    async with connected(api_server) as (client, scratch):
        answer = await client.request("POST", getattr(scratch, path), body)
        assert_refused(answer, 400, "BadRequest")
        assert field in answer.body["message"]


CLAIMS_OF_CONTAINERS = "spec.containers[0].resources.claims"


@pytest.mark.parametrize(
    ("claims", "field", "reason"),
    [
        pytest.param(
            [{"name": "gpu", "request": "any/big"}],
            f"{CLAIMS_OF_CONTAINERS}[0].request",
            "FieldValueInvalid",
            id="a subrequest",
        ),
        pytest.param(
            [{"name": "gpu"}, {"name": "gpu"}], f"{CLAIMS_OF_CONTAINERS}[1]", "FieldValueDuplicate", id="twice"
        ),
        pytest.param(
            [{"name": "gpu", "request": "a"}, {"name": "gpu"}],
            f"{CLAIMS_OF_CONTAINERS}[1]",
            "FieldValueDuplicate",
            id="a request, and all of them",
        ),
    ],
)
async def test_a_container_names_each_request_of_a_claim_once_and_no_subrequest(
    api_server: ApiHandle, claims: list[JsonObject], field: str, reason: str
) -> None:
    async with connected(api_server) as (client, scratch):
        body = pod_body(resourceClaims=[{"name": "gpu", "resourceClaimName": "claim"}])
        body["spec"]["containers"][0]["resources"] = {"claims": claims}
        answer = await client.request("POST", scratch.pods, body)
        assert_refused(answer, 422, "Invalid")
        assert causes(answer) == {(field, reason)}, answer.text


async def test_containers_have_different_names_and_claims_valid_ones(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        body = pod_body(resourceClaims=[{"name": "gpu", "resourceClaimName": "My_Claim"}])
        body["spec"]["containers"] *= 2
        answer = await client.request("POST", scratch.pods, body)
        assert causes(answer) == {
            ("spec.containers[1].name", "FieldValueDuplicate"),
            ("spec.resourceClaims[0].resourceClaimName", "FieldValueInvalid"),
        }, answer.text
