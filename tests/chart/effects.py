"""A table of every value: around what it is set to what, where to look then, and what is found there."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import yaml
from cryptography import x509

from tests.chart.rendering import COMPUTE_DOMAIN, NVIDIA, SIM, Object, Objects, at, by_name, overlay, settings_file

TOLERATION = {"key": "mine", "operator": "Exists"}
LINUX = {"kubernetes.io/os": "linux"}
AFFINITY = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "role", "operator": "In", "values": ["infra"]}]}]
    }
}
SLOW_START = {
    "httpGet": {"path": "/healthz", "port": "metrics"},
    "periodSeconds": 1,
    "timeoutSeconds": 5,
    "failureThreshold": 600,
}
RESOURCES = {"limits": {"memory": "1Gi"}}
VARIABLE = {"name": "PIP_INDEX_URL", "valueFrom": {"secretKeyRef": {"name": "pip", "key": "url"}}}
CA, OTHER_CA = (base64.b64encode(f"-----BEGIN CERTIFICATE-----\n{one}".encode()).decode() for one in ("one", "other"))
DIGEST = f"sha256:{'0' * 64}"
PEER = {"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}
WEBHOOK = overlay(SIM, at("webhook.enabled", True))
ALERTS = overlay(SIM, at("alerts.create", True))
CERT_MANAGER = overlay(WEBHOOK, at("webhook.tls.mode", "certManager"))
SECRET = overlay(WEBHOOK, at("webhook.tls", {"mode": "secret", "secretName": "mine", "caBundle": CA}))
PACKAGES = overlay(SIM, at("packages.names", ["pydra-fpga"]))
DOMAINS = overlay(COMPUTE_DOMAIN, at("computeDomainController.enabled", True))

Look = Callable[[Objects], Any]


def pod(*path: str) -> Look:
    return lambda objects: dig(objects.pod(), path)


def agent(*path: str) -> Look:
    return lambda objects: dig(objects.agent(), path)


def installer(*path: str) -> Look:
    return lambda objects: dig(objects.pod()["initContainers"][0], path)


def settings(objects: Objects) -> Any:
    return yaml.safe_load(settings_file(objects))


def of(kind: str, *path: str, name: str = "") -> Look:
    return lambda objects: dig(objects.one(kind, name), path)


def template(*path: str) -> Look:
    return lambda objects: dig(objects.one("DaemonSet")["spec"]["template"], path)


def deployed_pod(*path: str) -> Look:
    return lambda objects: dig(objects.one("Deployment")["spec"]["template"]["spec"], path)


def controller_has(argument: str) -> Look:
    return lambda objects: argument in deployed_pod("containers", "0", "args")(objects)


def webhook(*path: str) -> Look:
    return lambda objects: dig(objects.one("ValidatingWebhookConfiguration")["webhooks"][0], path)


def first_rule(*path: str) -> Look:
    return lambda objects: dig(objects.one("PrometheusRule")["spec"]["groups"][0]["rules"][0], path)


def volume(name: str) -> Look:
    return lambda objects: by_name(objects.pod()["volumes"])[name].get("hostPath")


def mount(name: str) -> Look:
    return lambda objects: by_name(objects.agent()["volumeMounts"])[name]


def only(entries: list[Object], **wanted: Any) -> Object:
    """The only one that has these entries."""
    found = [one for one in entries if wanted.items() <= one.items()]
    if len(found) != 1:
        raise LookupError(f"{len(found)} have {wanted}")
    return found[0]


def count(kind: str) -> Look:
    return lambda objects: len(objects.all(kind))


def find_terms(objects: Objects, daemon_set: str = "") -> Any:
    required = objects.pod(daemon_set)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return required["nodeSelectorTerms"]


def dig(found: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        found = found[int(step)] if isinstance(found, list) else (found or {}).get(step)
    return found


def has(expected: Mapping[str, Any]) -> Any:
    """Equal to a mapping that has these entries among others."""

    class Has(dict[str, Any]):
        __hash__ = None

        def __eq__(self, other: object) -> bool:
            return isinstance(other, dict) and self.items() <= other.items()

    return Has(expected)


def lasts(secret: Object) -> int:
    """Days that the generated certificate is valid."""
    certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
    return (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days


B = "backends.sim"
"""Where a backend's own values are tried."""

