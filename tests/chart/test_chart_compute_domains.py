"""The controller of ComputeDomains and its daemons with what the chart gives them: enough rights, and no more."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import anyio
import helm_python
import pytest
import yaml
from cel_expr_python import cel

from domain_cluster import OWN, Cluster
from pydra.controllers import PODS
from pydra_dev.api import kinds
from pydra_dev.apiserver.faults import Fault
from pydra_dev.apiserver.request_log import Call
from pydra_dev.apiserver.server import ApiServer, serve_api
from pydra_nvidia.compute_domain.command import CONTROLLER_FLAGS, add_arguments
from pydra_nvidia.compute_domain.controller.object_fields import COMPUTE_DOMAINS, DAEMON_SETS
from pydra_nvidia.compute_domain.controller.objects import build_daemon_set
from pydra_nvidia.compute_domain.controller.settings import parse_controller_settings
from pydra_nvidia.compute_domain.custom_resource_definitions import DEFINITIONS
from pydra_nvidia.compute_domain.imex_directories import TEMPLATE
from pydra_nvidia.compute_domain.names import IMEX_CONDITION
from tests.chart.cluster import KINDS, open_cluster
from tests.chart.rendering import CHART, COMPUTE_DOMAIN, SIM, Object, Objects, at, overlay, render

ON = overlay(COMPUTE_DOMAIN, at("computeDomainController.enabled", True))
BACKEND = "backends.nvidia-compute-domain"
HOST_MANAGED = at(f"{BACKEND}.settings.imex", "hostManaged")
CONTROLLER, DAEMON = "pydra-compute-domains", "pydra-compute-domain-daemon"
PROGRAM = (sys.executable, "-m", "pydra_nvidia.compute_domain.command")
DEADLINE = 100
FABRIC = {"a": "rack.1", "b": "rack.1"}

Right = tuple[str, str, str]
"""Resource with its subresource, verb, and the namespace in which it may; empty for all."""


def controller_pod(objects: Objects) -> Object:
    spec: Object = objects.one("Deployment")["spec"]["template"]["spec"]
    return spec


def rights(objects: Objects, account: str) -> set[Right]:
    """What the bindings of an account allow."""
    found: set[Right] = set()
    for kind in ("Role", "ClusterRole"):
        for binding in objects.all(f"{kind}Binding"):
            if account not in [one["name"] for one in binding["subjects"]]:
                continue
            namespace = binding["metadata"].get("namespace", "")
            rules = objects.one(kind, binding["roleRef"]["name"])["rules"]
            found |= {
                (resource, verb, namespace)
                for rule in rules
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }
    return found


def asked(calls: Sequence[Call]) -> set[Right]:
    return {(f"{one.resource}/{one.subresource}".rstrip("/"), one.verb, one.namespace) for one in calls if one.resource}


def is_allowed(allowed: set[Right], right: Right) -> bool:
    resource, verb, namespace = right
    return (resource, verb, "") in allowed or (bool(namespace) and (resource, verb, namespace) in allowed)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with serve_api(definitions=DEFINITIONS) as found:
        yield found


@asynccontextmanager
async def process(server: ApiServer, *arguments: str, **environ: str) -> AsyncIterator[None]:
    env = {**os.environ, "KUBECONFIG": str(server.kubeconfig), **environ}
    started = await anyio.open_process([*PROGRAM, *arguments], env=env, stdout=DEVNULL, stderr=None)
    try:
        yield
    finally:
        started.terminate()
        with anyio.move_on_after(DEADLINE):
            await started.wait()
        await started.aclose()


async def until(server: ApiServer, holds: Callable[[], bool]) -> None:
    with anyio.fail_after(DEADLINE):
        await server.store.wait(holds)


async def test_the_controllers_roles_allow_all_that_a_domain_takes_from_creation_to_deletion(server: ApiServer) -> None:
    objects = render(ON, namespace=OWN)
    (container,) = controller_pod(objects)["containers"]
    assert container["command"] == ["pydra-compute-domain", "controller"]
    arguments = [one for one in container["args"] if not one.startswith("--http-address=")]
    cluster = Cluster(FABRIC, api=server.api)

    def runs(holds: Callable[[], bool]) -> Callable[[], bool]:
        def look() -> bool:
            cluster.run_daemon_sets()
            for pod in cluster.list(PODS):
                if not pod.get("status", {}).get("podIP"):
                    cluster.set_ready(pod["spec"]["nodeName"], ready=True)
            return holds()

        return look

    def is_ready() -> bool:
        return (cluster.domain("cd").get("status") or {}).get("summary") == "2/2"

    uid = cluster.create_domain("cd")
    for node in FABRIC:
        cluster.start_pod(f"pod-{node}", uid, node)
    async with process(server, "controller", *arguments, POD_NAME="one"):
        await until(server, runs(is_ready))
        daemons = cluster.list(DAEMON_SETS)[0]["spec"]["template"]["spec"]
        cluster.delete_domain("cd")
        for node in FABRIC:
            cluster.end_pod(f"pod-{node}")
        await until(server, runs(lambda: not cluster.list(COMPUTE_DOMAINS)))
    assert daemons["serviceAccountName"] == DAEMON
    assert daemons["containers"][0]["image"] == container["image"]
    allowed = rights(objects, CONTROLLER)
    used = asked(server.requests.calls)
    assert {right for right in used if not is_allowed(allowed, right)} == set()
    unused = {(resource, verb) for resource, verb, _ in allowed} - {(resource, verb) for resource, verb, _ in used}
    assert unused <= {
        ("daemonsets", "update"),  # when the image or a setting changes
        ("computedomaincliques", "update"),  # when a node joins, or is ready after others
        ("computedomaincliques", "patch"),  # of one with a finalizer of NVIDIA's controller
        ("events", "create"),  # when a domain gets ready too late for the first look
        ("events", "patch"),  # of one that comes again
        ("nodes", "get"),  # when somebody else labels one at the same time
    }


async def test_the_daemons_role_and_policy_allow_the_condition_that_it_writes(
    server: ApiServer, tmp_path: Path
) -> None:
    objects = render(ON, namespace="default")
    body = {"metadata": {"name": "mine"}, "spec": {"nodeName": "a", "containers": [{"name": "c", "image": "c"}]}}
    server.api.create(kinds.PODS, body, namespace="default")
    status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    before = server.api.patch(
        kinds.PODS,
        "mine",
        {"status": status},
        content_type="application/merge-patch+json",
        namespace="default",
        subresource="status",
    )

    def pod() -> Object:
        found: Object = server.api.get(kinds.PODS, "mine", namespace="default")
        return found

    (tmp_path / "imexd.cfg.tmpl").write_text(TEMPLATE)
    environ = {
        "COMPUTE_DOMAIN_UUID": "0f4a1c5e",
        "CLIQUE_ID": "rack.1",
        "NODE_NAME": "a",
        "POD_IP": "127.0.0.1",
        "POD_NAME": "mine",
        "POD_NAMESPACE": "default",
        "IMEX_DIRECTORY": str(tmp_path),
        "IMEX_REPORT_SECONDS": "0.1",
    }
    server.requests.clear()
    server.faults.add(Fault(verb="watch", status=500))  # as with an older etcd; then it lists
    async with process(server, "daemon", "--ready-port=0", **environ):
        await until(server, lambda: len(pod()["status"]["conditions"]) == 2)
        await server.requests.wait_count(1, "list")
    used = asked(server.requests.calls)
    allowed = rights(objects, DAEMON)
    assert {right for right in used if not is_allowed(allowed, right)} == set()
    assert {(resource, verb) for resource, verb, _ in allowed} == {(resource, verb) for resource, verb, _ in used}
    assert refusals(objects, before, pod(), token=pod()["metadata"]["uid"], namespace="default") == []


CEL = cel.NewEnvConfigFromYaml(
    "extensions: [{name: optional}]\nvariables:\n"
    + "".join(f"- {{name: {name}, type_name: dyn}}\n" for name in ("request", "object", "oldObject", "variables"))
)


def evaluate(expression: str, told: Mapping[str, Any]) -> Any:
    found = cel.NewEnv(config=CEL).compile(expression).eval(data=told)
    assert found.type() != cel.Type.ERROR, f"{expression}: {found.value()}"
    return found.plain_value()


def refusals(
    objects: Objects,
    old: Object,
    new: Object,
    *,
    token: str,
    account: str = DAEMON,
    namespace: str = "pydra-system",
    part: str = "daemon",
) -> list[str]:
    """What the policy for a part says to this update, in its words."""
    spec = objects.one("ValidatingAdmissionPolicy", f"{CONTROLLER}.{namespace}-{part}")["spec"]
    user: Object = {"username": f"system:serviceaccount:{namespace}:{account}"}
    if token:
        user["extra"] = {"authentication.kubernetes.io/pod-uid": [token]}
    told: Object = {"request": {"userInfo": user}, "object": new, "oldObject": old, "variables": {}}
    if not all(evaluate(one["expression"], told) for one in spec["matchConditions"]):
        return []
    for one in spec["variables"]:
        told["variables"][one["name"]] = evaluate(one["expression"], told)
    return [
        one.get("message") or evaluate(one["messageExpression"], told)
        for one in spec["validations"]
        if not evaluate(one["expression"], told)
    ]


IMEX = {"type": IMEX_CONDITION, "status": "True"}
POD: Object = {
    "metadata": {"name": "mine", "namespace": "pydra-system", "uid": "1", "labels": {"domain": "x"}},
    "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "False"}]},
}
ELSEWHERE = "a daemon of a ComputeDomain writes the condition resource.nvidia.com/imex of its pod and nothing else"


def with_conditions(*conditions: Object) -> Object:
    return overlay(POD, at("status.conditions", [*conditions]))


READY, NOT_READY = {"type": "Ready", "status": "True"}, {"type": "Ready", "status": "False"}


@pytest.mark.parametrize(
    ("new", "token", "said"),
    [
        pytest.param(with_conditions(NOT_READY, IMEX), "1", [], id="its condition"),
        pytest.param(with_conditions(IMEX, NOT_READY), "1", [], id="in another order"),
        pytest.param(
            with_conditions(NOT_READY, IMEX),
            "2",
            ["a daemon of a ComputeDomain writes the status of its own pod, and not of mine"],
            id="another pod",
        ),
        pytest.param(
            with_conditions(NOT_READY, IMEX),
            "",
            ["the token names no pod; it must be that of a pod, as the kubelet projects it"],
            id="a token of no pod",
        ),
        pytest.param(with_conditions(READY, IMEX), "1", [ELSEWHERE], id="readiness"),
        pytest.param(with_conditions(IMEX), "1", [ELSEWHERE], id="a condition away"),
        pytest.param(with_conditions(NOT_READY, IMEX, {"type": "More", "status": "True"}), "1", [ELSEWHERE], id="more"),
        pytest.param(overlay(POD, at("status.podIP", "10.0.0.2")), "1", [ELSEWHERE], id="the address"),
        pytest.param(overlay(POD, at("status.podIPs", [])), "1", [ELSEWHERE], id="a new field"),
        pytest.param({**POD, "status": {"conditions": [NOT_READY]}}, "1", [ELSEWHERE], id="fields away"),
        pytest.param(
            overlay(POD, at("metadata.labels.domain", "y")),
            "1",
            ["a daemon of a ComputeDomain does not change its pod's labels, annotations and finalizers"],
            id="labels",
        ),
    ],
)
def test_a_daemon_writes_the_one_condition_of_its_own_pod_and_nothing_else(
    new: Object, token: str, said: list[str]
) -> None:
    objects = render(ON)
    assert refusals(objects, deepcopy(POD), new, token=token) == said
    assert refusals(objects, deepcopy(POD), new, token=token, account="kubelet") == []
    bound = [one["spec"] for one in objects.all("ValidatingAdmissionPolicyBinding") if CONTROLLER in name_of(one)]
    assert [one["policyName"] for one in bound] == [
        f"{CONTROLLER}.pydra-system-{part}" for part in ("controller", "daemon")
    ]
    assert all(one["validationActions"] == ["Deny"] for one in bound)


NODE: Object = {"metadata": {"name": "a", "labels": {"zone": "x"}}, "spec": {"unschedulable": True}}
LABEL = "resource.nvidia.com/computeDomain"
ONE_LABEL = [f"the controller of ComputeDomains writes the label {LABEL} of a node and nothing else"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"metadata": {"name": "a", "labels": {"zone": "x", LABEL: "uid"}}}, [], id="its label"),
        pytest.param({"metadata": {"name": "a", "labels": {"zone": "y", LABEL: "uid"}}}, ONE_LABEL, id="another value"),
        pytest.param({"metadata": {"name": "a", "labels": {LABEL: "uid"}}}, ONE_LABEL, id="a label away"),
        pytest.param({"metadata": {"name": "a", "labels": {"zone": "x", "more": ""}}}, ONE_LABEL, id="another label"),
        pytest.param({"metadata": {**NODE["metadata"], "annotations": {"a": "b"}}}, ONE_LABEL, id="an annotation"),
        pytest.param({"spec": {}}, ONE_LABEL, id="taints and the like"),
    ],
)
def test_the_controller_writes_one_label_of_nodes_and_nothing_else(changed: Object, said: list[str]) -> None:
    objects = render(ON)
    old, new = deepcopy(NODE), {**deepcopy(NODE), **changed}
    assert refusals(objects, old, new, token="", account=CONTROLLER, part="controller") == said
    assert refusals(objects, new, old, token="", account=CONTROLLER, part="controller") == said
    assert refusals(objects, old, new, token="", account="kubelet", part="controller") == []


def test_on_openshift_the_daemons_account_may_use_the_constraints_that_the_daemons_need() -> None:
    found = render(ON, at("openshift.enabled", True))
    constraints = found.one("SecurityContextConstraints", f"{CONTROLLER}.pydra-system-daemon")
    (rule,) = found.one("Role", f"{DAEMON}-scc")["rules"]
    assert rule["resourceNames"] == [constraints["metadata"]["name"]]
    (subject,) = found.one("RoleBinding", f"{DAEMON}-scc")["subjects"]
    assert subject["name"] == DAEMON
    pod = controller_pod(found)
    assert "runAsUser" not in pod["securityContext"], "the namespace's range decides"
    arguments = [one for one in pod["containers"][0]["args"] if not one.startswith("--http-address=")]
    parser = argparse.ArgumentParser()
    add_arguments(parser, CONTROLLER_FLAGS, {})
    settings, _ = parse_controller_settings(parser.parse_args(arguments))
    daemon = build_daemon_set(DOMAIN, settings)["spec"]["template"]["spec"]
    (container,) = daemon["containers"]
    assert container["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is constraints["allowPrivilegeEscalation"] is False
    volumes = {key for one in daemon.get("volumes", ()) for key in one} - {"name"}
    assert {*volumes, "projected"} <= {*constraints["volumes"]}


DOMAIN: Object = {"metadata": {"name": "cd", "namespace": "default", "uid": "0f4a1c5e"}}


def test_without_the_switch_there_is_nothing_of_it() -> None:
    added = render(ON).names() - render(COMPUTE_DOMAIN).names()
    assert len([one for one in added if CONTROLLER in one or DAEMON in one or "computedomain" in one]) == len(added)
    assert not [one for one in render(COMPUTE_DOMAIN).names() if one in added or "computedomain" in one]


def test_the_definitions_are_those_of_the_code_and_stay_when_the_release_is_removed() -> None:
    found = render(ON).all("CustomResourceDefinition")
    assert {name_of(one): one["spec"] for one in found} == {name_of(one): one["spec"] for one in DEFINITIONS}
    for one in found:
        assert one["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def name_of(one: Mapping[str, Any]) -> str:
    return str(one["metadata"]["name"])


def test_the_controller_has_no_privilege_and_a_token_that_only_its_user_reads() -> None:
    pod = controller_pod(render(ON))
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not [one for one in pod["volumes"] if "hostPath" in one]
    assert {"livenessProbe", "readinessProbe", "startupProbe", "resources"} <= set(container)
    daemon = render(ON).one("ServiceAccount", DAEMON)
    assert "automountServiceAccountToken" not in daemon, "a daemon writes its pod's condition"


def test_agents_give_daemons_to_claims_of_the_controllers_namespace_only() -> None:
    def allowed(*values: Mapping[str, Any]) -> object:
        template = render(*values, namespace=OWN).one("DaemonSet", "pydra-nvidia-compute-domain")["spec"]["template"]
        file = yaml.safe_load(template["metadata"]["annotations"]["pydra.dev/settings"])
        return file.get("backendSettings", {}).get("nvidia-compute-domain", {}).get("daemonNamespace")

    assert allowed(ON) == OWN
    assert allowed(ON, at(f"{BACKEND}.settings.daemonNamespace", "another")) == "another"
    assert allowed(COMPUTE_DOMAIN) is None


def test_daemons_reach_each_others_imex_and_nobody_else_does_where_networks_have_policies() -> None:
    restricted = overlay(ON, at("networkPolicy", {"create": True, "egress": [{"ports": [{"port": 443}]}]}))
    spec = render(restricted).one("NetworkPolicy", DAEMON)["spec"]
    daemons = {"matchExpressions": [{"key": "resource.nvidia.com/computeDomain", "operator": "Exists"}]}
    ports = [{"port": port, "protocol": "TCP"} for port in (50000, 50005)]
    assert spec["podSelector"] == daemons
    assert spec["ingress"][0] == {"ports": ports, "from": [{"podSelector": daemons}]}
    assert spec["ingress"][1:] == [{"ports": [{"port": "ready"}]}]
    assert spec["egress"] == [{"ports": ports, "to": [{"podSelector": daemons}]}, {"ports": [{"port": 443}]}]
    assert render(ON).all("NetworkPolicy") == []


def test_where_hosts_run_imex_there_is_a_controller_and_nothing_for_daemons() -> None:
    objects = render(ON, HOST_MANAGED, at("networkPolicy.create", True))
    assert [one for one in objects.names() if DAEMON in one or one.endswith("-daemon")] == []
    arguments = controller_pod(objects)["containers"][0]["args"]
    assert "--imex=hostManaged" in arguments
    assert not [one for one in arguments if "daemon-image" in one]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            at("backends", {"nvidia-compute-domain": {"enabled": False}, **SIM["backends"]}),
            f"set {BACKEND}.enabled=true",
        ),
        (at(f"{BACKEND}.driver", "x.example.com"), "the controller knows compute-domain.nvidia.com only"),
        (at(f"{BACKEND}.packages", ["a"]), f"{BACKEND}.packages: the controller and its daemons run in the backend's"),
        (
            at(f"{BACKEND}.deviceClasses.classes", {"compute-domain-daemon.nvidia.com": None}),
            "ask for the DeviceClass compute-domain-daemon.nvidia.com, which is renamed or left out here",
        ),
        (
            at(f"{BACKEND}.deviceClasses.names", {"compute-domain-daemon.nvidia.com": "mine"}),
            "ask for the DeviceClass compute-domain-daemon.nvidia.com, which is renamed or left out here",
        ),
        (
            at(f"{BACKEND}.env", [{"name": "PYDRA_NVIDIA_COMPUTE_DOMAIN_IMEX", "value": "hostManaged"}]),
            f"set {BACKEND}.settings.imex",
        ),
        (
            at(
                f"{BACKEND}.nodePools",
                {"label": "a", "pools": {"x": {"values": ["b"], "settings": {"imex": "hostManaged"}}}},
            ),
            f"{BACKEND}.nodePools.pools.x.settings.imex: found hostManaged, and driverManaged elsewhere",
        ),
        (
            overlay(HOST_MANAGED, at("computeDomainController.tlsSecret", "a")),
            "computeDomainController.tlsSecret: has no",
        ),
    ],
)
def test_what_contradicts_the_controller_is_refused_in_words(values: Mapping[str, Any], words: str) -> None:
    with pytest.raises(helm_python.HelmError) as caught:
        render(ON, values)
    assert words in str(caught.value)


CRD = "apiextensions.k8s.io/v1"
SERVED = {**KINDS, f"apis/{CRD}": {"CustomResourceDefinition": ("customresourcedefinitions", False)}}


def definition(**metadata: Any) -> Object:
    return {
        "apiVersion": CRD,
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name_of(DEFINITIONS[0]), **metadata},
    }


def foreign_controller() -> Object:
    container = {"name": "compute-domain", "command": ["compute-domain-controller", "-v", "4"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "theirs", "namespace": "nvidia"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


OURS = {"meta.helm.sh/release-name": "pydra", "meta.helm.sh/release-namespace": "pydra-system"}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param(
            foreign_controller(), "Deployment nvidia/theirs is a controller of ComputeDomains", id="controller"
        ),
        pytest.param(
            definition(),
            "computedomains.resource.nvidia.com exists already and belongs to no release; this release takes it over, "
            "with all ComputeDomains, after: kubectl annotate crd computedomains.resource.nvidia.com --overwrite "
            "meta.helm.sh/release-name=pydra meta.helm.sh/release-namespace=pydra-system && kubectl label crd",
            id="definition",
        ),
        pytest.param(definition(annotations=OURS, labels={"app.kubernetes.io/managed-by": "Helm"}), "", id="our own"),
    ],
)
def test_what_another_driver_left_is_refused_with_what_to_do(found: Object, words: str) -> None:
    with open_cluster(found, kinds=SERVED) as config:
        if not words:
            config.install(CHART, "pydra", dict(ON), dry_run="server")
            return
        with pytest.raises(helm_python.HelmError) as caught:
            config.install(CHART, "pydra", dict(ON), dry_run="server")
    assert words in str(caught.value)
