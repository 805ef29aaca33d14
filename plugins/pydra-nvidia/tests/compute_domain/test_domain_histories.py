"""Random histories of domains: nodes come, go and die, labels are edited, and controllers die between any two requests.

Whatever happened, when it is over each domain is as if it had just been made, and what was deleted has left nothing.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from domain_cluster import OWN, Cluster
from pydra.controllers import NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from pydra_nvidia.compute_domain.controller.object_fields import (
    CLIQUES,
    COMPUTE_DOMAINS,
    DAEMON_SETS,
    ChannelClaim,
    get_label,
    is_deleting,
    parse_channel_claims,
)
from pydra_nvidia.compute_domain.names import DOMAIN_LABEL

FABRIC = {"a": "rack.1", "b": "rack.1", "c": "rack.1", "d": "rack.2", "e": ""}
NODE = st.sampled_from(sorted(FABRIC))
NAMES = ("x", "y")


class Histories(RuleBasedStateMachine):
    """`old` is what a second controller knew a while ago."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(FABRIC)
        self.old = self.cluster.snapshot()
        self.pods: dict[str, str] = {}
        self.number = 0

    def names(self) -> list[str]:
        return [one["metadata"]["name"] for one in self.cluster.list(COMPUTE_DOMAINS)]

    def nodes(self) -> list[str]:
        return [one["metadata"]["name"] for one in self.cluster.list(NODES)]

    @rule(name=st.sampled_from(NAMES))
    def create_domain(self, name: str) -> None:
        if name not in self.names():
            self.cluster.create_domain(name)

    @rule(name=st.sampled_from(NAMES))
    def delete_domain(self, name: str) -> None:
        if name in self.names():
            self.cluster.delete_domain(name)

    @rule(name=st.sampled_from(NAMES), node=NODE)
    def start_pod(self, name: str, node: str) -> None:
        free = node not in self.pods.values()  # a node has one channel
        if free and name in self.names() and node in self.nodes():
            self.number += 1
            pod = f"pod-{self.number}"
            self.cluster.start_pod(pod, self.cluster.domain(name)["metadata"]["uid"], node)
            self.pods[pod] = node

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def end_pod(self, data: st.DataObject) -> None:
        pod = data.draw(st.sampled_from(sorted(self.pods)))
        self.cluster.end_pod(pod)
        del self.pods[pod]

    @rule(node=NODE, ready=st.booleans())
    def report_pod(self, node: str, ready: bool) -> None:
        self.cluster.set_ready(node, ready=ready)

    @rule(node=NODE)
    def add_or_remove_node(self, node: str) -> None:
        if node not in self.nodes():
            self.cluster.add_node(node, FABRIC[node])
        elif node not in self.pods.values():
            self.cluster.remove_node(node)

    @rule(node=NODE, value=st.sampled_from([None, "nobody"]))
    def edit_label(self, node: str, value: str | None) -> None:
        if node in self.nodes():
            self.cluster.patch(NODES, node, {"metadata": {"labels": {DOMAIN_LABEL: value}}})

    @rule(data=st.data())
    def delete_object(self, data: st.DataObject) -> None:
        resources = (DAEMON_SETS, RESOURCE_CLAIM_TEMPLATES, CLIQUES)
        if found := [(resource, one) for resource in resources for one in self.cluster.list(resource)]:
            resource, body = data.draw(st.sampled_from(found))
            self.cluster.delete(resource, body["metadata"]["name"], body["metadata"]["namespace"])

    @rule()
    def run_daemon_sets(self) -> None:
        self.cluster.run_daemon_sets()

    @rule(sent=st.integers(0, 12))
    def reconcile(self, sent: int) -> None:
        """A controller that is killed after so many requests."""
        for uid in self.cluster.uids():
            self.cluster.send(self.cluster.plan(uid)[:sent])

    @rule()
    def remember(self) -> None:
        self.old = self.cluster.snapshot()

    @rule(sent=st.integers(0, 12))
    def reconcile_from_before(self, sent: int) -> None:
        """Another controller that acts at the same time, on what it knew earlier."""
        for one in self.old[COMPUTE_DOMAINS]:
            self.cluster.send(self.cluster.plan(one["metadata"]["uid"], self.old)[:sent])

    @rule()
    def collect_garbage(self) -> None:
        self.cluster.collect_garbage()

    @invariant()
    def no_index_is_given_twice(self) -> None:
        given = [(clique, index) for clique, _, index in self.cluster.indexes()]
        assert len(given) == len(set(given))

    @rule()
    def rest(self) -> None:
        """Nothing more happens: all that should exist does, and nothing else."""
        cluster = self.cluster
        cluster.settle()
        for node in self.nodes():
            cluster.set_ready(node, ready=True)
        cluster.settle()
        claims = [claim for one in cluster.list(RESOURCE_CLAIMS) for claim in parse_channel_claims(one)]
        claims = [claim for claim in claims if claim.domain in cluster.uids()]
        self.check_nodes(claims)
        domains = cluster.list(COMPUTE_DOMAINS)
        for one in domains:
            nodes = {claim.node for claim in claims if claim.domain == one["metadata"]["uid"]}
            assert {node["name"] for node in one["status"].get("nodes", ())} == nodes
            assert nodes or not is_deleting(one)  # a deleted one is gone when no pod uses it
            assert is_deleting(one) or (one["status"]["status"] == "Ready") == bool(nodes)
        uids = {one["metadata"]["uid"] for one in domains}
        assert {get_label(one) for one in cluster.list(DAEMON_SETS)} == uids
        templates = cluster.list(RESOURCE_CLAIM_TEMPLATES)
        assert {get_label(one) for one in templates if one["metadata"]["namespace"] == OWN} == uids
        expected = {one["metadata"]["uid"] for one in domains if not is_deleting(one)}
        assert {get_label(one) for one in templates if one["metadata"]["namespace"] != OWN} == expected

    def check_nodes(self, claims: list[ChannelClaim]) -> None:
        cluster = self.cluster
        assert cluster.labels() == {claim.node: claim.domain for claim in claims}
        pods = {(pod["spec"]["nodeName"], get_label(pod)) for pod in cluster.list(PODS)}
        assert pods == {(claim.node, claim.domain) for claim in claims}
        entered = {(node, clique) for clique, node, _ in cluster.indexes()}
        named = {(claim.node, f"{claim.domain}.{FABRIC[claim.node]}") for claim in claims if FABRIC[claim.node]}
        assert entered == named


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
