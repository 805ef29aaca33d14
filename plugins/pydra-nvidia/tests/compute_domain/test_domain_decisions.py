"""What the controller of ComputeDomains decides, with a real API server's rules and without I/O."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from domain_cluster import OWN, SETTINGS, Cluster
from pydra.controllers import NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES
from pydra_dev.api.kinds import PODS as POD_KIND
from pydra_dev.api.kinds import RESOURCE_CLAIM_TEMPLATES as TEMPLATE_KIND
from pydra_nvidia.compute_domain.controller.object_fields import (
    CLIQUES,
    COMPUTE_DOMAINS,
    DAEMON_SETS,
    get_label,
    is_status_change,
)
from pydra_nvidia.compute_domain.names import DOMAIN_LABEL, FINALIZER

RACK = "5a4f3c1e-9d27-4b86-a0c5-7e1f2b3d4c5a.2"
NODES_OF_RACK = dict.fromkeys(("a", "b", "c", "d"), RACK)


def start(*nodes: str, cluster: Cluster | None = None) -> tuple[Cluster, str]:
    """A domain with a pod on each of these nodes, and ready daemons."""
    cluster = cluster or Cluster(NODES_OF_RACK)
    uid = cluster.create_domain("cd")
    for node in nodes:
        cluster.start_pod(f"pod-{node}", uid, node)
    cluster.settle()
    for node in nodes:
        cluster.set_ready(node, ready=True)
    cluster.settle()
    return cluster, uid


@pytest.mark.parametrize("mode", ["Single", "All"])
def test_a_domain_gets_nvidias_objects(mode: str) -> None:
    cluster = Cluster({})
    channel = {"resourceClaimTemplate": {"name": "channels"}, "allocationMode": mode}
    uid = cluster.create_domain("cd", channel=channel)
    cluster.settle()
    workload, daemon = cluster.list(RESOURCE_CLAIM_TEMPLATES)
    assert (daemon["metadata"]["namespace"], daemon["metadata"]["name"]) == (OWN, f"computedomain-daemon-{uid}")
    assert (workload["metadata"]["namespace"], workload["metadata"]["name"]) == ("default", "channels")
    [daemons] = cluster.list(DAEMON_SETS)
    assert daemons["metadata"]["name"] == f"computedomain-daemon-{uid}"
    assert daemons["spec"]["template"]["spec"]["nodeSelector"] == {"resource.nvidia.com/computeDomain": uid}
    target = "resource.nvidia.com/computeDomainTarget"
    expected = (
        (daemon, {target: "Daemon"}),
        (workload, {target: "Workload"}),
        (daemons, {}),
        (cluster.domain("cd"), {}),
    )
    for found, labels in expected:
        assert found["metadata"]["finalizers"] == ["resource.nvidia.com/computeDomain"]
        if found["kind"] != "ComputeDomain":
            assert found["metadata"]["labels"] == {"resource.nvidia.com/computeDomain": uid, **labels}
    [request] = workload["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "compute-domain-default-channel.nvidia.com"
    [config] = workload["spec"]["spec"]["devices"]["config"]
    assert config["opaque"]["parameters"] == {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": uid,
        "allocationMode": mode,
    }


def test_daemons_are_root_whatever_user_the_image_has_since_their_files_are_roots() -> None:
    cluster = Cluster({})
    cluster.create_domain("cd")
    cluster.settle()
    [daemons] = cluster.list(DAEMON_SETS)
    assert daemons["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == 0


def test_a_domain_without_a_node_is_not_ready() -> None:
    cluster, _ = start()
    assert cluster.domain("cd")["status"]["status"] == "NotReady"
    assert cluster.condition("cd") == ("NoNodes", "no pod with a channel of this domain is allocated to a node yet")


def test_an_allocated_channel_brings_label_daemon_clique_and_readiness() -> None:
    cluster, uid = start("a", "b")
    assert cluster.labels() == {"a": uid, "b": uid}
    assert list(cluster.indexes()) == [(f"{uid}.{RACK}", "a", 0), (f"{uid}.{RACK}", "b", 1)]
    domain = cluster.domain("cd")
    assert cluster.condition("cd") == ("NodesReady", "all 2 nodes are ready")
    assert (domain["status"]["status"], domain["status"]["summary"]) == ("Ready", "2/2")
    assert domain["status"]["observedGeneration"] == domain["metadata"]["generation"]
    assert [(one["name"], one["index"], one["status"]) for one in domain["status"]["nodes"]] == [
        ("a", 0, "Ready"),
        ("b", 1, "Ready"),
    ]


def test_the_status_says_which_node_waits_for_what() -> None:
    cluster, _ = start("a", "b", "c")
    cluster.set_ready("b", ready=False, why="nvidia-imex says WAITING_FOR_RECOVERY")
    cluster.set_ready("c", ready=False)
    cluster.settle()
    reason, message = cluster.condition("cd")
    assert reason == "NodesNotReady"
    assert message.startswith("1 of 3 nodes are ready; b: its daemon pod daemon-b-")
    assert "nvidia-imex says WAITING_FOR_RECOVERY; c: its daemon pod daemon-c-" in message
    assert any(note.startswith("NodesNotReady: 1 of 3") for note in cluster.notes)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes have channels"}]},
            "not scheduled: 0/3 nodes have channels",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}]},
            "ImagePullBackOff: not found",
        ),
        (
            {"containerStatuses": [{"state": {"terminated": {"exitCode": 3, "reason": "Error"}}}]},
            "ended with code 3: Error",
        ),
        ({"phase": "Pending"}, "is not ready yet"),
    ],
)
def test_a_daemon_that_does_not_start_is_reported_with_the_reason(status: dict[str, Any], said: str) -> None:
    cluster = Cluster(NODES_OF_RACK)
    cluster.start_pod("pod", cluster.create_domain("cd"), "a")
    cluster.settle()
    [pod] = cluster.list(PODS)
    cluster.patch(PODS, pod["metadata"]["name"], {"status": status}, OWN, "status")
    cluster.settle()
    assert said in cluster.condition("cd")[1]


def test_a_node_without_an_agent_is_reported() -> None:
    cluster = Cluster(NODES_OF_RACK)
    uid = cluster.create_domain("cd")
    cluster.delete(RESOURCE_SLICES, "a")
    cluster.start_pod("pod-a", uid, "a")
    cluster.start_pod("pod-b", uid, "b")
    cluster.settle()
    cluster.delete(RESOURCE_SLICES, "b")
    cluster.set_ready("b", ready=True)
    cluster.settle()
    for node in ("a", "b"):
        said = f"{node}: its slice of compute-domain.nvidia.com, which reports its clique, does not exist"
        assert said in cluster.condition("cd")[1]


def test_a_domain_whose_status_was_written_is_distinguished_from_one_that_was_changed() -> None:
    """Each failure writes the status: if that woke the controller, it would repeat what fails without a pause."""
    metadata = {"name": "cd", "resourceVersion": "1", "managedFields": [], "finalizers": [FINALIZER]}
    before = {"metadata": metadata, "spec": {"numNodes": 1}}
    written = {**metadata, "resourceVersion": "2", "managedFields": [{"manager": "one"}]}
    assert is_status_change(before, {**before, "metadata": written, "status": {"status": "Ready"}})
    assert not is_status_change(before, {"metadata": written, "spec": {"numNodes": 2}})
    for change in ({"finalizers": []}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}):
        assert not is_status_change(before, {**before, "metadata": {**written, **change}})


def test_num_nodes_counts_for_the_status_only() -> None:
    cluster = Cluster(NODES_OF_RACK)
    uid = cluster.create_domain("cd", numNodes=2)
    cluster.start_pod("pod", uid, "a")
    cluster.settle()
    cluster.set_ready("a", ready=True)
    cluster.settle()
    assert cluster.condition("cd") == ("TooFewNodes", "nodes that are ready: 1, and spec.numNodes is 2")
    assert cluster.domain("cd")["status"]["nodes"][0]["status"] == "Ready"


def test_a_lost_node_is_not_ready_as_soon_as_its_pod_is_said_not_to_be() -> None:
    cluster, _ = start("a", "b")
    cluster.set_ready("b", ready=False)
    cluster.settle()
    assert [one["status"] for one in cluster.domain("cd")["status"]["nodes"]] == ["Ready", "NotReady"]
    assert cluster.domain("cd")["status"]["status"] == "NotReady"


def test_a_node_outside_a_fabric_has_no_clique_and_no_index() -> None:
    cluster, _ = start("a", cluster=Cluster({"a": ""}))
    [node] = cluster.domain("cd")["status"]["nodes"]
    assert (node["cliqueID"], node["index"], node["status"]) == ("", -1, "Ready")
    assert cluster.list(CLIQUES) == ()


def test_a_node_that_leaves_frees_its_index_for_the_next() -> None:
    cluster, uid = start("a", "b", "c")
    cluster.end_pod("pod-a")
    cluster.settle()
    assert cluster.labels() == {"b": uid, "c": uid}
    assert [entry[1:] for entry in cluster.indexes()] == [("b", 1), ("c", 2)]
    cluster.start_pod("pod-d", uid, "d")
    cluster.settle()
    cluster.set_ready("d", ready=True)
    cluster.settle()
    assert [entry[1:] for entry in cluster.indexes()] == [("d", 0), ("b", 1), ("c", 2)]


def test_a_node_that_leaves_does_not_make_the_domain_unready_while_its_daemon_ends() -> None:
    cluster, uid = start("a", "b")
    cluster.end_pod("pod-b")
    cluster.send(cluster.plan(uid))
    [pod] = [one for one in cluster.list(PODS) if one["spec"]["nodeName"] == "b"]
    cluster.api.delete(POD_KIND, pod["metadata"]["name"], {"gracePeriodSeconds": 30}, namespace=OWN)
    cluster.set_ready("b", ready=False)
    cluster.send(cluster.plan(uid))
    assert cluster.condition("cd") == ("NodesReady", "all 1 nodes are ready")
    assert [one["name"] for one in cluster.domain("cd")["status"]["nodes"]] == ["a"]
    assert [entry[1:] for entry in cluster.indexes()] == [("a", 0), ("b", 1)]  # nvidia-imex may still run there


def test_a_daemon_that_is_force_deleted_comes_back_with_the_number_of_its_node() -> None:
    cluster, _ = start("a", "b")
    before = {entry[1:] for entry in cluster.indexes()}
    for pod in cluster.list(PODS):
        cluster.api.delete(POD_KIND, pod["metadata"]["name"], {"gracePeriodSeconds": 0}, namespace=OWN)
    cluster.run_daemon_sets()
    cluster.settle()
    assert cluster.condition("cd")[0] == "NodesNotReady"
    for node in ("a", "b"):
        cluster.set_ready(node, ready=True)
    cluster.settle()
    assert {entry[1:] for entry in cluster.indexes()} == before
    assert cluster.condition("cd")[0] == "NodesReady"


def test_a_domain_that_no_pod_uses_any_more_names_no_nodes() -> None:
    cluster, _ = start("a")
    cluster.end_pod("pod-a")
    cluster.settle()
    assert "nodes" not in cluster.domain("cd")["status"]


def test_more_nodes_than_a_clique_may_have_are_reported_and_leave_the_others_alone() -> None:
    cluster, _ = start("a", "b", "c", "d")
    assert [entry[1:] for entry in cluster.indexes()] == [("a", 0), ("b", 1), ("c", 2)]
    reason, message = cluster.condition("cd")
    assert reason == "NodesNotReady"
    assert f"3 of 4 nodes are ready; d: its clique {RACK} has 3 other nodes" in message


def test_a_clique_that_changes_under_a_daemon_is_reported_and_the_entry_stays() -> None:
    cluster, _ = start("a")
    [found] = cluster.snapshot()[NODES]
    devices = [{"name": "channel-0", "attributes": {"cliqueID": {"string": "other.7"}}}]
    cluster.patch(RESOURCE_SLICES, found["metadata"]["name"], {"spec": {"devices": devices}})
    cluster.settle()
    cluster.delete(CLIQUES, cluster.list(CLIQUES)[0]["metadata"]["name"], OWN)  # which changes nothing of that
    cluster.settle()
    [node] = cluster.domain("cd")["status"]["nodes"]
    assert (node["cliqueID"], node["status"]) == (RACK, "Ready")
    assert node["message"].startswith("the daemon was started for this clique, and the node is in other.7 now")


def test_a_template_of_somebody_else_is_reported_and_left_alone() -> None:
    cluster = Cluster({})
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}
    theirs = {"metadata": {"name": "cd"}, "spec": {"spec": {"devices": devices}}}
    cluster.api.create(TEMPLATE_KIND, theirs, namespace="default")
    cluster.create_domain("cd")
    cluster.settle()
    assert cluster.condition("cd")[0] == cluster.condition("cd", "ObjectsCreated")[0] == "TemplateNameTaken"
    assert [note.partition(":")[0] for note in cluster.notes] == ["TemplateNameTaken"]
    cluster.delete_domain("cd")
    cluster.settle()
    assert [one["metadata"]["name"] for one in cluster.list(RESOURCE_CLAIM_TEMPLATES)] == ["cd"]
    assert cluster.list(COMPUTE_DOMAINS) == ()


def test_a_domain_without_a_spec_has_a_condition_that_says_so_and_costs_the_others_nothing() -> None:
    cluster, _ = start("a")
    kind = next(one for one in cluster.api.kinds if one.kind == COMPUTE_DOMAINS.kind)
    cluster.api.create(kind, {"metadata": {"name": "bare"}}, namespace="default")
    cluster.settle()
    assert cluster.condition("bare")[0] == cluster.condition("bare", "ObjectsCreated")[0] == "SpecMissing"
    assert cluster.condition("cd")[0] == "NodesReady"
    cluster.delete_domain("bare")
    cluster.settle()
    assert [one["metadata"]["name"] for one in cluster.list(COMPUTE_DOMAINS)] == ["cd"]


def test_a_deletion_that_the_finalizer_of_another_holds_up_says_whose() -> None:
    cluster, uid = start()
    name = f"computedomain-daemon-{uid}"
    cluster.patch(DAEMON_SETS, name, {"metadata": {"finalizers": [FINALIZER, "example.com/audit"]}}, OWN)
    cluster.delete_domain("cd")
    cluster.settle()
    assert cluster.condition("cd", "Deleting") == (
        "WaitingForFinalizers",
        f"deleted after {OWN}/{name}, which has the finalizers example.com/audit",
    )
    cluster.patch(DAEMON_SETS, name, {"metadata": {"finalizers": []}}, OWN)
    cluster.settle()
    assert cluster.list(COMPUTE_DOMAINS) == ()


def test_an_object_that_is_deleted_and_that_another_holds_is_reported_and_then_made_again() -> None:
    cluster, uid = start("a")
    cluster.patch(RESOURCE_CLAIM_TEMPLATES, "cd", {"metadata": {"finalizers": [FINALIZER, "example.com/a"]}}, "default")
    cluster.delete(RESOURCE_CLAIM_TEMPLATES, "cd", "default")
    cluster.settle()
    assert cluster.condition("cd", "ObjectsCreated") == (
        "WaitingForFinalizers",
        "created again after default/cd, which has the finalizers example.com/a",
    )
    assert cluster.condition("cd")[0] == "NodesReady"
    cluster.patch(RESOURCE_CLAIM_TEMPLATES, "cd", {"metadata": {"finalizers": []}}, "default")
    cluster.settle()
    assert cluster.condition("cd", "ObjectsCreated")[0] == "Created"
    assert get_label(cluster.api.get(TEMPLATE_KIND, "cd", namespace="default")) == uid


def test_a_domain_with_the_name_of_one_whose_daemons_are_still_leaving_takes_nothing_of_it() -> None:
    cluster, first = start("a", "b")
    for node in ("a", "b"):
        cluster.end_pod(f"pod-{node}")
    cluster.delete_domain("cd")
    while first in cluster.uids():
        cluster.send(cluster.plan(first))
    assert len(cluster.list(PODS)) == 2
    second = cluster.create_domain("cd")
    for node in ("b", "a"):
        cluster.start_pod(f"new-{node}", second, node)
    while requests := cluster.plan(second):
        cluster.send(requests)
    assert cluster.labels() == {"a": second, "b": second}
    assert cluster.condition("cd")[1].startswith("0 of 2 nodes are ready; a: no daemon pod yet; b: no daemon pod yet")
    assert list(cluster.indexes()) == []
    cluster.settle()
    for node in ("a", "b"):
        cluster.set_ready(node, ready=True)
    cluster.settle()
    assert cluster.condition("cd")[0] == "NodesReady"
    assert {name for name, _, _ in cluster.indexes()} == {f"{second}.{RACK}"}


def test_peers_that_a_ready_daemon_misses_are_a_condition_of_the_domain_until_they_are_back() -> None:
    cluster, _ = start("a", "b")
    assert not any(one["type"] == "Connected" for one in cluster.domain("cd")["status"]["conditions"])
    cluster.set_ready("b", ready=True, why="a has driver 575.1, and this node 570.2")
    cluster.settle()
    assert cluster.condition("cd")[0] == "NodesReady"
    assert cluster.condition("cd", "Connected") == ("DomainDegraded", "b: a has driver 575.1, and this node 570.2")
    assert [one.get("message") for one in cluster.domain("cd")["status"]["nodes"]][1].startswith("a has driver 575.1")
    cluster.set_ready("b", ready=True)
    cluster.settle()
    assert cluster.condition("cd", "Connected")[0] == "NodesConnected"
    assert [note.partition(":")[0] for note in cluster.notes if "onnected" in note or "Degraded" in note] == [
        "DomainDegraded",
        "NodesConnected",
    ]


def test_a_claim_of_another_namespace_brings_no_label_and_gets_an_event() -> None:
    cluster, uid = start("a")
    cluster.start_pod("intruder", uid, "b", namespace="other")
    cluster.settle()
    assert cluster.labels() == {"a": uid}
    assert any(note.startswith("ComputeDomainOfOtherNamespace: the claim names") for note in cluster.notes)


def test_a_node_is_in_one_domain_and_the_next_follows_when_it_is_free() -> None:
    cluster, first = start("a")
    second = cluster.create_domain("second")
    cluster.start_pod("later", second, "a")
    cluster.settle()
    assert cluster.labels() == {"a": first}
    assert "a: the node is in the ComputeDomain default/cd, and" in cluster.condition("second")[1]
    assert any(
        "NodeHasOtherComputeDomain: the node a is in the ComputeDomain default/cd" in one for one in cluster.notes
    )
    cluster.end_pod("pod-a")
    cluster.settle()
    assert cluster.labels() == {"a": second}


def test_what_somebody_edits_or_deletes_is_put_right() -> None:
    cluster, uid = start("a")
    name = f"computedomain-daemon-{uid}"
    before = cluster.list(DAEMON_SETS)[0]["metadata"]["uid"]
    cluster.patch(RESOURCE_CLAIM_TEMPLATES, "cd", {"metadata": {"labels": None, "finalizers": None}}, "default")
    cluster.patch(NODES, "a", {"metadata": {"labels": {DOMAIN_LABEL: None}}})
    cluster.delete(DAEMON_SETS, name, OWN)
    cluster.settle()
    template = cluster.api.get(TEMPLATE_KIND, "cd", namespace="default")
    assert get_label(template) == uid
    assert template["metadata"]["finalizers"] == [FINALIZER]
    assert cluster.labels() == {"a": uid}
    [daemons] = cluster.list(DAEMON_SETS)
    assert daemons["metadata"]["uid"] != before
    assert "deletionTimestamp" not in daemons["metadata"]


def test_a_clique_without_its_labels_gets_them_and_a_deleted_one_comes_back_with_its_numbers() -> None:
    cluster, uid = start("b")
    [clique] = cluster.list(CLIQUES)
    name, labels = clique["metadata"]["name"], clique["metadata"]["labels"]
    cluster.patch(CLIQUES, name, {"metadata": {"labels": None}}, OWN)
    cluster.start_pod("pod-a", uid, "a")
    cluster.settle()
    cluster.set_ready("a", ready=True)
    cluster.settle()
    assert cluster.list(CLIQUES)[0]["metadata"]["labels"] == labels
    numbers = [(name, "b", 0), (name, "a", 1)]
    assert list(cluster.indexes()) == numbers
    cluster.delete(CLIQUES, name, OWN)
    cluster.settle()
    assert list(cluster.indexes()) == numbers


def test_a_domain_at_rest_costs_no_request() -> None:
    cluster, uid = start("a", "b")
    assert cluster.plan(uid) == ()


def test_deletion_waits_for_pods_and_says_for_which() -> None:
    cluster, uid = start("a", "b")
    cluster.delete_domain("cd")
    cluster.settle()
    assert cluster.condition("cd", "Deleting") == (
        "WaitingForPods",
        "deleted when the pods that use it have ended: default/pod-a, default/pod-b",
    )
    assert any(note.startswith("WaitingForPods") for note in cluster.notes)
    assert [one["metadata"]["name"] for one in cluster.list(RESOURCE_CLAIM_TEMPLATES)] == [
        f"computedomain-daemon-{uid}"
    ]
    assert len(cluster.list(PODS)) == 2
    cluster.end_pod("pod-a")
    cluster.end_pod("pod-b")
    cluster.settle()
    for resource in (COMPUTE_DOMAINS, DAEMON_SETS, RESOURCE_CLAIM_TEMPLATES, CLIQUES, PODS):
        assert cluster.list(resource) == ()
    assert cluster.labels() == {}


def test_what_a_domain_without_finalizer_left_is_collected() -> None:
    cluster, _ = start("a")
    cluster.patch(COMPUTE_DOMAINS, "cd", {"metadata": {"finalizers": None}}, "default")
    cluster.delete_domain("cd")
    cluster.settle()
    for resource in (DAEMON_SETS, RESOURCE_CLAIM_TEMPLATES, CLIQUES, PODS):
        assert cluster.list(resource) == ()
    assert cluster.labels() == {}


def test_daemons_are_replaced_when_no_pod_uses_the_domain_one_domain_after_the_other() -> None:
    cluster, _ = start("a")
    cluster.create_domain("idle")
    cluster.create_domain("idle-too")
    cluster.settle()
    cluster.settings = msgspec.structs.replace(SETTINGS, daemon_image="pydra:2")
    for uid in cluster.uids():
        cluster.send(cluster.plan(uid))
    images = [one["spec"]["template"]["spec"]["containers"][0]["image"] for one in cluster.list(DAEMON_SETS)]
    assert sorted(images) == ["pydra:1", "pydra:1", "pydra:2"]
    assert cluster.condition("cd", "DaemonsUpToDate")[0] == "WaitingForPods"
    assert {cluster.condition(one, "DaemonsUpToDate")[0] for one in ("idle", "idle-too")} == {
        "Updating",
        "WaitingForOthers",
    }
    cluster.settle()
    assert cluster.condition("idle-too", "DaemonsUpToDate")[0] == "UpToDate"
    cluster.end_pod("pod-a")
    cluster.settle()
    assert cluster.condition("cd", "DaemonsUpToDate")[0] == "UpToDate"


def test_daemons_that_cannot_be_created_do_not_keep_those_of_other_domains_from_being_replaced() -> None:
    cluster, _ = start()
    refused = cluster.create_domain("refused")
    cluster.refused = frozenset({refused})
    cluster.start_pod("pod", refused, "a")
    cluster.settle()
    assert cluster.condition("refused")[0] == "NodesNotReady"
    cluster.settings = msgspec.structs.replace(SETTINGS, daemon_image="pydra:2")
    cluster.settle()
    assert cluster.condition("cd", "DaemonsUpToDate")[0] == "UpToDate"
    assert cluster.condition("refused", "DaemonsUpToDate")[0] == "WaitingForPods"
    cluster.end_pod("pod")
    cluster.settle()
    assert cluster.condition("refused", "DaemonsUpToDate")[0] == "UpToDate"


def test_daemons_whose_deletion_another_holds_up_do_not_keep_those_of_other_domains_from_being_replaced() -> None:
    cluster, _ = start()
    name = f"computedomain-daemon-{cluster.create_domain('held')}"
    cluster.settle()
    cluster.patch(DAEMON_SETS, name, {"metadata": {"finalizers": [FINALIZER, "example.com/audit"]}}, OWN)
    cluster.delete_domain("held")
    cluster.settle()
    cluster.settings = msgspec.structs.replace(SETTINGS, daemon_image="pydra:2")
    cluster.settle()
    assert cluster.condition("cd", "DaemonsUpToDate")[0] == "UpToDate"


def test_with_daemons_of_the_hosts_a_domain_has_only_its_template() -> None:
    cluster = Cluster(NODES_OF_RACK, msgspec.structs.replace(SETTINGS, host_managed=True, daemon_image=""))
    uid = cluster.create_domain("cd")
    cluster.start_pod("pod", uid, "a")
    cluster.settle()
    assert cluster.condition("cd")[0] == "HostManaged"
    assert cluster.domain("cd")["status"]["status"] == "Ready"
    assert (cluster.list(DAEMON_SETS), cluster.labels()) == ((), {})
    cluster.end_pod("pod")
    cluster.delete_domain("cd")
    cluster.settle()
    assert (cluster.list(COMPUTE_DOMAINS), cluster.list(RESOURCE_CLAIM_TEMPLATES)) == ((), ())


def test_many_nodes_that_become_ready_at_once_are_one_write_of_clique_and_of_status() -> None:
    names = [f"n{number:03d}" for number in range(256)]
    cluster = Cluster(dict.fromkeys(names, RACK), msgspec.structs.replace(SETTINGS, max_nodes=256))
    uid = cluster.create_domain("cd")
    for name in names:
        cluster.start_pod(f"pod-{name}", uid, name)
    cluster.settle()
    for name in names:
        cluster.set_ready(name, ready=True)
    cluster.requests.clear()
    cluster.settle()
    assert cluster.condition("cd") == ("NodesReady", "all 256 nodes are ready")
    assert len(cluster.requests) == 2
