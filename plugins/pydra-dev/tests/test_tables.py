"""What `kubectl get` shows and `kubectl create` sends; with KUBECONFIG set, asked of a real server."""

from __future__ import annotations

import re
from typing import Any

import pytest

from answers import connected
from bodies import allocation, claim_body, pod_body, slice_body
from pydra_dev.api.kinds import EVENTS, NODES, PODS, Kind
from pydra_dev.apiserver.tables import build_table, describe_age
from tests.integration.api_handle import SLICES, Answer, ApiHandle

TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
AGE = re.compile(r"\d+s")


def read_rows(table: dict[str, Any], *, wide: bool = False) -> list[list[str]]:
    """The names of the columns and the cells below them."""
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    shown = [at for at, column in enumerate(table["columnDefinitions"]) if wide or not column["priority"]]
    rows = [[column["name"] for column in table["columnDefinitions"]], *(row["cells"] for row in table["rows"])]
    return [["AGE" if AGE.fullmatch(str(row[at])) else row[at] for at in shown] for row in rows]


async def test_a_list_is_shown_as_a_table_of_the_kinds_columns(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body("one"))
        answer = await client.request("GET", scratch.claims, headers=TABLE)
        assert read_rows(answer.body) == [["Name", "State", "Age"], ["one", "pending", "AGE"]]
        formats = [column["format"] for column in answer.body["columnDefinitions"]]
        assert formats == ["name", "", ""], "by which kubectl finds the name, to put the kind before it"
        (row,) = answer.body["rows"]
        assert row["object"]["kind"] == "PartialObjectMetadata"
        assert row["object"]["metadata"]["namespace"] == scratch.namespace
        assert answer.body["metadata"]["resourceVersion"].isdecimal(), "from which kubectl watches"
        claim = (await client.get(f"{scratch.claims}/one")).body
        claim["status"] = {"allocation": allocation(scratch)}
        assert (await client.request("PUT", f"{scratch.claims}/one/status", claim)).status == 200
        one: Answer = await client.request("GET", f"{scratch.claims}/one", headers=TABLE)
        assert read_rows(one.body)[1:] == [["one", "allocated", "AGE"]]
        whole = await client.request("GET", f"{scratch.claims}/one?includeObject=Object", headers=TABLE)
        assert whole.body["rows"][0]["object"]["kind"] == "ResourceClaim"


async def test_slices_and_namespaces_have_the_usual_columns(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(SLICES, slice_body(scratch))
        path = f"{SLICES}?fieldSelector=spec.driver={scratch.driver}"
        names, cells = read_rows((await client.request("GET", path, headers=TABLE)).body)
        assert names == ["Name", "Node", "Driver", "Pool", "Age"]
        assert cells[1:] == [scratch.node, scratch.driver, scratch.node, "AGE"]
        answer = await client.request("GET", f"/api/v1/namespaces/{scratch.namespace}", headers=TABLE)
        assert read_rows(answer.body) == [["Name", "Status", "Age"], [scratch.namespace, "Active", "AGE"]]


async def test_a_pod_that_waits_is_shown_as_pending(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.pods, pod_body("p"))
        names, cells = read_rows((await client.request("GET", scratch.pods, headers=TABLE)).body)
        assert names == ["Name", "Ready", "Status", "Restarts", "Age"]
        assert cells == ["p", "0/1", "Pending", "0", "AGE"]


async def test_a_watch_shows_each_change_as_a_table_of_one_row(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body("one"))
        async with client.watch(scratch.claims, TABLE["Accept"]) as events:
            event = await anext(events)
        assert event["type"] == "ADDED"
        assert event["object"]["kind"] == "Table"
        assert [row["cells"] for row in event["object"]["rows"]] == [["one", "pending", "0s"]]


async def test_an_object_in_protobuf_is_refused_with_the_way_out(api_server: ApiHandle) -> None:
    assert api_server.embedded
    async with connected(api_server) as (client, _):
        headers = {"Content-Type": "application/vnd.kubernetes.protobuf"}
        answer = await client.request("POST", "/api/v1/namespaces", b"k8s\x00", headers=headers)
        assert (answer.status, "kubectl apply -f FILE" in answer.body["message"]) == (400, True)


async def test_the_log_of_a_simulated_container_is_refused_with_the_reason(api_server: ApiHandle) -> None:
    assert api_server.embedded
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.pods, pod_body("p"))
        answer = await client.get(f"{scratch.pods}/p/log")
        assert answer.status == 501
        assert "containers are simulated" in answer.body["message"]


NOW = "2026-01-02T00:00:00Z"
MADE = {"name": "x", "creationTimestamp": "2026-01-01T23:59:55Z"}
POD = {"metadata": MADE, "spec": {"containers": [{}, {}], "nodeName": "n"}, "status": {"phase": "Running"}}


def pod(phase: str, *, ready: int = 0, **metadata: str) -> dict[str, Any]:
    containers = [{"ready": number < ready} for number in range(2)]
    return {**POD, "metadata": {**MADE, **metadata}, "status": {"phase": phase, "containerStatuses": containers}}


READY = {"conditions": [{"type": "Ready", "status": "True"}]}
EVENT = {
    "apiVersion": "v1",
    "metadata": MADE,
    "involvedObject": {"kind": "Pod", "name": "p"},
    "type": "Warning",
    "reason": "R",
    "message": "m\n",
    "eventTime": "2026-01-01T23:00:00.000000Z",
    "series": {"count": 3, "lastObservedTime": "2026-01-01T23:58:00.000000Z"},
}


@pytest.mark.parametrize(
    ("kind", "obj", "cells"),
    [
        pytest.param(PODS, pod("Running", ready=2), "x 2/2 Running 0 5s", id="running"),
        pytest.param(PODS, pod("Succeeded", deletionTimestamp=NOW), "x 0/2 Completed 0 5s", id="completed"),
        pytest.param(PODS, pod("Running", deletionTimestamp=NOW), "x 0/2 Terminating 0 5s", id="terminating"),
        pytest.param(NODES, {"metadata": MADE, "spec": {}, "status": READY}, "x Ready 5s ", id="ready node"),
        pytest.param(
            NODES,
            {"metadata": MADE, "spec": {"unschedulable": True}},
            "x NotReady,SchedulingDisabled 5s ",
            id="cordoned",
        ),
        pytest.param(EVENTS, EVENT, "2m Warning R pod/p m", id="event that repeats"),
    ],
)
def test_cells_say_what_the_original_says(kind: Kind, obj: dict[str, Any], cells: str) -> None:
    table = build_table(kind, [obj], {}, now=NOW, include="")
    columns = [column["priority"] for column in table["columnDefinitions"]]
    assert " ".join(cell for cell, wide in zip(table["rows"][0]["cells"], columns, strict=True) if not wide) == cells


@pytest.mark.parametrize(
    ("since", "age"),
    [
        (None, "<unknown>"),
        ("2026-01-01T23:58:01Z", "119s"),
        ("2026-01-01T23:56:40Z", "3m"),
        ("2026-01-01T20:30:00Z", "3h"),
        ("2026-01-01T00:00:00Z", "24h"),
        ("2025-11-02T00:00:00Z", "61d"),
        ("2026-01-02T00:00:05Z", "0s"),
    ],
)
def test_an_age_is_as_long_as_it_needs_to_be(since: str | None, age: str) -> None:
    assert describe_age(since, NOW) == age
