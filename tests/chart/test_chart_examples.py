"""The examples of values are for the clusters that they name: valid, complete, and with a way to the API server."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.chart.cluster import ADDED, KINDS, Kinds, open_cluster
from tests.chart.rendering import CHART, NAMESPACE, Objects, render
from tests.chart.test_chart_kubernetes import ELSEWHERE, VERSIONS
from tests.kubernetes_schemas import find_faults

EXAMPLES = {path.stem: path for path in sorted((CHART / "examples").glob("*.yaml"))}
API_PORTS = {
    "kind": {443, 6443},
    "k3s": {443, 6443},
    "gke": {443},
    "gke-tpu": {443},
    "eks": {443},
    "aks": {443},
    "openshift": {443, 6443},
}
"""Where the API server is: behind its Service, and after the Service's address is translated."""

NEEDS = {"eks": ("monitoring.coreos.com", "cert-manager.io"), "openshift": ("monitoring.coreos.com", "openshift.io")}
"""What a cluster has beside Kubernetes."""


def values(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(EXAMPLES[name].read_text())
    return found


def objects(name: str) -> Objects:
    return render(values(name))


def test_there_is_one_for_each_kind_of_cluster() -> None:
    assert set(EXAMPLES) == set(API_PORTS)


@pytest.mark.parametrize("name", API_PORTS)
def test_an_example_is_valid(name: str) -> None:
    found = [one for one in objects(name) if one["kind"] not in ELSEWHERE]
    assert [(version, fault) for version in VERSIONS for one in found for fault in find_faults(version, one)] == []


@pytest.mark.parametrize("name", API_PORTS)
def test_an_example_can_be_installed_where_what_it_needs_is_served(name: str) -> None:
    kinds: Kinds = {**KINDS, **{path: kinds for path, kinds in ADDED.items() if _is_there(path, name)}}
    with open_cluster(version="v1.34.1", kinds=kinds) as config:
        config.install(CHART, "pydra", values(name), dry_run="server")


def _is_there(path: str, name: str) -> bool:
    return any(group in path for group in NEEDS.get(name, ()))


@pytest.mark.parametrize("name", API_PORTS)
def test_a_network_policy_of_an_example_lets_agents_reach_the_api_server(name: str) -> None:
    policy = objects(name).one("NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    open_to_all = {port["port"] for rule in policy["egress"] if "to" not in rule for port in rule["ports"]}
    assert API_PORTS[name] <= open_to_all


def test_on_gke_a_quota_allows_the_priority_class() -> None:
    found = objects("gke")
    (scope,) = found.one("ResourceQuota")["spec"]["scopeSelector"]["matchExpressions"]
    assert found.pod()["priorityClassName"] in scope["values"]


def test_on_gke_the_control_plane_reaches_the_webhook_without_a_firewall_rule() -> None:
    (container,) = objects("gke").one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert {"name": "webhook", "containerPort": 10250} in container["ports"]


def test_on_gke_agents_of_tpus_are_where_gke_has_tpus_and_googles_plugin_is_not() -> None:
    pod = objects("gke-tpu").pod()
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    by_gke = {"key": "cloud.google.com/gke-tpu-accelerator", "operator": "Exists"}
    without = {"key": "gke-no-default-tpu-device-plugin", "operator": "In", "values": ["true"]}
    assert {"matchExpressions": [by_gke, without]} in terms
    assert all(without in term["matchExpressions"] for term in terms)
    assert {"key": "google.com/tpu", "operator": "Exists"} in pod["tolerations"]


def test_on_openshift_the_agents_account_may_use_the_constraints_that_the_agents_need() -> None:
    found = objects("openshift")
    constraints, pod = found.one("SecurityContextConstraints"), found.pod()
    assert constraints["allowHostPID"] is pod["hostPID"] is True
    assert {key for one in pod["volumes"] for key in one} - {"name"} <= set(constraints["volumes"])
    role = found.one("Role", "pydra-scc")
    assert role["rules"][0]["resourceNames"] == [constraints["metadata"]["name"]]
    (subject,) = found.one("RoleBinding", "pydra-scc")["subjects"]
    assert (subject["name"], subject["namespace"]) == (pod["serviceAccountName"], NAMESPACE)


@pytest.mark.parametrize("name", API_PORTS)
def test_an_example_says_how_it_is_installed(name: str) -> None:
    assert re.search(
        rf"helm install .* -f charts/pydra/examples/{name}\.yaml$", EXAMPLES[name].read_text(), re.MULTILINE
    )


@pytest.mark.parametrize("name", API_PORTS)
def test_an_example_says_what_was_tried_and_what_was_not(name: str) -> None:
    said = " ".join(line.removeprefix("# ") for line in EXAMPLES[name].read_text().splitlines() if line[:2] == "# ")
    assert re.search(r"Tried: .*\(tests/e2e\).* Not tried: \S+", said)
