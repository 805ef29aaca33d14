"""Wrong values are refused, with words that say where and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import helm_python
import pytest

from tests.chart.rendering import BOTH, KNOWN, NVIDIA, SIM, at, overlay, render

UNKNOWN = "additional properties '{}' not allowed"


def unknown(path: str, name: str) -> tuple[dict[str, Any], str, str]:
    return at(f"{path}.{name}" if path else name, 1), f"at '{place(path)}'", UNKNOWN.format(name)


def place(path: str) -> str:
    return "/" + path.replace(".", "/") if path else ""


def wrong(path: str, value: Any, words: str) -> tuple[dict[str, Any], str, str]:
    return at(path, value), f"at '{place(path)}", words


MISSPELT = [
    unknown("", "backend"),
    unknown("backends.sim", "enable"),
    unknown("backends.any", "node_selector"),
    unknown("backends.nvidia.image", "repo"),
    unknown("backends.nvidia.settings", "dynamicMIG"),
    unknown("backends.sim.settings", "scenarios"),
    unknown("backends.sim.agentSettings", "loglevel"),
    unknown("backends.sim.deviceClasses", "extendedResourceName"),
    unknown("image", "pullpolicy"),
    unknown("packages", "name"),
    unknown("settings", "log_level"),
    unknown("kubelet", "rootDir"),
    unknown("cdi", "dir"),
    unknown("host", "propagation"),
    unknown("http", "address"),
    unknown("updateStrategy", "maxSurge"),
    unknown("updateStrategy.rollingUpdate", "surge"),
    unknown("resources", "request"),
    unknown("serviceAccount", "annotation"),
    unknown("seLinuxOptions", "domain"),
    unknown("rbac", "enabled"),
    unknown("slicePolicy", "enabled"),
    unknown("deviceClasses", "enabled"),
    unknown("resourceQuota", "enabled"),
    unknown("networkPolicy", "enabled"),
    unknown("monitor", "enabled"),
    unknown("dashboard", "enabled"),
    unknown("alerts", "enabled"),
    unknown("openshift", "create"),
    unknown("webhook", "replica"),
    unknown("webhook.tls", "cert"),
    unknown("webhook.tls.issuerRef", "namespace"),
    unknown("computeDomainController", "create"),
]
ILL_TYPED = [
    wrong("backends.sim.enabled", "yes", "got string, want boolean"),
    wrong("backends.sim.driver", "Sim_Driver", "does not match pattern"),
    wrong("backends.sim.driver", f"{'d' * 60}.dev", "maxLength: got 64, want 63"),
    wrong("backends.sim.process.seccompProfile", {"type": "Localhost"}, "missing property 'localhostProfile'"),
    wrong("backends.sim.capabilities", ["CAP_SYS_PTRACE"], "value must be one of 'ALL', 'AUDIT_CONTROL'"),
    wrong("backends.sim.hostPaths", [{"path": "relative"}], "does not match pattern '^/'"),
    wrong("backends.sim.hostPaths", [{"path": "/x", "ro": True}], UNKNOWN.format("ro")),
    wrong("backends.sim.nodeAffinity", [{"key": "x", "operator": "Is"}], "value must be one of 'In', 'NotIn'"),
    wrong("backends.sim.tolerations", {"key": "x"}, "got object, want array"),
    wrong("backends.sim.env", [{"name": "A", "valueFrom": {"secretRef": {}}}], UNKNOWN.format("secretRef")),
    wrong("backends.nvidia.settings.dynamicMig", "true", "got string, want boolean"),
    wrong("backends.nvidia.settings.consumableShares", 0, "minimum: got 0, want 1"),
    wrong("backends.nvidia.settings.signals", {"eccc": "Ignore"}, UNKNOWN.format("eccc")),
    wrong("backends.nvidia.settings.signals.ecc", "Forget", "value must be one of 'Ignore', 'NoExecute'"),
    wrong("backends.nvidia.settings.pollPeriod", 0, "exclusiveMinimum: got 0, want 0"),
    (at("backends.my_fpga.enabled", True), "at '/backends'", UNKNOWN.format("my_fpga")),
    (at("backends.any.settings.A-b", "x"), "at '/backends/any/settings'", UNKNOWN.format("A-b")),
    wrong("image.pullPolicy", "Sometimes", "value must be one of 'Always', 'IfNotPresent', 'Never'"),
    wrong("image.digest", "0123", "does not match pattern"),
    wrong("image.registry", "https://r.io", "does not match pattern"),
    wrong("backends.sim.image.registry", "http://r.io:5000", "does not match pattern"),
    wrong("image.tag", 2, "got number, want string"),
    wrong("settings.healthTaint", "NoRun", "value must be one of"),
    wrong("settings.prepareDeadline", 45, "exclusiveMaximum: got 45, want 45"),
    wrong("settings.healthPeriod", 30, "exclusiveMaximum: got 30, want 30"),
    wrong("settings.sweepPeriod", "1h", "got string, want number"),
    wrong("kubelet.root", "var/lib/kubelet", "does not match pattern '^/'"),
    wrong("http.port", 70000, "maximum: got 70,000, want 65,535"),
    wrong("http.host", "localhost", "does not match pattern"),
    wrong("resources.limits.memory", "512 MB", "does not match pattern"),
    wrong("updateStrategy.rollingUpdate.maxSurge", "one", "does not match pattern"),
    wrong("podLabels.a", 1, "got number, want string"),
    wrong("monitor.kind", "ScrapeConfig", "value must be one of 'PodMonitor', 'ServiceMonitor'"),
    wrong("monitor.interval", "30", "does not match pattern"),
    wrong("alerts.runbookUrl", "wiki", "does not match pattern"),
    wrong("webhook.replicas", 0, "minimum: got 0, want 1"),
    wrong("webhook.failurePolicy", "Panic", "value must be one of 'Fail', 'Ignore'"),
    wrong("webhook.timeoutSeconds", 31, "maximum: got 31, want 30"),
    wrong("webhook.tls.mode", "none", "value must be one of 'generated', 'certManager', 'secret'"),
    wrong("webhook.tls.caBundle", "-----BEGIN", "does not match pattern"),
    wrong("computeDomainController.maxNodes", 10000, "maximum: got 10,000, want 9,999"),
]
GOVERNED = [
    *("backends", "cdiDir", "drivers", "hostRoot", "httpAddress"),
    *("kubeletRoot", "logFile", "nodeName", "podUid", "recordsDir"),
]


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What is said to all of them, with as many in one rendering as are in different places."""
    lines: list[str] = []
    waiting = [*MISSPELT, *ILL_TYPED]
    while waiting:
        together = {where: values for values, where, _ in reversed(waiting)}
        lines += refuse(*together.values()).splitlines()
        waiting = [one for one in waiting if one[0] not in together.values()]
    return lines


