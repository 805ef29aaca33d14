"""How any Kubernetes API server creates, changes and deletes; with KUBECONFIG set, asked of a real one."""

from __future__ import annotations

import re

import pytest

from answers import assert_refused, causes, connected
from bodies import allocation, claim_body, pod_body, slice_body
from tests.integration.api_handle import SLICES, ApiHandle


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


async def test_a_strategic_patch_joins_lists_by_their_key(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.pods, pod_body())
        path = f"{scratch.pods}/pod/status"
        for type_ in ("example.com/one", "example.com/two"):
            condition = {"type": type_, "status": "True"}
            await client.patch(path, {"status": {"conditions": [condition]}}, "strategic-merge")
        conditions = (await client.get(f"{scratch.pods}/pod")).body["status"]["conditions"]
        assert {condition["type"] for condition in conditions} >= {"example.com/one", "example.com/two"}


async def test_fields_that_a_manager_no_longer_applies_go_and_those_of_others_stay(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body())
        path = f"{scratch.claims}/claim"
        await client.patch(path, {"metadata": {"labels": {"written": "1"}}})
        await client.apply(path, "one", {"metadata": {"labels": {"mine": "1", "both": "1"}}})
        await client.apply(path, "two", {"metadata": {"labels": {"both": "1", "theirs": "1"}}})
        answer = await client.apply(path, "one", {"metadata": {}})
        assert answer.body["metadata"]["labels"] == {"written": "1", "both": "1", "theirs": "1"}


async def test_statuses_of_a_claims_devices_are_applied_one_by_one(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body())
        path = f"{scratch.claims}/claim/status"
        results = [{"request": "gpu", "driver": f"{name}.example.com", "pool": "p", "device": "d"} for name in "ab"]
        await client.patch(path, {"status": {"allocation": {"devices": {"results": results}}}})
        entries = {
            name: {"driver": f"{name}.example.com", "pool": "p", "device": "d", "data": {"by": name}} for name in "ab"
        }
        for name, entry in entries.items():
            await client.apply(path, name, {"status": {"devices": [entry]}})
        answer = await client.apply(path, "b", {"status": {"devices": [{**entries["b"], "data": {"by": "c"}}]}})
        shown = [(one["driver"], one["data"]) for one in answer.body["status"]["devices"]]
        assert shown == [("a.example.com", {"by": "a"}), ("b.example.com", {"by": "c"})]
        answer = await client.apply(path, "a", {"status": {}})
        assert [one["driver"] for one in answer.body["status"]["devices"]] == ["b.example.com"]


async def test_applying_what_another_manager_applies_differently_is_a_conflict_without_force(
    api_server: ApiHandle,
) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body())
        path = f"{scratch.claims}/claim"
        await client.apply(path, "one", {"metadata": {"labels": {"a": "1"}}})
        refused = await client.apply(path, "two", {"metadata": {"labels": {"a": "2"}}})
        assert_refused(refused, 409, "Conflict")
        assert 'conflict with "one": .metadata.labels.a' in refused.body["message"]
        forced = await client.apply(path, "two", {"metadata": {"labels": {"a": "2"}}}, force="true")
        assert forced.body["metadata"]["labels"] == {"a": "2"}


async def test_applying_to_an_object_of_another_uid_or_to_the_status_of_none_is_refused(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body())
        other = {"metadata": {"uid": "00000000-0000-4000-8000-000000000000", "labels": {"a": "1"}}}
        assert_refused(await client.apply(f"{scratch.claims}/claim", "one", other), 422, "Invalid")
        assert_refused(await client.apply(f"{scratch.claims}/none", "one", other), 409, "Conflict")
        assert (await client.apply(f"{scratch.claims}/none/status", "one", {"status": {}})).status == 404
        assert (await client.apply(f"{scratch.claims}/none", "one", claim_body("none"))).status == 201
        assert_refused(await client.apply(f"{scratch.claims}/claim", "", {}), 422, "Invalid")


async def test_a_patch_in_an_unknown_form_is_refused(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body())
        assert_refused(await client.patch(f"{scratch.claims}/claim", {}, "guess"), 415, "UnsupportedMediaType")


async def test_a_body_that_contradicts_its_path_is_refused(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body())
        renamed = await client.request("PUT", f"{scratch.claims}/claim", claim_body("other"))
        assert_refused(renamed, 400, "BadRequest")
        assert "does not match the name on the URL" in renamed.body["message"]
        assert_refused(await client.request("POST", scratch.claims, pod_body()), 400, "BadRequest")


async def test_a_dry_run_answers_and_stores_nothing(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        answer = await client.request("POST", scratch.claims, claim_body(), params={"dryRun": "All"})
        assert answer.status == 201
        assert (await client.get(f"{scratch.claims}/claim")).status == 404


async def test_a_pod_without_a_node_is_deleted_at_once(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        created = await client.create(scratch.pods, pod_body())
        assert created["status"]["phase"] == "Pending"
        assert created["spec"]["terminationGracePeriodSeconds"] == 30
        assert (await client.request("DELETE", f"{scratch.pods}/pod")).status == 200
        assert (await client.get(f"{scratch.pods}/pod")).status == 404
