"""From values to objects: what is there, by default and with everything on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pydra.admission.config_types import read_backend
from pydra.admission.policy import build_policy
from tests.chart.effects import CA
from tests.chart.rendering import BOTH, NVIDIA, SIM, at, overlay, render

AGENT = {
    "ServiceAccount/pydra",
    "ClusterRole/pydra-agent.pydra-system",
    "ClusterRoleBinding/pydra-agent.pydra-system",
    "ValidatingAdmissionPolicy/pydra-events.pydra-system",
    "ValidatingAdmissionPolicy/pydra-slices.pydra-system",
    "ValidatingAdmissionPolicyBinding/pydra-events.pydra-system",
    "ValidatingAdmissionPolicyBinding/pydra-slices.pydra-system",
    "ResourceQuota/pydra",
}
TEST = {
    "ServiceAccount/pydra-test",
    "Role/pydra-test",
    "RoleBinding/pydra-test",
    "ClusterRole/pydra-test.pydra-system",
    "ClusterRoleBinding/pydra-test.pydra-system",
    "Pod/pydra-test",
}
OF_SIM = {
    "DaemonSet/pydra-sim",
    "DeviceClass/sim.pydra.dev",
    "DeviceClass/partition.sim.pydra.dev",
}
OF_NVIDIA = {
    "DaemonSet/pydra-nvidia",
    "DeviceClass/gpu.nvidia.com",
    "DeviceClass/mig.nvidia.com",
    "DeviceClass/vfio.gpu.nvidia.com",
}
WEBHOOK_OF_SIM = {
    "Secret/pydra-sim-webhook-tls",
    "Service/pydra-sim-webhook",
    "Deployment/pydra-sim-webhook",
    "PodDisruptionBudget/pydra-sim-webhook",
    "ValidatingWebhookConfiguration/pydra-sim-webhook.pydra-system",
}

LONGEST = {"Service": 63, "DaemonSet": 63 - len("-abcde")}
"""Bytes of names that become host names, of the objects or of their pods; other names may have 253."""


def without(*kinds: str) -> set[str]:
    return {one for one in AGENT | TEST | OF_SIM if one.partition("/")[0] not in kinds}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(SIM, AGENT | TEST | OF_SIM, id="sim"),
        pytest.param(NVIDIA, AGENT | TEST | OF_NVIDIA, id="nvidia"),
        pytest.param(BOTH, AGENT | TEST | OF_SIM | OF_NVIDIA, id="a DaemonSet for each backend"),
        pytest.param(
            overlay(BOTH, {"onePod": True}),
            {one for one in AGENT | TEST | OF_SIM | OF_NVIDIA if not one.startswith("DaemonSet/")}
            | {"DaemonSet/pydra"},
            id="one DaemonSet for all",
        ),
        pytest.param(
            overlay(SIM, at("slicePolicy.create", False), at("eventPolicy.create", False)),
            without("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
            id="no policy",
        ),
        pytest.param(overlay(SIM, at("deviceClasses.create", False)), without("DeviceClass"), id="no classes"),
        pytest.param(overlay(SIM, at("resourceQuota.create", False)), without("ResourceQuota"), id="no quota"),
        pytest.param(
            overlay(SIM, {"priorityClassName": "mine"}), without("ResourceQuota"), id="a quota is for system classes"
        ),
        pytest.param(
            overlay(SIM, at("rbac.create", False)),
            AGENT - {"ClusterRole/pydra-agent.pydra-system", "ClusterRoleBinding/pydra-agent.pydra-system"}
            | TEST
            | OF_SIM,
            id="no RBAC",
        ),
        pytest.param(
            overlay(SIM, {"serviceAccount": {"create": False, "name": "mine"}}),
            AGENT - {"ServiceAccount/pydra"} | TEST | OF_SIM,
            id="an account that exists",
        ),
        pytest.param(
            overlay(SIM, at("networkPolicy.create", True)),
            AGENT | TEST | OF_SIM | {"NetworkPolicy/pydra"},
            id="network",
        ),
        pytest.param(
            overlay(SIM, at("monitor.create", True)), AGENT | TEST | OF_SIM | {"PodMonitor/pydra"}, id="PodMonitor"
        ),
        pytest.param(
            overlay(SIM, {"monitor": {"create": True, "kind": "ServiceMonitor"}}),
            AGENT | TEST | OF_SIM | {"ServiceMonitor/pydra", "Service/pydra-metrics"},
            id="ServiceMonitor",
        ),
        pytest.param(
            overlay(SIM, at("alerts.create", True)), AGENT | TEST | OF_SIM | {"PrometheusRule/pydra"}, id="alerts"
        ),
        pytest.param(
            overlay(SIM, at("dashboard.create", True)),
            AGENT | TEST | OF_SIM | {"ConfigMap/pydra-dashboard"},
            id="dashboard",
        ),
        pytest.param(
            overlay(SIM, at("openshift.enabled", True)),
            AGENT
            | TEST
            | OF_SIM
            | {"SecurityContextConstraints/pydra-agent.pydra-system", "Role/pydra-scc", "RoleBinding/pydra-scc"},
            id="OpenShift",
        ),
        pytest.param(
            overlay(SIM, at("openshift.enabled", True), at("rbac.create", False)),
            AGENT - {"ClusterRole/pydra-agent.pydra-system", "ClusterRoleBinding/pydra-agent.pydra-system"}
            | TEST
            | OF_SIM
            | {"SecurityContextConstraints/pydra-agent.pydra-system"},
            id="OpenShift, no RBAC",
        ),
        pytest.param(overlay(SIM, at("webhook.enabled", True)), AGENT | TEST | OF_SIM | WEBHOOK_OF_SIM, id="webhook"),
        pytest.param(
            overlay(SIM, {"webhook": {"enabled": True, "replicas": 1}}),
            AGENT | TEST | OF_SIM | WEBHOOK_OF_SIM - {"PodDisruptionBudget/pydra-sim-webhook"},
            id="one webhook pod is never held back",
        ),
        pytest.param(
            overlay(SIM, {"webhook": {"enabled": True, "tls": {"mode": "certManager"}}}),
            AGENT
            | TEST
            | OF_SIM
            | WEBHOOK_OF_SIM - {"Secret/pydra-sim-webhook-tls"}
            | {"Certificate/pydra-sim-webhook", "Issuer/pydra-webhook"}
            | {"Certificate/pydra-webhook-ca", "Issuer/pydra-webhook-root"},
            id="a certificate of cert-manager",
        ),
        pytest.param(
            overlay(SIM, {"webhook": {"enabled": True, "tls": {"mode": "certManager", "issuerRef": {"name": "mine"}}}}),
            AGENT
            | TEST
            | OF_SIM
            | WEBHOOK_OF_SIM - {"Secret/pydra-sim-webhook-tls"}
            | {"Certificate/pydra-sim-webhook"},
            id="an issuer of one's own",
        ),
        pytest.param(
            overlay(
                SIM,
                {"webhook": {"enabled": True, "tls": {"mode": "secret", "secretName": "mine", "caBundle": CA}}},
            ),
            AGENT | TEST | OF_SIM | WEBHOOK_OF_SIM - {"Secret/pydra-sim-webhook-tls"},
            id="a secret of one's own",
        ),
    ],
)
def test_the_values_decide_which_objects_there_are(values: Mapping[str, Any], expected: set[str]) -> None:
    assert render(values).names() == expected


def test_every_pod_is_for_nodes_of_linux_unless_somebody_knows_better() -> None:
    def selectors(*values: Mapping[str, Any]) -> list[Any]:
        objects = render(BOTH, at("webhook.enabled", True), *values)
        owners = objects.all("DaemonSet") + objects.all("Deployment")
        specs = [one["spec"]["template"]["spec"] for one in owners]
        return [one["nodeSelector"] for one in (*specs, objects.one("Pod")["spec"])]

    assert selectors() == [{"kubernetes.io/os": "linux"}] * 5
    assert selectors(at("nodeSelector", {"kubernetes.io/os": "other"}))[0] == {"kubernetes.io/os": "other"}


def test_helm_test_prefers_the_nodes_of_agents_and_runs_where_there_are_none() -> None:
    """An image may be for one architecture; but the test is to say that no node has the labels."""
    spec = render(BOTH, at("nodeSelector", {"kubernetes.io/arch": "amd64"})).one("Pod")["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}
    (preferred,) = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    (label,) = preferred["preference"]["matchExpressions"]
    assert (label["key"], label["operator"], label["values"]) == ("kubernetes.io/arch", "In", ["amd64"])


def test_a_backend_that_the_chart_does_not_know_is_served_with_its_classes() -> None:
    classes = {"fpga.example.com": {"selectors": [{"cel": {"expression": "device.driver == 'fpga.example.com'"}}]}}
    backend = {
        "enabled": True,
        "driver": "fpga.example.com",
        "packages": ["my-fpga==1.2"],
        "deviceClasses": {"classes": classes, "extendedResourceNames": {"fpga.example.com": "example.com/fpga"}},
    }
    objects = render(at("backends.my-fpga", backend))
    assert objects.one("DeviceClass")["spec"] == {
        **classes["fpga.example.com"],
        "extendedResourceName": "example.com/fpga",
    }
    container = objects.agent("pydra-my-fpga")
    assert container["args"] == ["--backend=my-fpga", "--driver=my-fpga=fpga.example.com"]
    assert container["image"] == "pydra-my-fpga:0.1.0"
    (installer,) = objects.pod()["initContainers"]
    assert installer["args"] == ["my-fpga==1.2"]


def test_a_driver_of_another_name_has_classes_that_find_its_devices() -> None:
    objects = render(
        NVIDIA,
        at("backends.nvidia.driver", "gpu.pydra.dev"),
        at(
            "backends.nvidia.deviceClasses.names",
            {"gpu.nvidia.com": "gpu.pydra.dev", "mig.nvidia.com": "mig.pydra.dev"},
        ),
    )
    classes = {one["metadata"]["name"]: one["spec"] for one in objects.all("DeviceClass")}
    assert set(classes) == {"gpu.pydra.dev", "mig.pydra.dev", "vfio.gpu.nvidia.com"}
    for spec in classes.values():
        (selector,) = spec["selectors"]
        assert "device.driver == 'gpu.pydra.dev' && device.attributes['gpu.pydra.dev']" in selector["cel"]["expression"]
        assert "nvidia.com" not in selector["cel"]["expression"]
    assert classes["gpu.pydra.dev"]["extendedResourceName"] == "nvidia.com/gpu"
    assert "--driver=nvidia=gpu.pydra.dev" in objects.agent()["args"]
    mounts = {one["name"]: one["mountPath"] for one in objects.agent()["volumeMounts"]}
    assert mounts["plugin-nvidia"] == "/var/lib/kubelet/plugins/gpu.pydra.dev"


def test_an_extended_resource_name_can_be_left_out() -> None:
    objects = render(NVIDIA, at("backends.nvidia.deviceClasses.extendedResourceNames", {"gpu.nvidia.com": ""}))
    assert "extendedResourceName" not in objects.one("DeviceClass", "gpu.nvidia.com")["spec"]


@pytest.mark.parametrize("name", ["pydra", "a", "release-with-a-name-that-goes-on-for-fifty-three-bytes"])
@pytest.mark.parametrize("one_pod", [False, True])
def test_names_are_within_the_limits_of_kubernetes(name: str, *, one_pod: bool) -> None:
    backend = "twenty-bytes-backend"
    objects = render(
        at(
            f"backends.{backend}",
            {"enabled": True, "driver": f"{'d' * 59}.dev", "deviceClasses": {"classes": {}}},
        ),
        {"onePod": one_pod, "webhook": {"enabled": True}, "monitor": {"create": True, "kind": "ServiceMonitor"}},
        name=name,
    )
    for one in objects:
        assert len(one["metadata"]["name"]) <= LONGEST.get(one["kind"], 253), one["metadata"]
        for value in {**one["metadata"].get("labels", {}), **_pod_labels(one)}.values():
            assert len(value) <= 63
    for volume in objects.pod()["volumes"]:
        assert len(volume["name"]) <= 63


def _pod_labels(one: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = one.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {})
    return labels


def test_releases_of_one_name_in_two_namespaces_do_not_touch_each_other() -> None:
    here, there = render(SIM, namespace="here"), render(NVIDIA, namespace="there")
    cluster_wide = [
        {f"{one['kind']}/{one['metadata']['name']}" for one in objects if "namespace" not in one["metadata"]}
        for objects in (here, there)
    ]
    assert not cluster_wide[0] & cluster_wide[1]


def test_selectors_of_a_release_find_its_own_pods_only() -> None:
    objects = render(BOTH, at("webhook.enabled", True))
    workloads = objects.all("DaemonSet") + objects.all("Deployment")
    for one in workloads:
        wanted = one["spec"]["selector"]["matchLabels"].items()
        found = [other["metadata"]["name"] for other in workloads if wanted <= _pod_labels(other).items()]
        assert found == [one["metadata"]["name"]]


def test_policies_for_configs_are_those_that_pydra_prints_for_the_driver() -> None:
    objects = render(BOTH, at("backends.sim.driver", "sim.example.com"), at("configPolicy.create", True))
    for name, driver in (("sim", "sim.example.com"), ("nvidia", "gpu.nvidia.com")):
        expected = build_policy(read_backend(name, driver=driver))
        for wanted in (expected.policy, expected.binding):
            found = objects.one(wanted["kind"], wanted["metadata"]["name"])
            assert found["spec"] == wanted["spec"]
            assert found["metadata"].get("annotations") == wanted["metadata"].get("annotations")
