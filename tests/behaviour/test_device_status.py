"""A claim's `status.devices` says what the backend says of its devices, again and again until it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.api import Json
from tests.behaviour.kubelet import Claim
from tests.behaviour.node import DRIVER, NODE, Agent, Node, run_node
from tests.behaviour.waiting import wait_for

ON = ("--device-status", "true", "--device-metadata", "true")
NETWORK = {"interfaceName": "net0"}


@pytest.fixture(scope="module")
def _quiet_agent() -> Iterator[tuple[Node, Agent]]:
    with run_node() as found:
        yield found, found.serve(*ON, backend="status_board:")


def read_statuses(node: Node, claim: Claim) -> list[Json]:
    return (node.api.read_claim(claim).get("status") or {}).get("devices") or []


def wait_status(node: Node, claim: Claim, what: str, holds: Callable[[list[Json]], Any]) -> list[Json]:
    return wait_for(lambda: (found := read_statuses(node, claim)) and holds(found) and found, what)


def wait_written(node: Node, claim: Claim) -> Json:
    (status,) = wait_status(node, claim, "the status is written", lambda found: True)
    return status


def has_address(address: str, found: list[Json]) -> bool:
    return found[0].get("networkData") == {"interfaceName": "net1", "ips": [address]}


def has_status(status: str, found: list[Json]) -> bool:
    return bool(found[0]["conditions"][0]["status"] == status)


def test_what_prepare_says_is_written_and_removed_when_the_claim_is_unprepared(quiet: Node) -> None:
    name = quiet.board.device()
    claim = quiet.api.create_claim(name)
    (device,) = quiet.kubelet.prepare_one(claim)
    status = wait_written(quiet, claim)
    ready, healthy = status.pop("conditions")
    assert ready.pop("lastTransitionTime")
    assert healthy.pop("lastTransitionTime")
    assert ready == {"type": "Ready", "status": "True", "reason": "Powered", "message": "It has power."}
    assert healthy == {"type": "Healthy", "status": "True", "reason": "DeviceHealthy", "message": ""}
    assert status == {
        "driver": DRIVER,
        "pool": NODE,
        "device": name,
        "data": {"board": claim.name},
        "networkData": NETWORK,
    }
    (mount,) = [mount for edits in quiet.cdi_edits(device) for mount in edits.get("mounts", ())]
    text = Path(mount["hostPath"]).read_text()
    documents, _ = json.JSONDecoder().raw_decode(text)
    assert documents["requests"][0]["devices"][0]["networkData"] == NETWORK
    quiet.kubelet.unprepare(claim)
    wait_for(lambda: not read_statuses(quiet, claim), "the status is removed")


def test_what_discover_says_replaces_what_prepare_said_and_keeps_the_time_of_the_condition(quiet: Node) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.kubelet.prepare_one(claim)
    before = wait_written(quiet, claim)
    for address in ("192.0.2.5/24", "2001:db8::5/64"):
        quiet.board.set_address(claim, address)
        (now,) = wait_status(quiet, claim, "the address", partial(has_address, address))
        assert now["conditions"] == before["conditions"]
        assert "data" not in now


def test_without_the_setting_no_status_is_written_and_what_discover_warns_of_is_an_event_all_the_same(
    node: Node,
) -> None:
    node.serve(backend="status_board:")
    claim = node.api.create_claim("d0")
    node.kubelet.prepare_one(claim)
    node.board.set_address(claim, "2001:db8::5/64")
    (event,) = wait_for(lambda: node.api.events(claim), "the Event")
    assert (event["reason"], event["type"]) == ("DeviceWarning", "Warning")
    assert event["note"] == f"driver {DRIVER}: 2001:db8::5/64 is for documentation only"
    node.kubelet.unprepare(claim)
    assert node.agent_calls("patch", "resourceclaims") == []


def test_a_held_device_says_in_its_claim_that_it_is_not_healthy_any_more(node: Node) -> None:
    node.serve(*ON)
    claim = node.api.create_claim("d0")
    node.kubelet.prepare_one(claim)
    (before,) = wait_written(node, claim)["conditions"]
    assert (before["type"], before["status"]) == ("Healthy", "True")
    for devices, status, reason, message in (
        ({"d0": "fan stuck"}, "False", "DeviceUnhealthy", "fan stuck"),
        ({}, "Unknown", "HealthUnknown", "the node does not publish this device any more"),
    ):
        node.board.set_devices("d1", **devices)
        (now,) = wait_status(node, claim, f"the condition is {status}", partial(has_status, status))
        (after,) = now["conditions"]
        assert after.pop("lastTransitionTime")
        assert after == {"type": "Healthy", "status": status, "reason": reason, "message": message}


def test_an_invalid_status_from_discover_is_left_out_and_the_device_stays_published(quiet: Node) -> None:
    name = quiet.board.device()
    claim = quiet.api.create_claim(name)
    quiet.kubelet.prepare_one(claim)
    before = wait_written(quiet, claim)
    quiet.board.set_address(claim, "192.0.2.5")
    said = "'192.0.2.5' is not an address with a prefix length, such as 192.0.2.5/24"
    wait_for(lambda: [one for one in quiet.api.events() if said in one["note"]], "an Event says what is wrong")
    assert read_statuses(quiet, claim) == [before]
    assert name in quiet.api.devices()


def test_other_drivers_entries_stay(quiet: Node) -> None:
    other = {"driver": "other.example.com", "pool": "pool", "device": "theirs"}
    claim = quiet.api.create_claim(quiet.board.device(), other)
    theirs = {**other, "data": {"by": "them"}}
    quiet.api.add_device_status(claim, theirs)
    quiet.kubelet.prepare_one(claim)
    wait_status(quiet, claim, "both entries", lambda found: len(found) == 2)
    quiet.kubelet.unprepare(claim)
    (left,) = wait_status(quiet, claim, "one entry is left", lambda found: len(found) == 1)
    assert left["data"] == {"by": "them"}


IMMUTABLE = '{"message": "ResourceClaim \\"c\\" is invalid: status.allocation: Invalid value: {}: field is immutable"}'


@pytest.mark.parametrize(
    ("status", "body", "advice"),
    [
        (403, None, "the chart gives with settings.deviceStatus"),
        (422, IMMUTABLE, "whose parameters were written with spaces"),
    ],
)
def test_a_status_that_is_refused_is_reported_on_the_claim_and_written_later(
    quiet: Node, quiet_agent: Agent, status: int, body: str | None, advice: str
) -> None:
    failed = f'pydra_claim_statuses_total{{driver="{DRIVER}",result="failed"}}'
    before = quiet_agent.metric(failed)
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.api_fault(verb="patch", resource="resourceclaims", name=claim.name, status=status, body=body, times=1)
    quiet.kubelet.prepare_one(claim)
    wait_written(quiet, claim)
    events = wait_for(lambda: quiet.api.events(claim), "the Event")
    (event,) = [one for one in events if one["reason"] == "DeviceStatusNotWritten"]
    assert advice in event["note"]
    assert quiet_agent.metric(failed) == before + 1


def test_a_status_is_written_at_once_although_others_write_the_claim_meanwhile(quiet: Node, quiet_agent: Agent) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.api_fault(verb="patch", resource="resourceclaims", name=claim.name, status=409, times=3)
    quiet.kubelet.prepare_one(claim)
    wait_written(quiet, claim)
    assert "DeviceStatusNotWritten" not in [one["reason"] for one in quiet.api.events(claim)]


def test_a_claim_of_the_same_name_gets_no_status_of_the_one_before(node: Node) -> None:
    agent = node.serve(*ON, backend="status_board:")
    claim = node.api.create_claim(node.board.device())
    node.api_fault(verb="patch", resource="resourceclaims", status=500, times=None)
    node.kubelet.prepare_one(claim)
    agent.wait_log("is not written")
    node.api.delete_claim(claim)
    successor = node.api.create_claim(node.board.device(), name=claim.name)
    given_up = f'pydra_claim_statuses_total{{driver="{DRIVER}",result="ok"}}'
    wait_for(lambda: agent.metric(given_up) == 1, "the agent finds another claim, and leaves it alone")
    assert read_statuses(node, successor) == []


def test_the_next_instance_removes_what_a_killed_one_wrote_of_a_claim(node: Node) -> None:
    agent = node.serve(*ON, backend="status_board:")
    claim = node.api.create_claim(node.board.device())
    node.kubelet.prepare_one(claim)
    wait_written(node, claim)
    agent.kill()
    node.serve(*ON, backend="status_board:")
    wait_written(node, claim)
    node.kubelet.unprepare(claim)
    wait_for(lambda: not read_statuses(node, claim), "the status is removed")