def refuse(*values: Mapping[str, Any]) -> str:
    with pytest.raises(helm_python.HelmValuesError) as caught:
        render(SIM, *values)
    return str(caught.value)


@pytest.mark.parametrize(
    ("where", "words"),
    [one[1:] for one in (*MISSPELT, *ILL_TYPED)],
    ids=lambda one: one or "-",
)
def test_the_schema_refuses_what_is_misspelt_or_ill_typed(where: str, words: str, said: list[str]) -> None:
    assert sum(where in line and words in line for line in said) == 1, said


def test_settings_that_other_values_decide_are_refused() -> None:
    said = refuse(at("settings", dict.fromkeys(GOVERNED, 1))).splitlines()
    (line,) = (one for one in said if "at '/settings': additional properties" in one)
    assert [name for name in GOVERNED if f"'{name}'" not in line] == []


def test_the_names_that_are_allowed_are_reported_beside_one_that_is_not() -> None:
    fault, name, allowed = refuse(at("backends.nvidia.settings.dynamicMIG", True)).splitlines()[2:]
    assert fault == "- at '/backends/nvidia/settings': additional properties 'dynamicMIG' not allowed"
    assert name == "- at '': invalid propertyName 'dynamicMIG'"
    assert "'dynamicMig'" in allowed


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param(
            {}, "no backend is enabled, so there is nothing to serve: set backends.NAME.enabled=true", id="none"
        ),
        pytest.param({}, f"the chart knows {KNOWN}", id="none, and what there is"),
        pytest.param(
            at("backends.nvdia.enabled", True),
            "backends.nvdia.driver: the chart does not know this backend, so name its driver, as in fpga.example.com,"
            f" or correct the backend's name; it knows {KNOWN}",
            id="a backend that nobody knows",
        ),
        pytest.param(
            at("backends.fpga", {"enabled": True, "driver": "fpga.example.com"}),
            "backends.fpga.deviceClasses.classes: the chart does not know this backend, so give it a DeviceClass, such"
            """ as {fpga.example.com: {selectors: [{cel: {expression: "device.driver == 'fpga.example.com'"}}]}},""",
            id="a backend without a class",
        ),
        pytest.param(
            overlay(NVIDIA, at("backends.nvdia.settings.dynamicMig", True)),
            "backends.nvdia: neither enabled nor disabled, and the chart does not know this backend;"
            f" set backends.nvdia.enabled, or correct the name; it knows {KNOWN}",
            id="settings of a backend that nobody knows",
        ),
        pytest.param(
            overlay(BOTH, at("backends.sim.driver", "gpu.nvidia.com")),
            "backends.nvidia and backends.sim both serve driver gpu.nvidia.com: give one of them another name with"
            " backends.sim.driver",
            id="one driver twice",
        ),
        pytest.param(
            overlay(SIM, at("serviceAccount.create", False)),
            "serviceAccount.create is false: name the account to use in serviceAccount.name",
            id="no account",
        ),
        pytest.param(
            overlay(SIM, {"onePod": True}, at("backends.sim.image.tag", "2")),
            "backends.sim.image: has no effect with onePod, where all backends are in one container;"
            " set image, or image.onePodRepository",
            id="an image of one in a pod of all",
        ),
        pytest.param(
            overlay(SIM, at("image.onePodRepository", "all")),
            "image.onePodRepository: has no effect without onePod, where each backend has an image",
            id="the image of a pod that there is not",
        ),
        pytest.param(
            overlay(SIM, {"onePod": True}, at("backends.sim.agentSettings.logLevel", "debug")),
            "backends.sim.agentSettings: has no effect with onePod, where all backends are in one container;"
            " set settings",
            id="settings of one in a pod of all",
        ),
        pytest.param(
            overlay(SIM, {"onePod": True}, at("backends.sim.resources.limits.memory", "1Gi")),
            "backends.sim.resources: has no effect with onePod",
            id="resources of one in a pod of all",
        ),
        pytest.param(
            overlay(NVIDIA, at("backends.nvidia.deviceClasses.extendedResourceNames", {"gpu": "a/b"})),
            "deviceClasses.extendedResourceNames: gpu is not a DeviceClass of driver gpu.nvidia.com;"
            " allowed: gpu.nvidia.com, mig.nvidia.com, vfio.gpu.nvidia.com",
            id="an extended resource for no class",
        ),
        pytest.param(
            overlay(SIM, at("backends.sim.deviceClasses.classes", {"sim": None})),
            "deviceClasses.classes: sim is null, to leave it out, but is not a DeviceClass of driver sim.pydra.dev;"
            " allowed: partition.sim.pydra.dev, sim.pydra.dev",
            id="no class to leave out",
        ),
        pytest.param(
            overlay(SIM, at("backends.sim.deviceClasses.names", {"sim": "mine"})),
            "deviceClasses.names: sim is not a DeviceClass of driver sim.pydra.dev",
            id="another name for no class",
        ),
        pytest.param(
            overlay(SIM, at("webhook", {"enabled": True, "tls": {"mode": "secret"}})),
            "webhook.tls.secretName: name the secret with tls.crt and tls.key for"
            " pydra-sim-webhook.pydra-system.svc, or choose another webhook.tls.mode",
            id="no secret",
        ),
        pytest.param(
            overlay(SIM, at("webhook", {"enabled": True, "tls": {"mode": "secret", "secretName": "mine"}})),
            "webhook.tls.caBundle: the API server must trust the certificate of webhook.tls.secretName",
            id="no CA",
        ),
        pytest.param(
            overlay(
                SIM,
                {"webhook": {"enabled": True, "tls": {"mode": "secret", "secretName": "a", "caBundle": "bWluZQ=="}}},
            ),
            "webhook.tls.caBundle: found no certificate in it; it is PEM in base64, as `base64 -w0 ca.crt` prints it",
            id="a CA that is none",
        ),
        *(
            pytest.param(
                overlay(SIM, {"webhook": {"enabled": True, "tls": tls}}),
                f"webhook.tls.{key}: has no effect with webhook.tls.mode={mode}; set webhook.tls.mode={needed}",
                id=f"{key} with {mode}",
            )
            for key, mode, needed, tls in (
                ("secretName", "generated", "secret", {"secretName": "mine"}),
                ("caBundle", "certManager", "secret", {"mode": "certManager", "caBundle": "bWluZQ=="}),
                ("issuerRef", "generated", "certManager", {"issuerRef": {"name": "mine"}}),
            )
        ),
        pytest.param(
            overlay(SIM, {"webhook": {"enabled": True, "port": 9464}}),
            "webhook.port and http.port are both 9464, and a pod can listen there once",
            id="one port for two",
        ),
        *(
            pytest.param(
                overlay(SIM, at("http.host", host)),
                f"http.host: {host} is the pod's loopback, and the kubelet asks the pod's own address",
                id=f"probes cannot reach {host}",
            )
            for host in ("127.0.0.1", "127.1.2.3", "::1", "0:0:0:0:0:0:0:1", "0000::0001", "::ffff:127.0.0.1")
        ),
        pytest.param(
            overlay(SIM, at("backends.sim.process", {"runAsUser": 65532, "cpuLimit": "500m"})),
            "backends.sim.process.cpuLimit: only privileged containers may make the cgroup that it needs;"
            " set backends.sim.privileged, leave it out, or limit the container with resources",
            id="a limit without the cgroup for it",
        ),
        pytest.param(
            overlay(SIM, {"alerts": {"create": True, "disabled": ["PydraSlow"]}}),
            "alerts.disabled: PydraSlow is not an alert; allowed: PydraAgentNotReady, ",
            id="an alert that there is not",
        ),
        pytest.param(
            overlay(
                BOTH,
                {"onePod": True},
                at("backends.sim.runtimeClassName", "a"),
                at("backends.nvidia.runtimeClassName", "b"),
            ),
            "with onePod all backends have one runtimeClassName; found b, a",
            id="two runtimes for one pod",
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused(values: Mapping[str, Any], words: str) -> None:
    with pytest.raises(helm_python.HelmRenderError) as caught:
        render(values)
    assert words in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0:0:0:0:0:0:0:0", "10.127.0.1", "fd00::1", "2001:db8::127"])
def test_addresses_that_probes_may_reach_are_taken(host: str) -> None:
    assert render(SIM, at("http.host", host)).all("DaemonSet")
