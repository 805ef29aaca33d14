"""How any Kubernetes API server lists, selects and tells what it serves; with KUBECONFIG set, asked of a real one."""

from __future__ import annotations

from answers import assert_refused, connected
from bodies import claim_body, slice_body
from tests.integration.api_handle import SLICES, ApiHandle


async def test_a_missing_object_is_named_in_the_refusal(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        answer = await client.get(f"{scratch.claims}/nothing")
        assert_refused(answer, 404, "NotFound")
        assert answer.body["message"] == 'resourceclaims.resource.k8s.io "nothing" not found'


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


async def test_a_verb_that_a_resource_lacks_is_refused(api_server: ApiHandle) -> None:
    async with api_server.connect() as client:
        assert_refused(await client.request("PUT", SLICES, {}), 405, "MethodNotAllowed")
        assert (await client.get("/apis/resource.k8s.io/v1/unicorns")).status == 404


async def test_a_name_that_could_be_a_path_is_refused(api_server: ApiHandle) -> None:
    async with api_server.connect() as client:
        answer = await client.get(f"{SLICES}/a%252fb")
        assert_refused(answer, 400, "BadRequest")
        assert answer.body["message"] == "Name parameter invalid: \"a%2fb\": may not contain '%'"


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


async def test_discovery_names_the_resources(api_server: ApiHandle) -> None:
    async with api_server.connect() as client:
        version = (await client.get("/version")).body
        assert int(version["minor"].rstrip("+")) >= 34
        resources = (await client.get("/apis/resource.k8s.io/v1")).body["resources"]
        found = {resource["name"]: resource["namespaced"] for resource in resources}
        assert found.items() >= {"resourceslices": False, "resourceclaims": True, "resourceclaims/status": True}.items()
        assert (await client.get("/readyz")).text == "ok"
