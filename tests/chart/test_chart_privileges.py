"""No more rights than needed, and those that docs/install.md tells of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from cel_expr_python import cel

from pydra.agent.assembly import REQUESTS
from pydra.observability.metrics import Metrics
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
    Object,
    Objects,
    at,
    by_name,
    overlay,
    render,
)

GUIDE = (CHART.parents[1] / "docs" / "install.md").read_text()
ALL_ON = overlay(
    BOTH,
    AMD,
    CPU,
    NET,
    TPU,
    {
        "packages": {"names": ["a"]},
        "webhook": {"enabled": True},
        "monitor": {"create": True},
        "networkPolicy": {"create": True},
        "dashboard": {"create": True},
    },
)

STATUS = {"deviceStatus": True}
SLICES, EVENTS = "pydra-slices.pydra-system", "pydra-events.pydra-system"
AGENTS = ("pydra-amd", "pydra-cpu", "pydra-net", "pydra-nvidia", "pydra-sim", "pydra-tpu")


def pods(objects: Objects) -> list[tuple[str, Object]]:
    found = [(one["metadata"]["name"], one["spec"]) for one in objects.all("Pod")]
    for kind in ("DaemonSet", "Deployment"):
        found += [(one["metadata"]["name"], one["spec"]["template"]["spec"]) for one in objects.all(kind)]
    return found


def containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def guide_object(kind: str) -> Any:
    blocks = re.findall(r"```yaml\n(.*?)```", GUIDE, flags=re.DOTALL)
    (found,) = [one for block in blocks for one in yaml.safe_load_all(block) if one.get("kind") == kind]
    return found


def test_pods_can_be_where_a_quota_wants_limits() -> None:
    limited = {"limits": {"cpu": "1", "memory": "256Mi"}}
    values = [at(f"{part}resources", limited) for part in ("", "packages.", "webhook.", "computeDomainController.")]
    objects = render(ALL_ON, COMPUTE_DOMAIN, at("computeDomainController.enabled", True), *values)
    for name, pod in pods(objects):
        for container in containers(pod):
            assert {"cpu", "memory"} <= container["resources"]["limits"].keys(), (name, container["name"])


def as_rules(rules: list[Object]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_agents_role_is_that_of_the_guide() -> None:
    role = render(SIM).one("ClusterRole", "pydra-agent.pydra-system")
    assert as_rules(role["rules"]) == as_rules(guide_object("ClusterRole")["rules"])


@pytest.mark.parametrize(
    "its",
    [
        {"agentSettings": STATUS},
        {"nodePools": {"label": "l", "pools": {"a": {"values": ["b"], "agentSettings": STATUS}}}},
    ],
)
def test_one_agent_that_writes_status_is_allowed_to(its: Object) -> None:
    role = render(SIM, at("backends.sim", its)).one("ClusterRole", "pydra-agent.pydra-system")
    assert ("resource.k8s.io", "resourceclaims/status", "patch") in as_rules(role["rules"])


def test_requests_have_series_from_the_start_if_the_agents_role_allows_them() -> None:
    metrics = Metrics()
    metrics.announce_requests((verb, str(resource)) for resource, verbs in REQUESTS.items() for verb in verbs)
    name = "pydra_kubernetes_request_duration_seconds_count"
    found = re.findall(rf'{name}{{resource="(.*)",status="(.*)",verb="(.*)"}} 0.0', metrics.text().decode())
    assert len(found) == len(set(found))
    role = render(SIM).one("ClusterRole", "pydra-agent.pydra-system")
    assert set(found) == {
        (f"{plural}.{group}".rstrip("."), "201" if verb == "create" else "200", verb)
        for group, plural, verb in as_rules(role["rules"])
    }


def test_the_agents_pod_is_that_of_the_guide() -> None:
    daemon_set, pod = guide_object("DaemonSet")["spec"], render(SIM).pod()
    guide = daemon_set["template"]["spec"]
    (theirs,), (ours,) = guide["containers"], pod["containers"]
    assert {one["name"] for one in theirs["env"]} <= {one["name"] for one in ours["env"]}
    for probe in ("readinessProbe", "livenessProbe"):
        assert ours[probe]["httpGet"] == theirs[probe]["httpGet"]
    assert pod["securityContext"]["runAsUser"] == theirs["securityContext"]["runAsUser"]
    assert {**ours["securityContext"], "runAsUser": 0}.items() >= theirs["securityContext"].items()
    mounts = {one["mountPath"] for one in ours["volumeMounts"]}
    for one in theirs["volumeMounts"]:
        # The guide mounts all plugins' directories, the chart only that of its driver.
        assert one["mountPath"] in mounts or f"{one['mountPath']}/sim.pydra.dev" in mounts
    assert pod["terminationGracePeriodSeconds"] == guide["terminationGracePeriodSeconds"]
    strategy = render(SIM).one("DaemonSet")["spec"]["updateStrategy"]
    assert strategy == daemon_set["updateStrategy"]


def test_the_directories_of_the_guide_are_mounted_at_the_hosts_paths() -> None:
    written = set(re.findall(r"^\| `([^`]+)` \| write", GUIDE, flags=re.MULTILINE))
    assert len(written) == 4
    pod = render(SIM).pod()
    volumes = by_name(pod["volumes"])
    places = {
        one["mountPath"]: volumes[one["name"]]["hostPath"]["path"]
        for one in pod["containers"][0]["volumeMounts"]
        if "hostPath" in volumes[one["name"]] and not one.get("readOnly")
    }
    assert places == {
        path: path for path in {one.replace("DRIVER", "sim.pydra.dev") for one in written} | {"/var/run/pydra-sim"}
    }


def test_nobody_but_the_nvidia_agent_is_privileged() -> None:
    for name, pod in pods(render(ALL_ON)):
        for container in containers(pod):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, name
            if (name, container["name"]) == ("pydra-nvidia", "agent"):
                assert context["privileged"] is True
                continue
            assert context["allowPrivilegeEscalation"] is False, name
            of_net = {"add": ["NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW", "SYS_ADMIN"]}
            kept = of_net if (name, container["name"]) == ("pydra-net", "agent") else {}
            assert context["capabilities"] == {"drop": ["ALL"], **kept}, name
            assert "privileged" not in context, name
            profiles = [pod["securityContext"].get("seccompProfile"), context.get("seccompProfile")]
            assert {"type": "RuntimeDefault"} in profiles, name


def test_the_net_agent_can_write_where_virtual_functions_are_made_if_it_makes_some_and_nowhere_else() -> None:
    objects = render(NET, at("backends.net.settings.virtualFunctions", "eth1=8"))
    agent, volumes = objects.agent(), by_name(objects.pod()["volumes"])
    assert by_name(agent["env"])["PYDRA_NET_SYS_ROOT"]["value"] == "/host/sys"
    below = {one["mountPath"]: one for one in agent["volumeMounts"] if one["mountPath"].startswith("/host")}
    assert below.keys() == {"/host", "/host/sys/devices"}
    assert below["/host"]["readOnly"] is True
    devices = below["/host/sys/devices"]
    assert not devices.get("readOnly")
    assert volumes[devices["name"]]["hostPath"] == {"path": "/sys/devices", "type": "Directory"}
    without = render(NET).agent()
    assert agent["securityContext"] == without["securityContext"]
    assert "/host/sys/devices" not in [one["mountPath"] for one in without["volumeMounts"]]
    assert "PYDRA_NET_SYS_ROOT" not in by_name(without["env"])


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ({}, ""),
        ({"partitioning": "existing", "vfio": False}, ""),
        ({"partitioning": "memory"}, "/sys/devices"),
        ({"partitioning": "compute", "vfio": True}, "/sys"),
    ],
)
def test_the_amd_agent_can_write_what_its_settings_change_of_sys_and_nowhere_else(
    settings: dict[str, object], written: str
) -> None:
    agent = render({"backends": {"amd": {"enabled": True, "settings": settings}}}).agent()
    below = [one["mountPath"] for one in agent["volumeMounts"] if one["mountPath"].startswith("/host/")]
    assert below == ([f"/host{written}"] if written else [])
    assert ("PYDRA_AMD_SYS_ROOT" in by_name(agent["env"])) is bool(written)


def test_values_that_mount_sys_at_a_place_of_their_own_are_left_as_they_are() -> None:
    env = [{"name": "PYDRA_AMD_SYS_ROOT", "value": "/host-sys"}]
    paths = [{"path": "/sys", "mountPath": "/host-sys"}]
    amd = {"enabled": True, "settings": {"partitioning": "compute"}, "env": env, "hostPaths": paths}
    agent = render({"backends": {"amd": amd}}).agent()
    assert [one for one in agent["env"] if one["name"] == "PYDRA_AMD_SYS_ROOT"] == env
    assert "/host/sys/devices" not in [one["mountPath"] for one in agent["volumeMounts"]]


def test_a_pool_of_nodes_can_write_there_if_its_settings_need_it() -> None:
    pools = {"label": "pool", "pools": {"cards": {"values": ["cards"], "settings": {"virtualFunctions": "eth1=8"}}}}
    objects = render(NET, at("backends.net.nodePools", pools))
    for name, mounted in (("pydra-net", False), ("pydra-net-cards", True)):
        mounts = [one["mountPath"] for one in objects.agent(name)["volumeMounts"]]
        assert ("/host/sys/devices" in mounts) is mounted


def test_only_agents_are_user_0() -> None:
    for name, pod in pods(render(ALL_ON)):
        if name in AGENTS:
            assert pod["securityContext"]["runAsUser"] == 0
        else:
            assert pod["securityContext"]["runAsNonRoot"] is True, name


def test_what_pip_installs_runs_as_a_user_of_its_own() -> None:
    for name, pod in pods(render(ALL_ON)):
        for one in pod.get("initContainers", ()):
            context = {**pod["securityContext"], **one["securityContext"]}
            assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 65532), name
            assert one["terminationMessagePolicy"] == "FallbackToLogsOnError", "pip's last words are shown"
    on_openshift = render(ALL_ON, at("openshift.enabled", True)).one("Deployment", "pydra-sim-webhook")
    (installer,) = on_openshift["spec"]["template"]["spec"]["initContainers"]
    assert "runAsUser" not in installer["securityContext"], "the namespace's range has no such user"


def test_only_the_net_agent_has_the_hosts_network_and_only_mps_its_processes() -> None:
    for name, pod in pods(render(ALL_ON)):
        assert not {"hostIPC", "hostUsers"} & set(pod), name
        assert pod.get("hostNetwork", False) is (name == "pydra-net")
        assert pod.get("hostPID", False) is (name == "pydra-nvidia")
        assert not any("hostPort" in port for one in containers(pod) for port in one.get("ports", ()))


def test_the_hosts_network_is_by_value_and_its_port_is_free_before_the_next_agent_starts() -> None:
    backends = overlay(BOTH, at("backends.sim.hostNetwork", True))
    objects = render(backends, at("openshift.enabled", True))
    assert (objects.pod("pydra-sim")["hostNetwork"], objects.pod("pydra-sim")["dnsPolicy"]) == (
        True,
        "ClusterFirstWithHostNet",
    )
    assert not {"hostNetwork", "dnsPolicy"} & set(objects.pod("pydra-nvidia"))
    replaced = {
        one["metadata"]["name"]: one["spec"]["updateStrategy"]["rollingUpdate"] for one in objects.all("DaemonSet")
    }
    assert replaced == {
        "pydra-sim": {"maxSurge": 0, "maxUnavailable": 1},
        "pydra-nvidia": {"maxSurge": 1, "maxUnavailable": 0},
    }
    constraints = objects.one("SecurityContextConstraints")
    assert constraints["allowHostNetwork"] is constraints["allowHostPorts"] is True
    assert render(backends, at("onePod", True)).pod()["hostNetwork"] is True


def test_only_containers_that_ask_the_api_server_have_a_token() -> None:
    objects = render(ALL_ON)
    assert {name for name, pod in pods(objects) if pod["automountServiceAccountToken"]} == {"pydra-test"}
    holders = set()
    for name, pod in pods(objects):
        tokens = {one["name"] for one in pod.get("volumes", ()) if "projected" in one}
        for container in containers(pod):
            mounts = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", ())}
            holders |= {(name, container["name"], mounts[token]) for token in tokens & set(mounts)}
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    assert holders == {(name, "agent", place) for name in AGENTS}
    volumes = [one for _, pod in pods(objects) for one in pod.get("volumes", ())]
    modes = {one["projected"].get("defaultMode") for one in volumes if "projected" in one}
    assert modes == {0o400}
    assert all(one["automountServiceAccountToken"] is False for one in objects.all("ServiceAccount"))


def test_a_backends_process_of_another_user_costs_the_agent_three_capabilities_and_no_privilege() -> None:
    process = {"runAsUser": 65532, "supplementalGroups": [109], "memoryLimit": "512Mi"}
    objects = render(SIM, at("backends.sim.process", process), at("openshift.enabled", True))
    context = objects.agent()["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["KILL", "SETGID", "SETUID"]}
    assert context["allowPrivilegeEscalation"] is False
    assert objects.one("SecurityContextConstraints")["allowedCapabilities"] == ["KILL", "SETGID", "SETUID"]
    settings = yaml.safe_load(
        objects.one("DaemonSet")["spec"]["template"]["metadata"]["annotations"]["pydra.dev/settings"]
    )
    assert settings["backendProcesses"] == {"sim": process}
    profile = {"type": "Localhost", "localhostProfile": "sim.json"}
    limited = {"memoryLimit": "1Gi", "seccompProfile": profile}
    within = render(SIM, at("backends.sim.process", limited)).agent()["securityContext"]
    assert within["capabilities"] == {"drop": ["ALL"]}


def test_agents_have_the_seccomp_profile_that_the_values_name() -> None:
    profile = {"type": "Localhost", "localhostProfile": "profiles/pydra.json"}
    objects = render(SIM, at("seccompProfile", profile), at("openshift.enabled", True))
    assert objects.pod()["securityContext"]["seccompProfile"] == profile
    assert objects.one("SecurityContextConstraints")["seccompProfiles"] == ["localhost/profiles/pydra.json"]
    assert render(SIM).pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    installed = render(SIM, at("seccompProfile", profile), at("openshift.enabled", True), at("packages.names", ["a"]))
    (installer,) = installed.pod()["initContainers"]
    assert installer["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "runtime/default" in installed.one("SecurityContextConstraints")["seccompProfiles"]


UNPRIVILEGED = at("backends.nvidia.privileged", False)


@pytest.mark.parametrize("values", [SIM, NVIDIA, overlay(NVIDIA, UNPRIVILEGED), overlay(BOTH, at("onePod", True))])
def test_an_agent_lets_go_of_what_the_host_unmounts(values: Mapping[str, Any]) -> None:
    host = by_name(render(values).agent()["volumeMounts"])["host"]
    assert host == {"name": "host", "mountPath": "/host", "readOnly": True, "mountPropagation": "HostToContainer"}


def test_without_propagation_an_unprivileged_agent_cannot_write_below_the_hosts_root() -> None:
    none = at("host.mountPropagation", "None")
    host = by_name(render(SIM, none).agent()["volumeMounts"])["host"]
    assert (host["readOnly"], host["mountPropagation"], host["recursiveReadOnly"]) == (True, "None", "IfPossible")
    host = by_name(render(NVIDIA, none).agent()["volumeMounts"])["host"]
    assert (host["readOnly"], host["mountPropagation"]) == (True, "None")
    assert "recursiveReadOnly" not in host, "who is privileged could mount it over again"


def test_what_is_mounted_of_the_host_is_a_directory() -> None:
    for name in ("pydra-sim", "pydra-nvidia"):
        for one in render(BOTH).pod(name)["volumes"]:
            assert one.get("hostPath", {}).get("type", "Directory").startswith("Directory"), one
            assert "hostPath" not in one or "type" in one["hostPath"], one


def test_an_agent_mounts_its_own_drivers_directory_only() -> None:
    for name, driver in (("pydra-sim", "sim.pydra.dev"), ("pydra-nvidia", "gpu.nvidia.com")):
        paths = [one["hostPath"]["path"] for one in render(BOTH).pod(name)["volumes"] if "hostPath" in one]
        assert [path for path in paths if path.startswith("/var/lib/kubelet/plugins/")] == [
            f"/var/lib/kubelet/plugins/{driver}"
        ]
        assert [path for path in paths if path.startswith("/run/pydra/")] == [f"/run/pydra/{driver}"]
        assert not {"/var/lib/kubelet", "/run/pydra"} & set(paths)


def test_nothing_is_called_as_what_the_host_has_in_dev() -> None:
    agent = render(NVIDIA).agent()
    assert "/dev" in {one["mountPath"] for one in agent["volumeMounts"]}
    assert agent["terminationMessagePath"].startswith("/tmp/")


def test_the_test_pod_may_look_and_nothing_else() -> None:
    objects = render(SIM)
    rules = [
        rule
        for kind in ("Role", "ClusterRole")
        for one in objects.all(kind)
        for rule in one["rules"]
        if "test" in one["metadata"]["name"]
    ]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list"}
    sets, around = objects.one("Role")["rules"]
    assert sets["resourceNames"] == ["pydra-sim"]
    assert around == {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list"]}


def test_what_pip_installs_is_confined_by_selinux_where_the_agent_is_not() -> None:
    pod = render(SIM, at("packages.names", ["a"]), at("seLinuxOptions.type", "spc_t")).pod()
    assert pod["containers"][0]["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert "seLinuxOptions" not in {*pod["securityContext"], *pod["initContainers"][0]["securityContext"]}


def test_openshift_allows_what_the_enabled_backends_need_and_no_more() -> None:
    on = at("openshift.enabled", True)
    sim = render(SIM, on).one("SecurityContextConstraints")
    assert (sim["allowPrivilegedContainer"], sim["allowHostPID"], sim["allowedCapabilities"]) == (False, False, [])
    assert sim["seccompProfiles"] == ["runtime/default"]
    nvidia = render(NVIDIA, on).one("SecurityContextConstraints")
    assert (nvidia["allowPrivilegedContainer"], nvidia["allowHostPID"], nvidia["allowedCapabilities"]) == (
        True,
        True,
        ["*"],
    )
    asks = render(SIM, on, at("backends.sim.capabilities", ["SYS_NICE"])).one("SecurityContextConstraints")
    assert asks["allowedCapabilities"] == ["SYS_NICE"]
    for one in (sim, nvidia):
        assert one["allowHostNetwork"] is one["allowHostPorts"] is one["allowHostIPC"] is False
        used = {
            key
            for volume in render(BOTH, on, at("packages.names", ["a"])).pod("pydra-sim")["volumes"]
            for key in volume
        }
        assert used - {"name"} <= set(one["volumes"])
    pool = {"label": "l", "pools": {"a": {"values": ["b"], "settings": {"vfio": True}}}}
    amd = render(AMD, on, at("backends.amd.nodePools", pool)).one("SecurityContextConstraints")
    assert amd["allowHostPID"], "what one pool of nodes needs"
    file = {"name": "a", "mountPath": "/a", "configMap": {"name": "a"}}
    assert "configMap" in render(SIM, on, at("backends.sim.volumes", [file])).one(sim["kind"])["volumes"]
    role = render(SIM, on).one("Role", "pydra-scc")
    assert role["rules"][0]["resourceNames"] == [sim["metadata"]["name"]]
    webhook = render(SIM, on, at("webhook.enabled", True)).one("Deployment")["spec"]["template"]["spec"]
    assert "runAsUser" not in webhook["securityContext"], "OpenShift gives each namespace its own range of users"


def test_the_paths_of_the_chart_are_there() -> None:
    for path in ("values.yaml", "values.schema.json", "README.md", "dashboards/pydra.json", "templates/NOTES.txt"):
        assert Path(CHART, path).exists()


def test_a_token_that_names_no_node_is_refused_once_and_in_words() -> None:
    spec = render(SIM).one("ValidatingAdmissionPolicy", SLICES)["spec"]
    told = {one["name"]: one["expression"] for one in spec["variables"]}
    # A token of a Secret has no extra at all, which must be no error of the expression.
    assert told["tokenNode"] == "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')"
    no_node, other_node, *_ = (one["expression"] for one in spec["validations"])
    assert no_node == "variables.tokenNode != ''"
    assert other_node.startswith("variables.tokenNode == '' || ")


@pytest.mark.parametrize(
    ("operation", "pool", "allowed"),
    [
        ("CREATE", "node-1", True),
        ("CREATE", "node-2", False),
        ("UPDATE", "node-2", False),
        ("DELETE", "node-2", True),
    ],
)
def test_an_agent_writes_slices_of_its_own_nodes_pool_only(operation: str, pool: str, allowed: bool) -> None:
    validations = render(SIM).one("ValidatingAdmissionPolicy", SLICES)["spec"]["validations"]
    (expression,) = (one["expression"] for one in validations if "spec.pool.name" in one["expression"])
    names = dict.fromkeys(("variables", "request", "object"), cel.Type.DYN)
    told = {
        "variables": {"tokenNode": "node-1"},
        "request": {"operation": operation},
        "object": None if operation == "DELETE" else {"spec": {"pool": {"name": pool, "generation": 999}}},
    }
    assert cel.NewEnv(variables=names).compile(expression).eval(data=told).value() is allowed


OWN = {"reportingController": "pydra-agent", "reportingInstance": "pydra-agent-uid-1"}
FOREIGN = {"reportingController": "kubelet", "reportingInstance": "node-2"}


@pytest.mark.parametrize(
    ("account", "token", "old", "new", "allowed"),
    [
        pytest.param("pydra", "uid-1", None, OWN, True, id="its own"),
        pytest.param("pydra", "uid-1", OWN, {**OWN, "series": {"count": 2}}, True, id="its own again"),
        pytest.param("pydra", "uid-2", None, OWN, False, id="another agent's"),
        pytest.param("pydra", "uid-1", None, FOREIGN, False, id="another controller's"),
        pytest.param("pydra", "uid-1", FOREIGN, OWN, False, id="over somebody else's"),
        pytest.param("pydra", "uid-1", None, {}, False, id="of no reporter"),
        pytest.param("pydra", "", None, OWN, False, id="by a token of no pod"),
        pytest.param("other", "", None, FOREIGN, True, id="by somebody else"),
    ],
)
def test_an_agent_writes_events_in_its_own_name_only(
    account: str, token: str, old: Object | None, new: Object, allowed: bool
) -> None:
    spec = render(SIM).one("ValidatingAdmissionPolicy", EVENTS)["spec"]
    user: Object = {"username": f"system:serviceaccount:pydra-system:{account}"}
    if token:
        user["extra"] = {"authentication.kubernetes.io/pod-uid": [token]}
    told: Object = {
        "request": {"operation": "CREATE" if old is None else "UPDATE", "userInfo": user},
        "object": new,
        "oldObject": old,
        "variables": {},
    }
    assert judge(spec, told) is allowed


ALLOCATED: Object = {"devices": {"results": [{"driver": "sim.pydra.dev", "pool": "node-1", "device": "a"}]}}
MINE: Object = {"driver": "sim.pydra.dev", "pool": "node-1", "device": "a"}
THEIRS: Object = {"driver": "other.example.com", "pool": "node-1", "device": "b"}
CLAIM: Object = {
    "metadata": {"name": "c", "finalizers": ["x"]},
    "status": {"allocation": ALLOCATED, "reservedFor": [{"name": "pod"}], "devices": [THEIRS]},
}


def with_status(**status: Any) -> Object:
    found = {key: value for key, value in {**CLAIM["status"], **status}.items() if value is not None}
    return {**CLAIM, "status": found}


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        pytest.param(CLAIM, with_status(devices=[THEIRS, MINE]), True, id="its device"),
        pytest.param(with_status(devices=[MINE]), with_status(devices=[{**MINE, "data": {}}]), True, id="it changes"),
        pytest.param(with_status(devices=[MINE]), with_status(devices=None), True, id="it is taken back"),
        pytest.param(with_status(devices=None), with_status(devices=[MINE]), True, id="the first"),
        pytest.param(CLAIM, with_status(devices=[THEIRS, {**MINE, "pool": "node-2"}]), False, id="of another node"),
        pytest.param(CLAIM, with_status(devices=[{**THEIRS, "data": {}}]), False, id="another driver's"),
        pytest.param(CLAIM, with_status(devices=None), False, id="another driver's taken away"),
        pytest.param(CLAIM, with_status(allocation={}), False, id="the allocation"),
        pytest.param(with_status(allocation=None), CLAIM, False, id="an allocation"),
        pytest.param(CLAIM, with_status(reservedFor=None), False, id="who uses it"),
        pytest.param(CLAIM, {**CLAIM, "metadata": {"name": "c"}}, False, id="a finalizer"),
    ],
)
def test_an_agent_writes_the_status_of_its_own_devices_only(old: Object, new: Object, allowed: bool) -> None:
    objects = render(SIM, at("settings", STATUS))
    spec = objects.one("ValidatingAdmissionPolicy", "pydra-status.pydra-system")["spec"]
    user: Object = {
        "username": "system:serviceaccount:pydra-system:pydra",
        "extra": {"authentication.kubernetes.io/node-name": ["node-1"]},
    }
    told: Object = {"request": {"userInfo": user}, "object": new, "oldObject": old, "variables": {}}
    assert judge(spec, told) is allowed
    del user["extra"]
    assert judge(spec, told) is False
    assert judge(spec, {**told, "request": {"userInfo": {"username": "system:kube-scheduler"}}}) is True
    assert not [one for one in render(SIM).names() if "pydra-status" in one], "without the setting"


def judge(spec: Object, told: Object) -> bool:
    """What a policy says to a request."""
    environment = cel.NewEnvConfigFromYaml(
        "extensions: [{name: optional}]\nvariables:\n" + "".join(f"- {{name: {one}, type_name: dyn}}\n" for one in told)
    )

    def evaluate(expression: str) -> Any:
        found = cel.NewEnv(config=environment).compile(expression).eval(data=told)
        assert found.type() != cel.Type.ERROR, f"{expression}: {found.value()}"
        return found.plain_value()

    if not all(evaluate(one["expression"]) for one in spec["matchConditions"]):
        return True
    told["variables"] = {}
    for one in spec["variables"]:
        told["variables"][one["name"]] = evaluate(one["expression"])
    return all(evaluate(one["expression"]) for one in spec["validations"])
