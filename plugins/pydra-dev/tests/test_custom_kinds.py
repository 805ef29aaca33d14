"""The embedded API server serves kinds of CustomResourceDefinitions by their schemas, as a real one does."""

from __future__ import annotations

from typing import Any

import pytest

from pydra_dev.apiserver.custom_kinds import parse_definition
from pydra_dev.apiserver.server import serve_api
from tests.integration.api_handle import ApiHandle

JsonObject = dict[str, Any]
RACKS = "/apis/example.com/v1/namespaces/default/racks"
SPEC = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1},
        "owner": {"type": "string", "maxLength": 3},
        "mode": {"type": "string", "enum": ["Open", "Shut"], "default": "Open"},
    },
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "spec is immutable"}],
}
STATUS = {
    "type": "object",
    "properties": {
        "slots": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
        }
    },
}


def definition(spec: JsonObject = SPEC) -> JsonObject:
    schema = {"type": "object", "required": ["spec"], "properties": {"spec": spec, "status": STATUS}}
    version = {"name": "v1", "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}}
    names = {"plural": "racks", "singular": "rack", "kind": "Rack"}
    return {"spec": {"group": "example.com", "names": names, "scope": "Namespaced", "versions": [version]}}


def rack(**spec: Any) -> JsonObject:
    return {"apiVersion": "example.com/v1", "kind": "Rack", "metadata": {"name": "r"}, "spec": spec}


async def test_objects_are_pruned_filled_in_and_have_a_status_of_their_own() -> None:
    async with serve_api(definitions=[definition()]) as server, ApiHandle(server.kubeconfig, server).connect() as raw:
        made = await raw.create(RACKS, {**rack(size=2, colour="red"), "status": {"slots": [{"name": "a"}]}})
        assert made["spec"] == {"size": 2, "mode": "Open"}
        assert "status" not in made
        assert made["metadata"]["generation"] == 1
        answer = await raw.patch(f"{RACKS}/r/status", {"status": {"slots": [{"name": "a"}]}, "spec": {"size": 3}})
        assert answer.body["status"] == {"slots": [{"name": "a"}]}
        assert (answer.body["spec"]["size"], answer.body["metadata"]["generation"]) == (2, 1)


@pytest.mark.parametrize("missing", ["Kind", "apiVersion"])
async def test_an_object_that_does_not_say_its_kind_is_refused(missing: str) -> None:
    async with serve_api(definitions=[definition()]) as server, ApiHandle(server.kubeconfig, server).connect() as raw:
        body = {key: value for key, value in rack(size=2).items() if key.lower() != missing.lower()}
        answer = await raw.request("POST", RACKS, body)
        assert (answer.status, answer.body["reason"]) == (400, "BadRequest")
        assert f"(must be of type Rack): Object '{missing}' is missing" in answer.body["message"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (rack(), "spec.size: Required value"),
        (rack(size=0), "greater than or equal to 1"),
        (rack(size=2, owner="them"), "spec.owner in body should be at most 3 chars long"),
        (rack(size="2"), "must be of type integer"),
        (rack(size=True), "must be of type integer"),
        (rack(size=2, mode="Ajar"), 'supported values: "Open", "Shut"'),
        ({key: value for key, value in rack().items() if key != "spec"}, "spec: Required value"),
    ],
)
async def test_an_object_that_breaks_the_schema_is_refused(body: JsonObject, why: str) -> None:
    async with serve_api(definitions=[definition()]) as server, ApiHandle(server.kubeconfig, server).connect() as raw:
        answer = await raw.request("POST", RACKS, body)
        assert answer.status == 422
        assert why in answer.body["message"]


async def test_updates_meet_the_rules_about_the_old_object_and_list_keys() -> None:
    async with serve_api(definitions=[definition()]) as server, ApiHandle(server.kubeconfig, server).connect() as raw:
        await raw.create(RACKS, rack(size=2))
        refused = await raw.patch(f"{RACKS}/r", {"spec": {"size": 3}})
        assert (refused.status, "spec is immutable" in refused.body["message"]) == (422, True)
        twice = {"status": {"slots": [{"name": "a"}, {"name": "a"}]}}
        refused = await raw.patch(f"{RACKS}/r/status", twice)
        assert (refused.status, "Duplicate value" in refused.body["message"]) == (422, True)


def test_a_definition_with_a_keyword_that_is_not_implemented_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Rack\.spec: keywords that are not supported here: oneOf"):
        parse_definition(definition({**SPEC, "oneOf": []}))
