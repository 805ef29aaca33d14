"""What the agent publishes and tells: ResourceSlices, health, Events, metrics, /readyz, exit codes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.node import NODE, Agent, Node
from tests.behaviour.waiting import wait_for


def test_the_devices_are_published_in_a_pool_of_the_node(quiet: Node) -> None:
    slices = wait_for(quiet.api.slices, "a slice is published")
    assert {one["spec"]["nodeName"] for one in slices} == {one["spec"]["pool"]["name"] for one in slices} == {NODE}
    assert {"d0", "d47", "shared0"} <= set(quiet.api.devices())
    assert quiet.api.devices()["shared0"]["allowMultipleAllocations"] is True
    assert all(one["metadata"]["ownerReferences"][0]["kind"] == "Node" for one in slices)


def test_a_slice_that_somebody_deletes_or_edits_is_put_right(quiet: Node) -> None:
    (published,) = wait_for(quiet.api.slices, "a slice is published")
    quiet.api.delete_slice(published)
    wait_for(lambda: set(quiet.api.devices()) >= {"d0"}, "the slice is published again")
    (again,) = quiet.api.slices()
    again["spec"]["devices"] = again["spec"]["devices"][1:]
    quiet.api.replace_slice(again)
    wait_for(lambda: "d0" in quiet.api.devices(), "the edit is undone")


def test_prepared_claims_and_the_backends_own_samples_are_counted(quiet: Node, quiet_agent: Agent) -> None:
    series = 'pydra_checkpoint_records{driver="board.example.com",stage="completed"}'
    before = quiet_agent.metric(series)
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.kubelet.prepare_one(claim)
    wait_for(lambda: quiet_agent.metric(series) == before + 1, "the metric follows")
    quiet.kubelet.release(claim)
    wait_for(lambda: quiet_agent.metric(series) == before, "the metric follows")
    wait_for(lambda: quiet_agent.metric('pydra_backend_up{backend="board"}') == 1, "the metric follows")
    wait_for(lambda: quiet_agent.metric("pydra_board_temperature_celsius") == 40.0, "the backend's own sample")


@pytest.mark.parametrize("call", ["prepare", "unprepare"])
def test_a_claim_is_counted_as_in_flight_while_the_backend_is_at_work_on_it(
    quiet: Node, quiet_agent: Agent, call: str
) -> None:
    series = f'pydra_claim_operations_in_flight{{driver="board.example.com",operation="{call}"}}'
    claim = quiet.api.create_claim(quiet.board.device())
    if call == "unprepare":
        quiet.kubelet.prepare_one(claim)
    before = quiet_agent.metric(series)
    quiet.board.order(call, claim.name, "wait")
    start = {"prepare": quiet.kubelet.start_prepare, "unprepare": quiet.kubelet.start_unprepare}[call]
    in_flight = start(claim)
    quiet.board.wait_reached(call, claim.name)
    wait_for(lambda: quiet_agent.metric(series) == before + 1, "it is counted")
    quiet.board.dismiss(call, claim.name)
    in_flight.result()
    wait_for(lambda: quiet_agent.metric(series) == before, "it has ended")


def test_a_claim_that_fails_has_an_event_with_the_reason_and_one_that_succeeds_has_none(quiet: Node) -> None:
    broken, good = (quiet.api.create_claim(quiet.board.device()) for _ in range(2))
    quiet.board.order("prepare", broken.name, "refuse")
    quiet.kubelet.prepare(broken, good)
    (event,) = wait_for(lambda: quiet.api.events(broken), "an Event on the claim")
    assert "the board says no" in event["note"]
    assert event["type"] == "Warning"
    assert event["reason"] == "ClaimFailed"
    assert event["regarding"]["kind"] == "ResourceClaim"
    quiet.kubelet.refusal(broken)
    assert quiet.api.events(good) == []
    assert len(quiet.api.events(broken)) == 1, "a repetition is no second Event"


def test_a_claim_that_fails_is_logged_as_a_warning_with_its_reason(quiet: Node, quiet_agent: Agent) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.board.order("prepare", claim.name, "refuse")
    quiet.kubelet.refusal(claim)
    lines = wait_for(lambda: [one for one in quiet_agent.lines() if one.get("uid") == claim.uid], "a line of the claim")
    assert lines[0]["level"].lower() == "warning"
    assert lines[0]["reason"] == "ClaimFailed"


def test_an_unhealthy_device_is_tainted_and_reported_on_the_kubelets_health_stream_until_it_is_well(
    changing: Node, quiet_agent: Agent
) -> None:
    changing.board.set_devices("d0", "d1")
    wait_for(lambda: set(changing.api.devices()) == {"d0", "d1"}, "the devices are published")
    health = changing.kubelet.watch_health()
    assert {name: status for name, (status, _) in next(health).items()} == {"d0": "HEALTHY", "d1": "HEALTHY"}
    changing.board.set_devices("d1", d0="too hot")
    wait_for(lambda: next(health)["d0"] == ("UNHEALTHY", "too hot"), "the stream tells")
    wait_for(lambda: set(changing.api.taints()) == {"d0"}, "the device is tainted")
    (taint,) = changing.api.taints()["d0"]
    assert taint["effect"] == "NoSchedule"
    wait_for(
        lambda: quiet_agent.metric('pydra_devices{driver="board.example.com",health="Unhealthy"}') == 1,
        "the metric follows",
    )
    changing.board.set_devices("d0", "d1")
    wait_for(lambda: next(health)["d0"][0] == "HEALTHY", "the stream tells that it is well again")
    wait_for(lambda: not changing.api.taints(), "the taint goes")
    health.close()


def test_a_change_of_a_devices_health_is_an_event_on_the_node_with_the_backends_reason(changing: Node) -> None:
    def told() -> list[dict[str, Any]]:
        return [event for event in changing.api.events() if "hot-spot" in event["note"]]

    changing.board.set_devices("hot-spot", "d1")
    wait_for(lambda: set(changing.api.devices()) == {"hot-spot", "d1"}, "the devices are published")
    changing.board.set_devices("d1", **{"hot-spot": "too hot"})
    (event,) = wait_for(told, "an Event tells that it is unhealthy")
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("Node", NODE)
    assert (event["type"], event["reason"]) == ("Warning", "DeviceUnhealthy")
    assert event["note"] == "driver board.example.com: hot-spot: too hot"
    changing.board.set_devices("hot-spot", "d1")
    wait_for(lambda: len(told()) == 2, "an Event tells that it is healthy again")
    (event,) = (one for one in told() if one["reason"] == "DeviceHealthy")
    assert (event["type"], event["note"]) == ("Normal", "driver board.example.com: hot-spot")


def test_a_device_that_goes_and_one_that_comes_are_seen_without_a_restart(changing: Node) -> None:
    changing.board.set_devices("d0", "d1")
    wait_for(lambda: set(changing.api.devices()) == {"d0", "d1"}, "what is there is published")
    changing.board.set_devices("d1", "d2")
    wait_for(lambda: set(changing.api.devices()) == {"d1", "d2"}, "what is there now is published")


def test_one_device_that_breaks_the_apis_rules_is_left_out_and_reported_while_the_others_are_published(
    changing: Node,
) -> None:
    changing.board.set_devices("d0", "Not_A_Name")
    wait_for(lambda: set(changing.api.devices()) == {"d0"}, "the good device is published")
    events = wait_for(
        lambda: [event for event in changing.api.events() if "Not_A_Name" in event["note"]],
        "an Event tells of the other",
    )
    assert [event["regarding"]["kind"] for event in events] == ["Node"]


def test_at_rest_and_after_a_restart_nothing_is_written_to_the_api_server(node: Node) -> None:
    agent = node.serve("--rescan-period", "0.1", "--sweep-period", "0.1")
    claim = node.api.create_claim("d0")
    node.kubelet.prepare_one(claim)
    wait_for(node.api.slices, "the slices are published")
    (published,) = node.api.slices()
    node.board.wait_discovered(10)
    assert agent.stop() == 0
    node.serve("--rescan-period", "0.1", "--sweep-period", "0.1")
    node.board.wait_discovered(10)
    assert node.api.slices() == [published]
    writes = [call for call in node.server.requests.writes() if call in node.agent_calls()]
    assert [(call.verb, call.resource) for call in writes] == [("create", "resourceslices")]


def test_an_api_server_that_comes_late_is_waited_for_and_outlived_when_it_goes_and_comes_back(node: Node) -> None:
    node.board.set_devices("d0")
    with node.api_down():
        agent = node.start()
        node.kubelet.register()
        wait_for(node.board.discovered, "there is something to publish")
        assert not agent.has_ended()
    wait_for(node.api.slices, "the slices are published")
    held, fresh = node.api.create_claim("d0"), node.api.create_claim("d1")
    node.kubelet.prepare_one(held)
    with node.api_down():
        node.kubelet.prepare_one(held)
        node.kubelet.refusal(fresh)
        node.board.set_devices("d0", "d1")
    wait_for(lambda: set(node.api.devices()) == {"d0", "d1"}, "what changed meanwhile is published")
    node.kubelet.prepare_one(fresh)
    assert not agent.has_ended()


def test_why_a_backend_cannot_start_is_reported_by_readyz_as_by_the_log(node: Node) -> None:
    node.board.order("connect", "", "raise")
    agent = node.start()
    wait_for(lambda: "the board is on fire" in agent.get("/readyz")[1], "/readyz has the cause")
    agent.wait_log("the board is on fire")
    node.board.dismiss("connect", "")
    node.register(agent)
