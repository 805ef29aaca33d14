"""How the kubelet finds the agent, and how an agent leaves."""

from __future__ import annotations

import os
import shutil
import stat

import grpc
import pytest

from tests.behaviour.kubelet import parse_answers
from tests.behaviour.node import Agent, Board, Node
from tests.behaviour.waiting import wait_for


def test_the_plugin_says_who_it_is_and_where_it_serves(quiet: Node) -> None:
    info = quiet.kubelet.get_info(quiet.kubelet.sockets()[0])
    assert (info.type, info.name) == ("DRAPlugin", "board.example.com")
    assert info.endpoint == str(quiet.plugins / "board.example.com" / "dra.sock")
    assert info.versions[0] == "v1.DRAPlugin"
    assert {"v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"} < set(info.versions)


def test_sockets_and_the_plugins_directory_are_closed_to_other_users(quiet: Node) -> None:
    info = quiet.kubelet.get_info(quiet.kubelet.sockets()[0])
    for socket in (info.socket, info.endpoint):
        assert stat.S_IMODE(os.stat(socket).st_mode) & 0o077 == 0
    assert stat.S_IMODE(os.stat(os.path.dirname(info.endpoint)).st_mode) & 0o022 == 0


def test_a_refused_registration_is_reported_by_readyz_until_the_kubelet_accepts(
    quiet: Node, quiet_agent: Agent
) -> None:
    (socket,) = quiet.kubelet.sockets()
    quiet.kubelet.notify(socket, registered=False, error="wrong moon")
    wait_for(lambda: "wrong moon" in quiet_agent.get("/readyz")[1], "/readyz tells of the refusal")
    assert quiet_agent.get("/readyz")[0] == 503
    quiet.kubelet.notify(socket, registered=True)
    quiet_agent.wait_ready()
    wait_for(lambda: quiet_agent.metric('pydra_registered{driver="board.example.com"}') == 1, "the metric follows")


def test_before_the_kubelet_has_registered_it_readyz_says_so(node: Node) -> None:
    agent = node.start()
    wait_for(lambda: "has not registered it yet" in agent.get("/readyz")[1], "/readyz says what is missing")
    assert agent.get("/readyz")[0] == 503


def test_an_agent_that_is_asked_to_stop_lets_the_call_in_flight_end_and_leaves_no_socket(node: Node) -> None:
    agent = node.serve()
    assert node.kubelet.plugin is not None
    claim = node.api.create_claim(node.board.device())
    node.board.order("prepare", claim.name, "wait")
    call = node.kubelet.start_prepare(claim)
    node.board.wait_reached("prepare", claim.name)
    agent.process.terminate()
    agent.wait_log("SIGTERM")
    assert not call.done()
    node.board.dismiss("prepare", claim.name)
    assert parse_answers(call.result())[claim.uid].error == ""
    assert agent.wait_end() == 0
    assert agent.lines()[-1]["message"] == "stopped; what is prepared stays prepared"
    assert node.kubelet.sockets() == []
    assert not os.path.exists(node.kubelet.plugin.endpoint)


def test_a_second_signal_to_stop_does_not_wait_for_calls(node: Node) -> None:
    agent = node.serve()
    claim = node.api.create_claim(node.board.device())
    node.board.order("prepare", claim.name, "wait")
    call = node.kubelet.start_prepare(claim)
    node.board.wait_reached("prepare", claim.name)
    agent.process.terminate()
    agent.wait_log("SIGTERM")
    agent.process.terminate()
    assert agent.wait_end() == 1
    agent.wait_log("calls in flight are cancelled")
    with pytest.raises(grpc.RpcError):
        call.result()


def test_two_instances_with_pod_uids_serve_at_once_and_know_of_each_others_claims(node: Node) -> None:
    device = node.board.device()
    first, second = node.api.create_claim(device), node.api.create_claim(device)
    slow = node.api.create_claim(node.board.device())
    old = node.serve("--pod-uid", "pod-1", "--prepare-deadline", "40")
    (old_socket,) = node.kubelet.sockets()
    devices = node.kubelet.prepare_one(first)
    node.board.order("prepare", slow.name, "wait")
    call = node.kubelet.start_prepare(slow)
    node.board.wait_reached("prepare", slow.name)
    new = node.start("--pod-uid", "pod-2")
    node.kubelet.register(not_at=(old_socket,))
    assert len(node.kubelet.sockets()) == 2
    assert node.kubelet.prepare_one(first) == devices
    assert device in node.kubelet.refusal(second)
    assert not call.done(), "a slow claim of the old instance keeps none of the new one waiting"
    node.board.dismiss("prepare", slow.name)
    call.result()
    assert old.stop() == 0
    assert node.kubelet.prepare_one(first) == devices
    node.kubelet.release(first)
    node.kubelet.prepare_one(second)
    assert node.board.steps(first) == ["prepare", "prepared", "unprepare", "unprepared"]
    assert new.stop() == 0


def test_a_registration_socket_that_is_removed_under_the_agent_comes_back_and_is_registered_again(
    quiet: Node, quiet_agent: Agent
) -> None:
    registered = 'pydra_registered{driver="board.example.com"}'
    (socket,) = quiet.kubelet.sockets()
    os.unlink(socket)
    wait_for(lambda: "has not registered it yet" in quiet_agent.get("/readyz")[1], "/readyz says what is missing")
    assert os.path.exists(socket)
    wait_for(lambda: quiet_agent.metric(registered) == 0, "the metric follows")
    quiet.kubelet.close()
    assert quiet.kubelet.register().name == "board.example.com"
    quiet_agent.wait_ready()
    wait_for(lambda: quiet_agent.metric(registered) == 1, "the metric follows")


def test_claims_are_prepared_after_the_plugins_directory_was_wiped_under_the_agent(
    quiet: Node, quiet_agent: Agent
) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    assert quiet.kubelet.plugin is not None
    endpoint = quiet.kubelet.plugin.endpoint
    shutil.rmtree(os.path.dirname(endpoint))
    wait_for(lambda: os.path.exists(endpoint), "the service socket is there again")
    quiet.register(quiet_agent)
    quiet.kubelet.prepare_one(claim)
    quiet.kubelet.release(claim)
    assert quiet.is_clean(claim)


def test_an_instance_that_is_asked_to_stop_publishes_no_more_beside_its_successor(node: Node) -> None:
    old = node.serve("--pod-uid", "pod-1")
    slow = node.api.create_claim("d0", name="slow")
    node.board.order("prepare", "slow", "wait")
    call = node.kubelet.start_prepare(slow)
    node.board.wait_reached("prepare", "slow")
    other = Board(node.root / "other")
    other.set_devices("e0")
    old.process.terminate()
    old.wait_log("SIGTERM")
    node.start("--pod-uid", "pod-2", "--rescan-period", "0.1", BOARD_DIRECTORY=str(other.path))
    wait_for(lambda: set(node.api.devices()) == {"e0"}, "the successor publishes")
    other.wait_discovered(5)
    published = node.api.slices()
    node.board.set_devices("d0", "d1")
    other.wait_discovered(5)
    assert node.api.slices() == published
    node.board.dismiss("prepare", "slow")
    call.result()
