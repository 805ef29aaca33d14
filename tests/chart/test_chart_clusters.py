"""What the chart makes of the cluster that it is installed into: versions, other releases, its own certificate."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import helm_python
import pytest

from tests.chart.cluster import ADDED, KINDS, Kinds, open_cluster
from tests.chart.rendering import CHART, NAMESPACE, NVIDIA, SIM, Object, Objects, at, load_chart, overlay, parse, render

DAY = 86400
WEBHOOK = overlay(SIM, at("webhook.enabled", True))


def render_in(config: helm_python.Config, values: Mapping[str, Any], *, upgrade: bool = False) -> Objects:
    files = config.render(load_chart(values), dict(values), name="pydra", namespace=NAMESPACE, is_upgrade=upgrade)
    return Objects(one for path, text in files.items() if path.endswith(".yaml") for one in parse(text))


def owned(kind: str, version: str, name: str, *, by: str = "", **annotations: str) -> Object:
    namespace, _, release = by.partition("/")
    if by:
        annotations |= {"meta.helm.sh/release-namespace": namespace, "meta.helm.sh/release-name": release}
    metadata = {"name": name, "namespace": namespace or NAMESPACE, "annotations": annotations}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def daemon_set(by: str) -> Object:
    return owned("DaemonSet", "apps/v1", "any", by=by, **{"pydra.dev/drivers": "sim.pydra.dev,other.example.com"})


def device_class(by: str) -> Object:
    return owned("DeviceClass", "resource.k8s.io/v1", "sim.pydra.dev", by=by)


@pytest.mark.parametrize("version", ["v1.34.0-gke.1", "v1.36.2+k3s1"])
def test_clusters_of_1_34_and_newer_are_served(version: str) -> None:
    with open_cluster(version=version) as config:
        config.install(CHART, "pydra", dict(SIM), dry_run="server")


def test_an_older_cluster_is_refused() -> None:
    with open_cluster(version="v1.33.9") as config, pytest.raises(helm_python.HelmError) as caught:
        config.install(CHART, "pydra", dict(SIM), dry_run="server")
    assert "chart requires kubeVersion: >=1.34.0-0" in str(caught.value)
    assert "v1.33.9" in str(caught.value)


def lacking(*paths: str) -> Kinds:
    """What a cluster serves without these versions of groups."""
    return {path: kinds for path, kinds in {**KINDS, **ADDED}.items() if path not in paths}


ADDITIONS = [
    pytest.param(
        lacking("apis/resource.k8s.io/v1"),
        {},
        "this cluster (Kubernetes v1.36.2) does not serve resource.k8s.io/v1, which Dynamic Resource Allocation needs;"
        " it is on by default since 1.34: take resource.k8s.io/v1=false out of the API server's --runtime-config",
        id="no DRA",
    ),
    pytest.param(
        lacking("apis/monitoring.coreos.com/v1"),
        at("monitor.create", True),
        "monitor.create: this cluster does not serve monitoring.coreos.com/v1/PodMonitor; install the Prometheus"
        " operator first, or leave it out",
        id="no PodMonitor",
    ),
    pytest.param(
        lacking("apis/monitoring.coreos.com/v1"),
        {"monitor": {"create": True, "kind": "ServiceMonitor"}},
        "monitor.create: this cluster does not serve monitoring.coreos.com/v1/ServiceMonitor",
        id="no ServiceMonitor",
    ),
    pytest.param(
        lacking("apis/monitoring.coreos.com/v1"),
        at("alerts.create", True),
        "alerts.create: this cluster does not serve monitoring.coreos.com/v1/PrometheusRule",
        id="no PrometheusRule",
    ),
    pytest.param(
        lacking("apis/cert-manager.io/v1"),
        {"webhook": {"enabled": True, "tls": {"mode": "certManager"}}},
        "webhook.tls.mode: this cluster does not serve cert-manager.io/v1/Certificate; install cert-manager first",
        id="no cert-manager",
    ),
    pytest.param(
        lacking("apis/security.openshift.io/v1"),
        at("openshift.enabled", True),
        "openshift.enabled: this cluster does not serve security.openshift.io/v1/SecurityContextConstraints; it is for"
        " OpenShift only",
        id="no OpenShift",
    ),
    pytest.param(
        lacking("apis/admissionregistration.k8s.io/v1"),
        {},
        "slicePolicy.create: this cluster does not serve admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy",
        id="no policies",
    ),
    pytest.param(
        lacking("apis/admissionregistration.k8s.io/v1"),
        {"slicePolicy": {"create": False}},
        "eventPolicy.create: this cluster does not serve admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy",
        id="no policies for Events",
    ),
    pytest.param(
        lacking("apis/admissionregistration.k8s.io/v1"),
        {"slicePolicy": {"create": False}, "eventPolicy": {"create": False}, "settings": {"deviceStatus": True}},
        "settings.deviceStatus: this cluster does not serve admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy",
        id="no policies for the status of claims",
    ),
    pytest.param(
        lacking("apis/admissionregistration.k8s.io/v1"),
        {"slicePolicy": {"create": False}, "eventPolicy": {"create": False}, "configPolicy": {"create": True}},
        "configPolicy.create: this cluster does not serve admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy;"
        " leave it out, and judge configs with webhook.enabled=true",
        id="no policies for configs",
    ),
]


@pytest.mark.parametrize(("kinds", "values", "words"), ADDITIONS)
def test_what_a_cluster_does_not_serve_is_refused_in_words(kinds: Kinds, values: Mapping[str, Any], words: str) -> None:
    with open_cluster(kinds=kinds) as config, pytest.raises(helm_python.HelmError) as caught:
        config.install(CHART, "pydra", overlay(SIM, values), dry_run="server")
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_nothing_is_refused_where_all_is_served_or_nobody_knows_what_is(kind: str) -> None:
    added: list[Any] = [one.values[1] for one in ADDITIONS]
    values = overlay(SIM, *added, at("slicePolicy.create", True), at("monitor.kind", kind))
    with open_cluster(kinds={**KINDS, **ADDED}) as config:
        config.install(CHART, "pydra", values, dry_run="server")
    assert render(values).all("DaemonSet"), "without a cluster"


@pytest.mark.parametrize(
    ("found", "values", "words"),
    [
        pytest.param(
            daemon_set("there/first"),
            SIM,
            "driver sim.pydra.dev is served by release there/first already, and two would fight over its devices:"
            " remove that one, leave backends.sim disabled here, or give the driver another name with"
            " backends.sim.driver",
            id="a driver of another release",
        ),
        pytest.param(
            daemon_set(""),
            SIM,
            f"driver sim.pydra.dev is served by DaemonSet {NAMESPACE}/any, which belongs to no release, already",
            id="a driver of what was applied without Helm",
        ),
        pytest.param(
            daemon_set(f"{NAMESPACE}/first"), SIM, f"is served by release {NAMESPACE}/first", id="in the same namespace"
        ),
        pytest.param(
            {**daemon_set(f"{NAMESPACE}/first"), "spec": {"template": {"spec": {"serviceAccountName": "shared"}}}},
            overlay(NVIDIA, {"serviceAccount": {"create": False, "name": "shared"}}),
            f"serviceAccount.name: release {NAMESPACE}/first has the account shared too, and by slicePolicy.create each"
            " would refuse the other's ResourceSlices: give each release an account of its own",
            id="an account of another release",
        ),
        pytest.param(
            device_class("there/first"),
            SIM,
            "DeviceClass sim.pydra.dev exists already and belongs to release there/first: delete it, keep it with"
            " deviceClasses.create=false, or make this one under another name with backends.sim.deviceClasses.names",
            id="a class of another release",
        ),
        pytest.param(device_class(""), SIM, "exists already and belongs to no release", id="a class made by hand"),
    ],
)
def test_what_another_release_has_is_refused_in_words(found: Object, values: Mapping[str, Any], words: str) -> None:
    with open_cluster(found) as config, pytest.raises(helm_python.HelmRenderError) as caught:
        render_in(config, values)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("found", "values"),
    [
        pytest.param(daemon_set(f"{NAMESPACE}/pydra"), SIM, id="its own DaemonSet"),
        pytest.param(device_class(f"{NAMESPACE}/pydra"), SIM, id="its own class"),
        pytest.param(daemon_set("there/first"), NVIDIA, id="another driver"),
        pytest.param(daemon_set("there/first"), overlay(SIM, at("backends.sim.driver", "mine.dev")), id="renamed"),
        pytest.param(device_class(""), overlay(SIM, at("deviceClasses.create", False)), id="classes are left alone"),
        pytest.param(
            device_class(""),
            overlay(SIM, at("backends.sim.deviceClasses.names", {"sim.pydra.dev": "mine"})),
            id="a class of another name",
        ),
    ],
)
def test_what_is_its_own_or_of_no_concern_is_no_obstacle(found: Object, values: Mapping[str, Any]) -> None:
    with open_cluster(found) as config:
        assert render_in(config, values, upgrade=True).all("DaemonSet")


def test_who_may_see_one_namespace_only_can_install_what_is_in_it_alone() -> None:
    without = [at(one, False) for one in ("slicePolicy.create", "eventPolicy.create", "deviceClasses.create")]
    values = overlay(SIM, at("rbac.create", False), *without)
    cluster_wide = ["apis/apps/v1/daemonsets", "api/v1/nodes"]
    with open_cluster(daemon_set("there/first"), forbidden=cluster_wide) as config:
        assert config.install(CHART, "pydra", values, namespace=NAMESPACE, dry_run="server")["notes"]
    beside = open_cluster(daemon_set(f"{NAMESPACE}/first"), forbidden=cluster_wide)
    with beside as config, pytest.raises(helm_python.HelmError) as caught:
        config.install(CHART, "pydra", values, namespace=NAMESPACE, dry_run="server")
    assert "driver sim.pydra.dev is served by release" in str(caught.value), "as far as it can be seen"


def secret(objects: Objects) -> Object:
    return objects.one("Secret")


@pytest.fixture(scope="module")
def made() -> Objects:
    """A release with a webhook, as it is installed."""
    with open_cluster() as config:
        return render_in(config, WEBHOOK)


def test_a_generated_certificate_is_kept_over_upgrades(made: Objects) -> None:
    with open_cluster() as config:
        assert secret(render_in(config, WEBHOOK))["data"] != secret(made)["data"], (
            "they are made again without a cluster"
        )
    with open_cluster(secret(made)) as config:
        again = render_in(config, WEBHOOK, upgrade=True)
    assert secret(again) == secret(made)
    assert again.one("ValidatingWebhookConfiguration") == made.one("ValidatingWebhookConfiguration")
    assert again.one("Deployment") == made.one("Deployment")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param(
            ("metadata", "annotations", "pydra.dev/certificate-until"), str(int(time.time()) + 29 * DAY), id="soon over"
        ),
        pytest.param(("metadata", "annotations", "pydra.dev/certificate-until"), "", id="nobody knows how long"),
        pytest.param(("metadata", "annotations", "pydra.dev/certificate-host"), "other.svc", id="for another name"),
        pytest.param(("data", "ca.crt"), "", id="without its CA"),
        pytest.param(("data", "tls.key"), "", id="without its key"),
    ],
)
def test_a_certificate_that_is_of_no_use_is_replaced(path: tuple[str, ...], value: str, made: Objects) -> None:
    before = secret(made)["data"]
    part = found = deepcopy(secret(made))
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    with open_cluster(found) as config:
        after = render_in(config, WEBHOOK, upgrade=True)
    assert secret(after)["data"]["tls.crt"] != before["tls.crt"]
    # Pods serve the old one until they are replaced.
    old, new = (base64.b64decode(one["ca.crt"]) for one in (found["data"], secret(after)["data"]))
    assert trusted(after) == new + old


def test_an_old_certificate_is_trusted_until_the_next_upgrade(made: Objects) -> None:
    found = deepcopy(secret(made))
    found["data"]["tls.key"] = ""
    with open_cluster(found) as config:
        after = render_in(config, WEBHOOK, upgrade=True)
    with open_cluster(secret(after)) as config:
        assert trusted(render_in(config, WEBHOOK, upgrade=True)) == base64.b64decode(secret(after)["data"]["ca.crt"])


def trusted(objects: Objects) -> bytes:
    client = objects.one("ValidatingWebhookConfiguration")["webhooks"][0]["clientConfig"]
    return base64.b64decode(client["caBundle"])


def test_fewer_days_count_for_a_certificate_that_there_is(made: Objects) -> None:
    with open_cluster(secret(made)) as config:
        after = render_in(config, overlay(WEBHOOK, at("webhook.tls.days", 90)), upgrade=True)
    assert secret(after)["data"]["tls.crt"] != secret(made)["data"]["tls.crt"]
