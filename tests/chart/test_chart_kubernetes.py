"""What is rendered is valid for each version of Kubernetes, by the schemas of its API, which know no other fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import helm_python
import pytest

from tests.chart.cluster import ADDED
from tests.chart.rendering import (
    AMD,
    BOTH,
    CHART,
    COMPUTE_DOMAIN,
    CPU,
    NET,
    NVIDIA,
    SIM,
    TPU,
    at,
    overlay,
    render,
)
from tests.kubernetes_schemas import find_faults

VERSIONS = ["1.34", "1.35", "1.36", "1.37"]
ELSEWHERE = {kind for kinds in ADDED.values() for kind in kinds}
"""Kinds that are no part of Kubernetes."""

PEERS = [
    {"namespaceSelector": {"matchLabels": {"a": "b"}}},
    {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
]
FULL = overlay(
    BOTH,
    {
        "imagePullSecrets": [{"name": "mine"}],
        "packages": {"names": ["a"], "pipArguments": ["--pre"], "resources": {"limits": {"memory": "1Gi"}}},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 5}],
        "podAnnotations": {"a": "b"},
        "podLabels": {"a": "b"},
        "settings": {"logLevel": "debug", "deviceStatus": True},
        "serviceAccount": {"annotations": {"a": "b"}},
        "rbac": {"listClaims": True},
        "networkPolicy": {
            "create": True,
            "from": PEERS,
            "egress": [{"to": PEERS, "ports": [{"port": 443, "protocol": "TCP"}]}],
        },
        "configPolicy": {"create": True},
        "dashboard": {"create": True, "annotations": {"a": "b"}},
        "alerts": {"create": True},
        "openshift": {"enabled": True},
        "webhook": {"enabled": True, "priorityClassName": "a", "nodeSelector": {"a": "b"}},
    },
    at(
        "backends.nvidia.env",
        [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b", "optional": True}}}],
    ),
    at("backends.sim.capabilities", ["SYS_NICE"]),
)
RELEASES = {
    "sim": SIM,
    "nvidia": NVIDIA,
    "amd, cpu, net and tpu": overlay(AMD, CPU, NET, TPU),
    "all on": FULL,
    "one pod": overlay(FULL, {"onePod": True}),
    "ComputeDomains": overlay(
        COMPUTE_DOMAIN, FULL, {"openshift": {"enabled": False}, "computeDomainController": {"enabled": True}}
    ),
    "ServiceMonitor": overlay(SIM, {"monitor": {"create": True, "kind": "ServiceMonitor"}}),
    "PodMonitor and cert-manager": overlay(
        SIM, {"monitor": {"create": True}, "webhook": {"enabled": True, "tls": {"mode": "certManager"}}}
    ),
}

LINTED = ["ComputeDomains", "one pod", "PodMonitor and cert-manager"]
"""Those that all templates are in."""


@pytest.mark.parametrize("values", RELEASES.values(), ids=RELEASES)
def test_every_object_is_valid(values: Mapping[str, Any]) -> None:
    objects = [one for one in render(values) if one["kind"] not in ELSEWHERE]
    assert [(version, fault) for version in VERSIONS for one in objects for fault in find_faults(version, one)] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_would_tell_of_a_field_that_is_none(version: str) -> None:
    daemon_set = render(SIM).one("DaemonSet")
    daemon_set["spec"]["template"]["spec"]["containers"][0]["securityContext"]["privilegedd"] = True
    assert any("privilegedd" in fault for fault in find_faults(version, daemon_set))


@pytest.mark.parametrize("values", [{}, *(RELEASES[name] for name in LINTED)], ids=["defaults", *LINTED])
def test_helm_lint_finds_nothing(values: Mapping[str, Any]) -> None:
    report = helm_python.lint(CHART, dict(values), strict=True, namespace="pydra-system")
    assert report["errors"] == []
    assert [one["error"] for one in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("values", RELEASES.values(), ids=RELEASES)
def test_every_object_says_where_it_belongs(values: Mapping[str, Any]) -> None:
    cluster_wide = {
        *("ClusterRole", "ClusterRoleBinding", "DeviceClass", "SecurityContextConstraints"),
        "CustomResourceDefinition",
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration"),
    }
    for one in render(values, at("commonLabels", {"team": "gpu"})):
        metadata = one["metadata"]
        assert metadata.get("namespace") == (None if one["kind"] in cluster_wide else "pydra-system"), one["kind"]
        assert metadata["labels"]["team"] == "gpu", one["kind"]
        if one["kind"] != "Pod":  # that of `helm test` is none of those by which the release's are found
            assert metadata["labels"]["app.kubernetes.io/instance"] == "pydra"
