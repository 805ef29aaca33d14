"""What any Kubernetes API server does; with KUBECONFIG set, asked of a real one."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.integration.api_handle import CLASSES, SLICES, Answer, ApiHandle, RawClient, Scratch
from tests.integration.embedded.bodies import allocation, claim_body, pod_body, slice_body

JsonObject = dict[str, Any]


@asynccontextmanager
async def connected(api_server: ApiHandle) -> AsyncIterator[tuple[RawClient, Scratch]]:
    async with api_server.connect() as client, api_server.scratch(client) as scratch:
        yield client, scratch


def assert_refused(answer: Answer, status: int, reason: str) -> None:
    assert (answer.status, answer.body["kind"], answer.body["status"]) == (status, "Status", "Failure"), answer.text
    assert (answer.body["reason"], answer.body["code"]) == (reason, status)


def causes(answer: Answer) -> set[tuple[str, str]]:
    return {(cause["field"], cause["reason"]) for cause in answer.body["details"]["causes"]}


async def test_a_created_object_gets_its_metadata_from_the_server(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        body = slice_body(scratch)
        body["metadata"] |= {"uid": "forged", "generation": 7, "creationTimestamp": "2001-01-01T00:00:00Z"}
        metadata = (await client.create(SLICES, body))["metadata"]
        assert re.fullmatch(r"[0-9a-f-]{36}", metadata["uid"])
        assert metadata["generation"] == 1
        assert metadata["resourceVersion"].isdecimal()
        assert re.fullmatch(r"20[2-9]\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])


async def test_a_generated_name_is_the_prefix_and_five_letters(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        body = slice_body(scratch)
        body["metadata"] = {"generateName": "00000-driver-"}
        assert re.fullmatch(r"00000-driver-[a-z0-9]{5}", (await client.create(SLICES, body))["metadata"]["name"])
        body["metadata"] = {"generateName": f"00001-{'n' * 80}-"}
        assert len((await client.create(SLICES, body))["metadata"]["name"]) == 63


async def test_a_second_object_of_a_name_is_refused(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        body = slice_body(scratch)
        await client.create(SLICES, body)
        answer = await client.request("POST", SLICES, body)
        assert_refused(answer, 409, "AlreadyExists")
        name = body["metadata"]["name"]
        assert answer.body["message"] == f'resourceslices.resource.k8s.io "{name}" already exists'
        assert answer.body["details"] == {"name": name, "group": "resource.k8s.io", "kind": "resourceslices"}


async def test_a_missing_object_is_named_in_the_refusal(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        answer = await client.get(f"{scratch.claims}/nothing")
        assert_refused(answer, 404, "NotFound")
        assert answer.body["message"] == 'resourceclaims.resource.k8s.io "nothing" not found'


async def test_creating_in_a_namespace_that_is_not_there_is_refused(api_server: ApiHandle) -> None:
    async with api_server.connect() as client:
        path = "/apis/resource.k8s.io/v1/namespaces/pydra-test-none/resourceclaims"
        answer = await client.request("POST", path, claim_body())
        assert_refused(answer, 404, "NotFound")
        assert answer.body["message"] == 'namespaces "pydra-test-none" not found'


async def test_an_object_without_a_name_is_refused(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        answer = await client.request("POST", scratch.claims, {**claim_body(), "metadata": {}})
        assert_refused(answer, 422, "Invalid")
        assert ("metadata.name", "FieldValueRequired") in causes(answer)


async def test_a_write_from_a_stale_picture_is_a_conflict(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        stale = await client.create(SLICES, slice_body(scratch))
        path = f"{SLICES}/{stale['metadata']['name']}"
        assert (await client.patch(path, {"metadata": {"labels": {"a": "b"}}})).status == 200
        answer = await client.request("PUT", path, stale)
        assert_refused(answer, 409, "Conflict")
        assert answer.body["message"].endswith(
            "the object has been modified; please apply your changes to the latest version and try again"
        )
        assert (await client.get(path)).body["metadata"]["labels"] == {"a": "b"}


async def test_a_write_without_a_version_is_unconditional(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        body = slice_body(scratch)
        await client.create(SLICES, body)
        body["spec"]["devices"] = [{"name": "dev-1"}]
        answer = await client.request("PUT", f"{SLICES}/{body['metadata']['name']}", body)
        assert (answer.status, answer.body["metadata"]["generation"]) == (200, 2)


async def test_a_write_with_another_uid_is_a_conflict(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        stored = await client.create(SLICES, slice_body(scratch))
        stored["metadata"] |= {"uid": "00000000-0000-4000-8000-000000000000", "resourceVersion": ""}
        answer = await client.request("PUT", f"{SLICES}/{stored['metadata']['name']}", stored)
        assert_refused(answer, 409, "Conflict")
        assert "Precondition failed: UID in precondition" in answer.body["message"]


async def test_an_update_that_changes_nothing_is_not_a_write(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        stored = await client.create(SLICES, slice_body(scratch))
        answer = await client.request("PUT", f"{SLICES}/{stored['metadata']['name']}", stored)
        assert answer.body["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]


async def test_only_a_change_of_the_spec_is_a_new_generation(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        stored = await client.create(SLICES, slice_body(scratch))
        path = f"{SLICES}/{stored['metadata']['name']}"
        labelled = (await client.patch(path, {"metadata": {"labels": {"a": "b"}}})).body
        assert labelled["metadata"]["generation"] == 1
        assert int(labelled["metadata"]["resourceVersion"]) > int(stored["metadata"]["resourceVersion"])
        changed = (await client.patch(path, {"spec": {"devices": [{"name": "other"}]}})).body
        assert changed["metadata"]["generation"] == 2


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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("uid", "00000000-0000-4000-8000-000000000000", id="uid"),
        pytest.param("resourceVersion", "1", id="resource version"),
    ],
)
async def test_a_delete_whose_precondition_fails_deletes_nothing(api_server: ApiHandle, field: str, value: str) -> None:
    async with connected(api_server) as (client, scratch):
        stored = await client.create(SLICES, slice_body(scratch))
        path = f"{SLICES}/{stored['metadata']['name']}"
        answer = await client.request("DELETE", path, {"preconditions": {field: value}})
        assert_refused(answer, 409, "Conflict")
        assert (await client.get(path)).status == 200


async def test_a_delete_whose_preconditions_hold_deletes(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        metadata = (await client.create(SLICES, slice_body(scratch)))["metadata"]
        path = f"{SLICES}/{metadata['name']}"
        wanted = {key: metadata[key] for key in ("uid", "resourceVersion")}
        assert (await client.request("DELETE", path, {"preconditions": wanted})).status == 200
        assert_refused(await client.get(path), 404, "NotFound")
        assert_refused(await client.request("DELETE", path), 404, "NotFound")


async def test_an_object_with_a_finalizer_is_deleted_when_the_last_one_goes(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        body = claim_body()
        body["metadata"]["finalizers"] = ["example.com/hold"]
        await client.create(scratch.claims, body)
        path = f"{scratch.claims}/claim"
        assert (await client.request("DELETE", path)).body["metadata"]["deletionTimestamp"]
        held = (await client.get(path)).body
        assert held["metadata"]["deletionTimestamp"]
        added = await client.patch(path, {"metadata": {"finalizers": ["example.com/hold", "example.com/late"]}})
        assert_refused(added, 422, "Invalid")
        assert "no new finalizers can be added if the object is being deleted" in added.body["message"]
        assert (await client.patch(path, {"metadata": {"finalizers": None}})).status == 200
        assert (await client.get(path)).status == 404


async def test_spec_and_status_are_written_apart(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        status = {"allocation": allocation(scratch)}
        created = await client.create(scratch.claims, claim_body(status=status))
        assert not created.get("status")
        path = f"{scratch.claims}/claim"
        assert not (await client.patch(path, {"status": status})).body.get("status")
        labels = {"metadata": {"labels": {"a": "b"}}}
        answer = await client.patch(f"{path}/status", {"status": status, **labels})
        assert answer.body["status"]["allocation"]["devices"]["results"][0]["device"] == "dev-0"
        assert "labels" not in answer.body["metadata"]
        assert (await client.patch(path, labels)).body["status"] == answer.body["status"]


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


_ATTRIBUTES = {f"a{index}": {"int": index} for index in range(33)}
_TAINT = {"key": "example.com/a", "effect": "NoSchedule"}
INVALID_SLICES = [
    ({"nodeName": None}, "spec", "FieldValueRequired", "no node"),
    ({"nodeName": ""}, "spec.nodeName", "FieldValueInvalid", "empty node name"),
    ({"allNodes": True}, "spec", "FieldValueInvalid", "two kinds of nodes"),
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


async def test_field_selectors_choose(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(SLICES, slice_body(scratch))
        other = slice_body(scratch, f"{scratch.namespace}-all", nodeName=None, allNodes=True)
        await client.create(SLICES, other)

        async def select(selector: str) -> list[str]:
            answer = await client.get(SLICES, fieldSelector=f"spec.driver={scratch.driver}{selector}")
            return [item["metadata"]["name"].removeprefix(scratch.namespace) for item in answer.body["items"]]

        assert await select("") == ["-all", "-slice"]
        assert await select(f",spec.nodeName={scratch.node}") == ["-slice"]
        assert await select(",spec.nodeName=") == ["-all"]
        assert await select(f",spec.nodeName!={scratch.node}") == ["-all"]
        assert await select(f",metadata.name={scratch.namespace}-all") == ["-all"]
        refused = await client.get(SLICES, fieldSelector="spec.colour=red")
        assert_refused(refused, 400, "BadRequest")
        assert "field label not supported" in refused.body["message"]


async def test_label_selectors_choose(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        for name, labels in (("a", {"tier": "gold"}), ("b", {"tier": "iron"}), ("c", {})):
            body = claim_body(name)
            body["metadata"]["labels"] = labels
            await client.create(scratch.claims, body)

        async def select(selector: str) -> list[str]:
            items = (await client.get(scratch.claims, labelSelector=selector)).body["items"]
            return [item["metadata"]["name"] for item in items]

        assert await select("tier=gold") == ["a"]
        assert await select("tier!=gold") == ["b", "c"]
        assert await select("tier in (gold, iron)") == ["a", "b"]
        assert await select("tier notin (gold)") == ["b", "c"]
        assert await select("tier") == ["a", "b"]
        assert await select("!tier") == ["c"]


async def test_a_list_in_pages_is_a_picture_of_one_moment(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        for name in ("a", "b", "c"):
            await client.create(scratch.claims, claim_body(name))
        first = (await client.get(scratch.claims, limit="2")).body
        assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
        assert first["metadata"]["remainingItemCount"] == 1
        await client.request("DELETE", f"{scratch.claims}/c")
        await client.create(scratch.claims, claim_body("d"))
        token = {"limit": "2", "continue": first["metadata"]["continue"]}
        second = (await client.get(scratch.claims, **token)).body
        assert [item["metadata"]["name"] for item in second["items"]] == ["c"]
        assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        assert "continue" not in second["metadata"]


async def test_a_collection_is_deleted_by_selector(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        for name in ("a", "b"):
            await client.create(scratch.claims, claim_body(name))
        selector = {"fieldSelector": "metadata.name=a"}
        assert (await client.request("DELETE", scratch.claims, params=selector)).status == 200
        items = (await client.get(scratch.claims)).body["items"]
        assert [item["metadata"]["name"] for item in items] == ["b"]


async def test_a_merge_patch_takes_out_what_is_null(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        body = claim_body()
        body["metadata"]["labels"] = {"keep": "1", "drop": "2"}
        await client.create(scratch.claims, body)
        answer = await client.patch(f"{scratch.claims}/claim", {"metadata": {"labels": {"drop": None}}})
        assert answer.body["metadata"]["labels"] == {"keep": "1"}


async def test_a_patch_with_a_stale_version_is_a_conflict(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        stale = await client.create(scratch.claims, claim_body())
        path = f"{scratch.claims}/claim"
        await client.patch(path, {"metadata": {"labels": {"a": "b"}}})
        version = {"resourceVersion": stale["metadata"]["resourceVersion"]}
        assert_refused(await client.patch(path, {"metadata": {**version, "labels": {"a": "c"}}}), 409, "Conflict")


async def test_a_json_patch_whose_test_fails_changes_nothing(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body())
        path = f"{scratch.claims}/claim"
        add = {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}
        refused = await client.patch(path, [add, {"op": "test", "path": "/metadata/name", "value": "x"}], "json")
        assert_refused(refused, 422, "Invalid")
        assert "labels" not in (await client.get(path)).body["metadata"]
        assert (await client.patch(path, [add], "json")).body["metadata"]["labels"] == {"a": "b"}


async def test_a_strategic_patch_joins_lists_by_their_key(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.pods, pod_body())
        path = f"{scratch.pods}/pod/status"
        for type_ in ("example.com/one", "example.com/two"):
            condition = {"type": type_, "status": "True"}
            await client.patch(path, {"status": {"conditions": [condition]}}, "strategic-merge")
        conditions = (await client.get(f"{scratch.pods}/pod")).body["status"]["conditions"]
        assert {condition["type"] for condition in conditions} >= {"example.com/one", "example.com/two"}


async def test_a_patch_in_an_unknown_form_is_refused(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body())
        assert_refused(await client.patch(f"{scratch.claims}/claim", {}, "guess"), 415, "UnsupportedMediaType")


async def test_a_verb_that_a_resource_lacks_is_refused(api_server: ApiHandle) -> None:
    async with api_server.connect() as client:
        assert_refused(await client.request("PUT", SLICES, {}), 405, "MethodNotAllowed")
        assert (await client.get("/apis/resource.k8s.io/v1/unicorns")).status == 404


async def test_a_body_that_contradicts_its_path_is_refused(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body())
        renamed = await client.request("PUT", f"{scratch.claims}/claim", claim_body("other"))
        assert_refused(renamed, 400, "BadRequest")
        assert "does not match the name on the URL" in renamed.body["message"]
        assert_refused(await client.request("POST", scratch.claims, pod_body()), 400, "BadRequest")


async def test_a_name_that_could_be_a_path_is_refused(api_server: ApiHandle) -> None:
    async with api_server.connect() as client:
        answer = await client.get(f"{SLICES}/a%252fb")
        assert_refused(answer, 400, "BadRequest")
        assert answer.body["message"] == "Name parameter invalid: \"a%2fb\": may not contain '%'"


async def test_a_dry_run_answers_and_stores_nothing(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        answer = await client.request("POST", scratch.claims, claim_body(), params={"dryRun": "All"})
        assert answer.status == 201
        assert (await client.get(f"{scratch.claims}/claim")).status == 404


async def test_a_pod_names_its_claims(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        unknown = pod_body(resourceClaims=[{"name": "gpu"}])
        unknown["spec"]["containers"][0]["resources"] = {"claims": [{"name": "cpu"}]}
        answer = await client.request("POST", scratch.pods, unknown)
        assert_refused(answer, 422, "Invalid")
        fields = {field for field, _ in causes(answer)}
        assert fields == {"spec.resourceClaims[0]", "spec.containers[0].resources.claims[0]"}


async def test_a_pod_without_a_node_is_deleted_at_once(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        created = await client.create(scratch.pods, pod_body())
        assert created["status"]["phase"] == "Pending"
        assert created["spec"]["terminationGracePeriodSeconds"] == 30
        assert (await client.request("DELETE", f"{scratch.pods}/pod")).status == 200
        assert (await client.get(f"{scratch.pods}/pod")).status == 404


async def test_both_versions_of_events_show_the_same_ones(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        event = {
            "metadata": {"name": "event"},
            "eventTime": "2026-01-02T03:04:05.000006Z",
            "type": "Warning",
            "reason": "PrepareFailed",
            "action": "Prepare",
            "note": "no such device",
            "regarding": {"kind": "ResourceClaim", "namespace": scratch.namespace, "name": "claim", "uid": "1"},
            "reportingController": "pydra.example.com",
            "reportingInstance": "node-1",
        }
        await client.create(f"/apis/events.k8s.io/v1/namespaces/{scratch.namespace}/events", event)
        listed = (await client.get(scratch.events, fieldSelector="involvedObject.name=claim")).body["items"]
        assert [(one["message"], one["involvedObject"]["uid"]) for one in listed] == [("no such device", "1")]


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


async def test_discovery_names_the_resources(api_server: ApiHandle) -> None:
    async with api_server.connect() as client:
        version = (await client.get("/version")).body
        assert int(version["minor"].rstrip("+")) >= 34
        resources = (await client.get("/apis/resource.k8s.io/v1")).body["resources"]
        found = {resource["name"]: resource["namespaced"] for resource in resources}
        assert found.items() >= {"resourceslices": False, "resourceclaims": True, "resourceclaims/status": True}.items()
        assert (await client.get("/readyz")).text == "ok"