LOCAL_PROFILE = {"type": "Localhost", "localhostProfile": "pydra.json"}
CASES: list[tuple[str, Mapping[str, Any], Any, Look, Any]] = [
    (f"{B}.enabled", NVIDIA, True, lambda objects: objects.names() >= {"DaemonSet/pydra-sim"}, True),
    (f"{B}.driver", SIM, "sim.example.com", agent("args", "1"), "--driver=sim=sim.example.com"),
    (f"{B}.privileged", SIM, True, agent("securityContext", "privileged"), True),
    (f"{B}.hostPID", SIM, True, pod("hostPID"), True),
    (f"{B}.hostNetwork", SIM, True, pod("hostNetwork"), True),
    (f"{B}.capabilities", SIM, ["SYS_NICE"], agent("securityContext", "capabilities", "add"), ["SYS_NICE"]),
    (
        f"{B}.process",
        SIM,
        {"runAsUser": 65532},
        agent("securityContext", "capabilities", "add"),
        ["KILL", "SETGID", "SETUID"],
    ),
    (f"{B}.runtimeClassName", SIM, "nvidia", pod("runtimeClassName"), "nvidia"),
    (f"{B}.image", SIM, {"registry": "r.io", "repository": "own", "tag": "2"}, agent("image"), "r.io/own:2"),
    (f"{B}.packages", SIM, ["pydra-fpga"], installer("args"), ["pydra-fpga"]),
    (
        f"{B}.nodeSelector",
        SIM,
        {"zone": "b"},
        find_terms,
        [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}],
    ),
    (
        f"{B}.nodeAffinity",
        overlay(SIM, at(f"{B}.nodeSelector", {"zone": "b"})),
        [{"key": "x", "operator": "Exists"}, {"key": "y", "operator": "Exists"}],
        lambda objects: [[one["key"] for one in term["matchExpressions"]] for term in find_terms(objects)],
        [["x", "zone"], ["y", "zone"]],
    ),
    (f"{B}.tolerations", SIM, [TOLERATION], pod("tolerations"), [TOLERATION]),
    (
        f"{B}.hostPaths",
        SIM,
        [{"path": "/run/x", "mountPath": "/y", "readOnly": True, "mountPropagation": "HostToContainer"}],
        lambda objects: only(objects.agent()["volumeMounts"], mountPath="/y"),
        has({"mountPath": "/y", "readOnly": True, "mountPropagation": "HostToContainer"}),
    ),
    (
        f"{B}.hostPaths",
        SIM,
        [{"path": "/run/x", "type": "Socket"}],
        lambda objects: only(objects.pod()["volumes"], hostPath={"path": "/run/x", "type": "Socket"})["hostPath"][
            "path"
        ],
        "/run/x",
    ),
    (
        f"{B}.nodePools",
        overlay(SIM, at(f"{B}.settings", {"scenario": "shared"})),
        {"label": "kind", "pools": {"big": {"values": ["b1", "b2"], "settings": {"scenario": "partitions"}}}},
        lambda objects: {
            name: (
                [term["matchExpressions"] for term in find_terms(objects, name)],
                yaml.safe_load(settings_file(objects, name))["backendSettings"]["sim"]["scenario"],
            )
            for name in ("pydra-sim", "pydra-sim-big")
        },
        {
            "pydra-sim": ([[{"key": "kind", "operator": "NotIn", "values": ["b1", "b2"]}]], "shared"),
            "pydra-sim-big": ([[{"key": "kind", "operator": "In", "values": ["b1", "b2"]}]], "partitions"),
        },
    ),
    (
        f"{B}.volumes",
        SIM,
        [{"name": "licence", "mountPath": "/etc/licence", "readOnly": True, "secret": {"secretName": "licence"}}],
        lambda objects: (by_name(objects.pod()["volumes"])["licence"], mount("licence")(objects)),
        (
            {"name": "licence", "secret": {"secretName": "licence"}},
            {"name": "licence", "mountPath": "/etc/licence", "readOnly": True},
        ),
    ),
    (
        f"{B}.settings",
        SIM,
        {"scenario": "shared"},
        settings,
        has({"backendSettings": {"sim": {"scenario": "shared", "state": "/var/run/pydra-sim"}}}),
    ),
    (
        f"{B}.overheads",
        SIM,
        {"memory": {"perPod": "64Mi"}},
        settings,
        has({"backendOverheads": {"sim": {"memory": {"perPod": "64Mi"}}}}),
    ),
    (
        f"{B}.settingsNeed",
        overlay(SIM, at(f"{B}.settings.scenario", "shared")),
        {"hostPID": {"scenario": "partitions"}},
        pod("hostPID"),
        True,
    ),
    (f"{B}.env", SIM, [VARIABLE], lambda objects: by_name(objects.agent()["env"])["PIP_INDEX_URL"], VARIABLE),
    (f"{B}.resources", SIM, RESOURCES, agent("resources"), RESOURCES),
    (f"{B}.agentSettings", SIM, {"logLevel": "debug"}, settings, has({"logLevel": "debug"})),
    (
        f"{B}.deviceClasses.extendedResourceNames",
        SIM,
        {"sim.pydra.dev": "pydra.dev/sim"},
        of("DeviceClass", "spec", "extendedResourceName", name="sim.pydra.dev"),
        "pydra.dev/sim",
    ),
    (
        f"{B}.deviceClasses.names",
        SIM,
        {"sim.pydra.dev": "mine"},
        lambda objects: len(objects.all("DeviceClass", "mine")),
        1,
    ),
    (
        f"{B}.deviceClasses.classes",
        SIM,
        {"any": {"selectors": []}},
        of("DeviceClass", "spec", name="any"),
        {"selectors": []},
    ),
    ("onePod", SIM, True, of("DaemonSet", "metadata", "name"), "pydra"),
    ("image.registry", SIM, "r.io/team/", agent("image"), "r.io/team/pydra-sim:0.1.0"),
    ("image.repository", SIM, "mine", agent("image"), "mine-sim:0.1.0"),
    ("image.onePodRepository", overlay(SIM, at("onePod", True)), "all", agent("image"), "all:0.1.0"),
    ("image.tag", SIM, "2.0", agent("image"), "pydra-sim:2.0"),
    ("image.digest", SIM, DIGEST, agent("image"), f"pydra-sim@{DIGEST}"),
    ("image.pullPolicy", SIM, "Never", agent("imagePullPolicy"), "Never"),
    ("imagePullSecrets", SIM, [{"name": "mine"}], pod("imagePullSecrets"), [{"name": "mine"}]),
    ("packages.names", SIM, ["pydra-fpga"], installer("args"), ["pydra-fpga"]),
    ("packages.pipArguments", PACKAGES, ["--pre"], installer("args"), ["--pre", "pydra-fpga"]),
    ("packages.env", PACKAGES, [VARIABLE], installer("env", "1"), VARIABLE),
    ("packages.resources", PACKAGES, RESOURCES, installer("resources"), RESOURCES),
    ("settings", SIM, {"healthTaint": "NoExecute"}, settings, has({"healthTaint": "NoExecute"})),
    (
        "kubelet.root",
        SIM,
        "/data/kubelet",
        lambda objects: by_name(objects.agent()["env"])["PYDRA_KUBELET_ROOT"]["value"],
        "/data/kubelet",
    ),
    (
        "kubelet.root",
        SIM,
        "/k",
        volume("plugin-sim"),
        {"path": "/k/plugins/sim.pydra.dev", "type": "DirectoryOrCreate"},
    ),
    ("kubelet.root", SIM, "/k", mount("registry"), has({"mountPath": "/k/plugins_registry"})),
    ("records.path", SIM, "/state", settings, has({"recordsDir": "/state"})),
    (
        "records.path",
        SIM,
        "/state",
        volume("records-sim"),
        {"path": "/state/sim.pydra.dev", "type": "DirectoryOrCreate"},
    ),
    ("records.path", SIM, "/state", mount("records-sim"), has({"mountPath": "/state/sim.pydra.dev"})),
    ("cdi.path", SIM, "/etc/cdi", settings, has({"cdiDir": "/etc/cdi"})),
    ("cdi.path", SIM, "/etc/cdi", volume("cdi"), has({"path": "/etc/cdi"})),
    ("host.mountPropagation", SIM, "None", mount("host"), has({"mountPropagation": "None"})),
    ("http.host", SIM, "::", settings, has({"httpAddress": "[::]:9464"})),
    ("http.port", SIM, 8080, settings, has({"httpAddress": "0.0.0.0:8080"})),
    ("http.port", SIM, 8080, agent("ports", "0", "containerPort"), 8080),
    ("probes", SIM, {"startup": {"failureThreshold": 600}}, agent("startupProbe"), SLOW_START),
    ("nameOverride", SIM, "other", of("DaemonSet", "metadata", "name"), "pydra-other-sim"),
    ("fullnameOverride", SIM, "other", of("DaemonSet", "metadata", "name"), "other-sim"),
    ("namespaceOverride", SIM, "other", of("DaemonSet", "metadata", "namespace"), "other"),
    ("priorityClassName", SIM, "mine", pod("priorityClassName"), "mine"),
    ("priorityClassName", SIM, "", pod("priorityClassName"), None),
    ("resourceQuota.create", SIM, False, count("ResourceQuota"), 0),
    (
        "updateStrategy",
        SIM,
        {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        of("DaemonSet", "spec", "updateStrategy", "rollingUpdate"),
        {"maxSurge": 0, "maxUnavailable": 1},
    ),
    ("resources", SIM, RESOURCES, agent("resources", "limits"), RESOURCES["limits"]),
    ("podAnnotations", SIM, {"a": "b"}, template("metadata", "annotations"), has({"a": "b"})),
    (
        "podLabels",
        SIM,
        {"a": "b", "app.kubernetes.io/name": "x"},
        template("metadata", "labels"),
        has({"a": "b", "app.kubernetes.io/name": "pydra"}),
    ),
    (
        "commonLabels",
        overlay(SIM, at("podLabels", {"a": "pod"})),
        {"a": "b", "c": "d"},
        template("metadata", "labels"),
        has({"a": "pod", "c": "d", "app.kubernetes.io/name": "pydra"}),
    ),
    ("seccompProfile", SIM, LOCAL_PROFILE, pod("securityContext", "seccompProfile"), LOCAL_PROFILE),
    ("seLinuxOptions", SIM, {"type": "spc_t"}, agent("securityContext", "seLinuxOptions"), {"type": "spc_t"}),
    (
        "seLinuxOptions",
        overlay(SIM, at("openshift.enabled", True)),
        {"level": "s0:c1"},
        agent("securityContext", "seLinuxOptions"),
        {"type": "spc_t", "level": "s0:c1"},
    ),
    ("nodeSelector", SIM, {"a": "b"}, pod("nodeSelector"), LINUX | {"a": "b"}),
    ("tolerations", SIM, [TOLERATION], pod("tolerations"), [TOLERATION]),
    ("serviceAccount.create", overlay(SIM, at("serviceAccount.name", "mine")), False, count("ServiceAccount"), 1),
    ("serviceAccount.name", SIM, "mine", pod("serviceAccountName"), "mine"),
    (
        "serviceAccount.annotations",
        SIM,
        {"a": "b"},
        of("ServiceAccount", "metadata", "annotations", name="pydra"),
        {"a": "b"},
    ),
    ("rbac.create", SIM, False, count("ClusterRole"), 1),
    (
        "rbac.listClaims",
        SIM,
        True,
        of("ClusterRole", "rules", "0", "verbs", name="pydra-agent.pydra-system"),
        ["get", "list"],
    ),
    ("slicePolicy.create", SIM, False, count("ValidatingAdmissionPolicy"), 1),
    ("eventPolicy.create", SIM, False, count("ValidatingAdmissionPolicy"), 1),
    ("deviceClasses.create", SIM, False, count("DeviceClass"), 0),
    ("configPolicy.create", SIM, True, count("ValidatingAdmissionPolicy"), 3),
    ("networkPolicy.create", SIM, True, count("NetworkPolicy"), 1),
    (
        "networkPolicy.from",
        overlay(SIM, at("networkPolicy.create", True)),
        [PEER],
        of("NetworkPolicy", "spec", "ingress", "0", "from"),
        [PEER, {"podSelector": {"matchLabels": {"pydra.dev/test": "pydra"}}}],
    ),
    (
        "networkPolicy.egress",
        overlay(SIM, at("networkPolicy.create", True)),
        [{"ports": [{"port": 6443}]}],
        of("NetworkPolicy", "spec", "policyTypes"),
        ["Ingress", "Egress"],
    ),
    ("monitor.create", SIM, True, count("PodMonitor"), 1),
    ("monitor.kind", overlay(SIM, at("monitor.create", True)), "ServiceMonitor", count("ServiceMonitor"), 1),
    (
        "monitor.interval",
        overlay(SIM, at("monitor.create", True)),
        "5s",
        of("PodMonitor", "spec", "podMetricsEndpoints", "0", "interval"),
        "5s",
    ),
    (
        "monitor.labels",
        overlay(SIM, at("monitor.create", True)),
        {"a": "b"},
        of("PodMonitor", "metadata", "labels"),
        has({"a": "b"}),
    ),
    ("alerts.create", SIM, True, count("PrometheusRule"), 1),
    ("alerts.labels", ALERTS, {"a": "b"}, of("PrometheusRule", "metadata", "labels"), has({"a": "b"})),
    ("alerts.ruleLabels", ALERTS, {"team": "gpu"}, first_rule("labels"), has({"team": "gpu"})),
    ("alerts.disabled", ALERTS, ["PydraAgentNotReady"], first_rule("alert"), "PydraClusterUnsupported"),
    (
        "alerts.runbookUrl",
        ALERTS,
        "https://wiki.example.com/",
        first_rule("annotations", "runbook_url"),
        "https://wiki.example.com/PydraAgentNotReady",
    ),
    ("dashboard.create", SIM, True, lambda objects: len(objects.all("ConfigMap", "pydra-dashboard")), 1),
    (
        "dashboard.labels",
        overlay(SIM, at("dashboard.create", True)),
        {"a": "b"},
        of("ConfigMap", "metadata", "labels", name="pydra-dashboard"),
        has({"a": "b"}),
    ),
    (
        "dashboard.annotations",
        overlay(SIM, at("dashboard.create", True)),
        {"a": "b"},
        of("ConfigMap", "metadata", "annotations", name="pydra-dashboard"),
        {"a": "b"},
    ),
    ("openshift.enabled", SIM, True, agent("securityContext", "seLinuxOptions"), {"type": "spc_t"}),
    ("webhook.enabled", SIM, True, count("Deployment"), 1),
    ("webhook.replicas", SECRET, 3, of("Deployment", "spec", "replicas"), 3),
    ("webhook.failurePolicy", SECRET, "Ignore", webhook("failurePolicy"), "Ignore"),
    ("webhook.timeoutSeconds", SECRET, 9, webhook("timeoutSeconds"), 9),
    (
        "http.host",
        SECRET,
        "10.0.0.1",
        lambda objects: [one for one in deployed_pod("containers", "0", "args")(objects) if "address" in one],
        ["--address=0.0.0.0:8443", "--http-address=10.0.0.1:9464"],
    ),
    (
        "webhook.priorityClassName",
        SECRET,
        "",
        of("ResourceQuota", "spec", "scopeSelector", "matchExpressions", "0", "values"),
        ["system-node-critical"],
    ),
    ("webhook.port", SECRET, 9443, deployed_pod("containers", "0", "ports", "0", "containerPort"), 9443),
    (
        "webhook.port",
        SECRET,
        9443,
        lambda objects: "--address=0.0.0.0:9443" in deployed_pod("containers", "0", "args")(objects),
        True,
    ),
    ("webhook.tls.mode", WEBHOOK, "certManager", count("Certificate"), 2),
    ("webhook.tls.days", WEBHOOK, 90, lambda objects: lasts(objects.one("Secret")), 90),
    (
        "webhook.tls.issuerRef",
        CERT_MANAGER,
        {"name": "mine", "kind": "ClusterIssuer"},
        of("Certificate", "spec", "issuerRef"),
        {"name": "mine", "kind": "ClusterIssuer", "group": "cert-manager.io"},
    ),
    ("webhook.tls.secretName", SECRET, "other", deployed_pod("volumes", "0", "secret", "secretName"), "other"),
    ("webhook.tls.caBundle", SECRET, OTHER_CA, webhook("clientConfig", "caBundle"), OTHER_CA),
    ("webhook.priorityClassName", WEBHOOK, "mine", deployed_pod("priorityClassName"), "mine"),
    (
        "webhook.resources",
        SECRET,
        RESOURCES,
        deployed_pod("containers", "0", "resources", "limits"),
        RESOURCES["limits"],
    ),
    ("webhook.nodeSelector", SECRET, {"a": "b"}, deployed_pod("nodeSelector"), LINUX | {"a": "b"}),
    ("webhook.tolerations", SECRET, [TOLERATION], deployed_pod("tolerations"), [TOLERATION]),
    ("webhook.affinity", SECRET, {"nodeAffinity": AFFINITY}, deployed_pod("affinity"), {"nodeAffinity": AFFINITY}),
    (
        "webhook.probes",
        SECRET,
        {"startup": {"failureThreshold": 600}},
        deployed_pod("containers", "0", "startupProbe"),
        SLOW_START,
    ),
    ("computeDomainController.enabled", COMPUTE_DOMAIN, True, count("CustomResourceDefinition"), 2),
    ("computeDomainController.replicas", DOMAINS, 1, count("PodDisruptionBudget"), 0),
    ("computeDomainController.maxNodes", DOMAINS, 36, controller_has("--max-nodes=36"), True),
    ("computeDomainController.tlsSecret", DOMAINS, "mine", controller_has("--tls-secret=mine"), True),
    ("computeDomainController.priorityClassName", DOMAINS, "mine", deployed_pod("priorityClassName"), "mine"),
    (
        "computeDomainController.resources",
        DOMAINS,
        RESOURCES,
        deployed_pod("containers", "0", "resources", "limits"),
        RESOURCES["limits"],
    ),
    (
        "computeDomainController.nodeSelector",
        DOMAINS,
        {"a": "b"},
        deployed_pod("nodeSelector"),
        LINUX | {"a": "b"},
    ),
    ("computeDomainController.tolerations", DOMAINS, [TOLERATION], deployed_pod("tolerations"), [TOLERATION]),
    (
        "computeDomainController.affinity",
        DOMAINS,
        {"nodeAffinity": AFFINITY},
        deployed_pod("affinity"),
        {"nodeAffinity": AFFINITY},
    ),
]
