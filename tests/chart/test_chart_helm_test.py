"""The script of `helm test` against an API server over TLS: it finds what is wrong, and says it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import yaml

from pydra.observability.metrics import Metrics
from pydra.slices.server_limitations import EFFECT_NONE, OVERHEADS
from tests.chart.api_server import (
    AGENTS,
    CLAIMS,
    CLASSES,
    DRA,
    EVENTS,
    PODS,
    SLICES,
    Answer,
    Answers,
    refused,
    serve_agent,
    serve_api,
)
from tests.chart.rendering import CHART, NVIDIA, SIM, Object, at, overlay, render

RESOURCE = "pydra.dev/accel"
VALUES = overlay(
    SIM,
    at("webhook.enabled", True),
    at("backends.sim.deviceClasses.extendedResourceNames", {"sim.pydra.dev": RESOURCE}),
)


def daemons(ready: int, wanted: int = 3, *, updated: int = 3, seen: int = 2, strategy: str = "RollingUpdate") -> Answer:
    counts = {"desiredNumberScheduled": wanted, "numberReady": ready, "updatedNumberScheduled": updated}
    return 200, {
        "metadata": {"generation": 2},
        "spec": {"updateStrategy": {"type": strategy}},
        "status": {"observedGeneration": seen, **counts},
    }


def pod(node: str, *, ready: bool = False, address: str = "", **status: Any) -> Object:
    condition = {"type": "Ready", "status": str(ready)}
    return {
        "metadata": {"name": f"pydra-sim-{node}"},
        "spec": {"nodeName": node} if node else {},
        "status": {"conditions": [condition], "podIP": address, **status},
    }


def waits(reason: str, message: str = "", last: str = "") -> Object:
    state: Object = {"waiting": {"reason": reason, "message": message}}
    return {"ready": False, "state": state, "lastState": {"terminated": {"message": last}} if last else {}}


def published(*devices: Object, node: str = "node-1", more: bool = False) -> Answer:
    spec = {"driver": "sim.pydra.dev", "nodeName": node, "devices": [*devices]}
    return 200, {"metadata": {"continue": "x" if more else ""}, "items": [{"spec": spec}]}


NODES = ("node-1", "node-2", "node-3")
WELL: Answers = {
    DRA: (200, {}),
    AGENTS: daemons(3),
    PODS: (200, {"items": [pod(node, ready=True) for node in NODES]}),
    SLICES: (200, {"items": [published({"name": "accel-0"}, node=node)[1]["items"][0] for node in NODES]}),
    f"{CLASSES}/sim.pydra.dev": (200, {"spec": {"extendedResourceName": RESOURCE}}),
    f"{CLASSES}/partition.sim.pydra.dev": (200, {}),
    CLAIMS: refused('admission webhook "pydra-sim.configs.pydra.dev" denied the request: no such kind', 422),
}


def arguments(values: Mapping[str, Any] = VALUES, *, port: int = 9) -> list[str]:
    """What the pod that the chart makes gives to `python -c`; nobody serves an agent's pages at port 9."""
    (container,) = render(overlay(values, at("http.port", port))).one("Pod")["spec"]["containers"]
    assert container["command"] == ["python", "-c"]
    found: list[str] = container["args"]
    return found


@cache
def compiled(script: str) -> CodeType:
    return compile(script, "helm_test.py", "exec")


def run(
    environ: Mapping[str, str], values: Mapping[str, Any] = VALUES, *, port: int = 9
) -> subprocess.CompletedProcess[str]:
    """What the pod's command does and says, without a process of its own."""
    script, *rest = arguments(values, port=port)
    module: dict[str, Any] = {"__name__": "helm_test"}
    stdout, stderr = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as process, redirect_stdout(stdout), redirect_stderr(stderr):
        process.setattr(sys, "argv", ["-c", *rest])
        for name, value in environ.items():
            process.setenv(name, value)
        exec(compiled(script), module)
        code = module["main"]()
    return subprocess.CompletedProcess(rest, code, stdout.getvalue(), stderr.getvalue())


def test_a_policy_that_refuses_first_leaves_open_whether_the_webhook_answers(tmp_path: Path) -> None:
    message = "ValidatingAdmissionPolicy 'configs.sim.pydra.dev' denied request: opaque.parameters: no such kind"
    with serve_api({**WELL, CLAIMS: refused(message)}, tmp_path) as environ:
        done = run(environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert "note: webhook: was not asked about a config that driver sim.pydra.dev does not know" in done.stdout
    assert message in done.stdout


def test_a_release_that_is_well_passes_and_says_what_it_has(tmp_path: Path) -> None:
    with serve_api(WELL, tmp_path) as environ:
        command = [sys.executable, "-c", *arguments()]
        done = subprocess.run(
            command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False
        )
        assert run(environ).stdout == done.stdout
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "DaemonSet pydra-sim: all 3 agents are ready",
        "driver sim.pydra.dev: 3 devices on 3 nodes",
        "DeviceClass partition.sim.pydra.dev: is there",
        f"DeviceClass sim.pydra.dev: is there, and stands for {RESOURCE}",
        "webhook: refuses a config that driver sim.pydra.dev does not know",
        "all is well: sim.pydra.dev",
    ]


@pytest.mark.parametrize(
    ("path", "answer", "words"),
    [
        pytest.param(
            DRA,
            refused("404 page not found", 404),
            "the cluster does not serve resource.k8s.io/v1, which is on by default since Kubernetes 1.34",
            id="no DRA",
        ),
        pytest.param(
            AGENTS,
            daemons(0, wanted=0),
            "DaemonSet pydra-sim: no node has the labels that it asks for",
            id="no node",
        ),
        pytest.param(
            AGENTS,
            daemons(2),
            "DaemonSet pydra-sim: 2 of 3 agents are ready; see their logs and Events",
            id="one is not ready",
        ),
        pytest.param(
            AGENTS,
            daemons(3, updated=1),
            "DaemonSet pydra-sim: 1 of 3 agents are upgraded, and the others still the old ones; wait for `kubectl -n"
            " pydra-system rollout status daemonset/pydra-sim`",
            id="an upgrade is under way",
        ),
        pytest.param(
            AGENTS,
            daemons(3, seen=1),
            "DaemonSet pydra-sim: the controller manager has not acted on its last change yet",
            id="an upgrade has not begun",
        ),
        pytest.param(
            AGENTS,
            refused("daemonsets is forbidden"),
            "DaemonSet pydra-sim: daemonsets is forbidden",
            id="it may not look",
        ),
        pytest.param(
            SLICES,
            (200, {"items": []}),
            "driver sim.pydra.dev: no ResourceSlice is published",
            id="nothing is published",
        ),
        pytest.param(
            SLICES,
            refused("slices are forbidden"),
            "driver sim.pydra.dev: slices are forbidden",
            id="it may not see slices",
        ),
        pytest.param(
            f"{CLASSES}/sim.pydra.dev",
            refused("gone", 404),
            "DeviceClass sim.pydra.dev: gone; `helm upgrade` makes it again",
            id="no class",
        ),
        pytest.param(
            CLAIMS,
            (201, {}),
            "webhook: a claim with a config that driver sim.pydra.dev does not know was accepted; the webhook is not",
            id="nobody refuses",
        ),
        pytest.param(
            CLAIMS,
            refused("failed calling webhook: x509: certificate has expired", 500),
            "webhook: failed calling webhook: x509: certificate has expired; renew its certificate (webhook.tls)",
            id="the webhook's certificate",
        ),
        pytest.param(
            CLAIMS,
            refused("failed calling webhook: context deadline exceeded", 500),
            "webhook: failed calling webhook: context deadline exceeded; see the webhook's pods, and whether the API"
            " server reaches them",
            id="a firewall",
        ),
        pytest.param(
            CLAIMS,
            refused("exceeded quota, at spec.devices.config[0].opaque.parameters"),
            "webhook: exceeded quota, at spec.devices.config[0].opaque.parameters; see the webhook's pods",
            id="somebody else refuses",
        ),
    ],
)
def test_what_is_wrong_is_said(path: str, answer: Answer, words: str, tmp_path: Path) -> None:
    with serve_api({**WELL, path: answer}, tmp_path) as environ:
        done = run(environ)
    assert done.returncode == 1
    assert done.stderr.startswith(words)
    assert len(done.stderr.splitlines()) == 1


NOT_IN_THE_IMAGE = "pydra-agent: backend fpga is not installed (installed: sim)\npydra-agent: see pydra-agent --help\n"


@pytest.mark.parametrize(
    ("pods", "events", "words"),
    [
        pytest.param(
            [pod("node-2", containerStatuses=[waits("CrashLoopBackOff", "back-off 20s", NOT_IN_THE_IMAGE)])],
            [],
            "node-2: CrashLoopBackOff: pydra-agent: backend fpga is not installed (installed: sim) |"
            " pydra-agent: see pydra-agent --help",
            id="its last words",
        ),
        pytest.param(
            [pod("node-2", containerStatuses=[waits("ImagePullBackOff", 'Back-off pulling image "pydra-sim:0.1.0"')])],
            [],
            'node-2: ImagePullBackOff: Back-off pulling image "pydra-sim:0.1.0"',
            id="no image",
        ),
        pytest.param(
            [
                pod(
                    "node-2",
                    initContainerStatuses=[waits("CrashLoopBackOff", last="No matching distribution: pydra-fpga")],
                    containerStatuses=[waits("PodInitializing")],
                )
            ],
            [],
            "node-2: CrashLoopBackOff: No matching distribution: pydra-fpga",
            id="pip finds nothing",
        ),
        pytest.param(
            [pod("", conditions=[{"type": "PodScheduled", "status": "False", "message": "Insufficient memory"}])],
            [],
            "pydra-sim-: Insufficient memory",
            id="no place",
        ),
        pytest.param(
            [pod("node-2", address="127.0.0.1")],
            [],
            "node-2: backend sim is starting | driver sim.pydra.dev is not registered",
            id="the agent says so itself",
        ),
        pytest.param([pod("node-2")], [], "node-2: it starts, or does not answer; see its log", id="nobody says"),
        pytest.param(
            [],
            [{"message": 'violates PodSecurity "baseline:latest": hostPath volumes'}],
            'no pod is made: violates PodSecurity "baseline:latest": hostPath volumes',
            id="the namespace forbids it",
        ),
    ],
)
def test_why_an_agent_is_not_ready_is_said(
    pods: list[Object], events: list[Object], words: str, tmp_path: Path
) -> None:
    items = [pod("node-1", ready=True), *pods, *([pod("node-3", ready=True)] if pods else [])]
    answers = {**WELL, AGENTS: daemons(2), PODS: (200, {"items": items}), EVENTS: (200, {"items": events})}
    waiting = "backend sim is starting\ndriver sim.pydra.dev is not registered\n"
    with serve_agent(readyz=waiting) as port, serve_api(answers, tmp_path) as environ:
        done = run(environ, port=port)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["DaemonSet pydra-sim: 2 of 3 agents are ready", f"  {words}"]


def test_a_stuck_upgrade_says_why_the_new_agent_is_not_ready(tmp_path: Path) -> None:
    new = pod("node-2", containerStatuses=[waits("CrashLoopBackOff", last=NOT_IN_THE_IMAGE)])
    items = [*(pod(node, ready=True) for node in NODES), new]
    with serve_api({**WELL, AGENTS: daemons(3, updated=2), PODS: (200, {"items": items})}, tmp_path) as environ:
        done = run(environ)
    assert done.returncode == 1
    first, reason = done.stderr.splitlines()
    assert first == "DaemonSet pydra-sim: 2 of 3 agents are upgraded, and the others still the old ones"
    assert reason.startswith("  node-2: CrashLoopBackOff: pydra-agent: backend fpga is not installed")


def test_agents_that_an_admin_replaces_by_hand_are_noted(tmp_path: Path) -> None:
    with serve_api({**WELL, AGENTS: daemons(3, updated=1, strategy="OnDelete")}, tmp_path) as environ:
        done = run(environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert "note: DaemonSet pydra-sim: 2 agents are from before the last upgrade" in done.stdout


CRASHING = [pod("node-1", containerStatuses=[waits("CrashLoopBackOff", last=NOT_IN_THE_IMAGE)])]


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param({DRA: refused("404 page not found", 404)}, id="the API is not served"),
        pytest.param({AGENTS: daemons(0, wanted=0)}, id="no node has the hardware"),
        pytest.param({SLICES: refused("slices are forbidden")}, id="RBAC"),
        pytest.param({AGENTS: daemons(0), PODS: (200, {"items": CRASHING * 3})}, id="agents crash"),
    ],
)
def test_a_problem_that_does_not_pass_is_not_waited_for(answers: Answers, tmp_path: Path) -> None:
    with serve_api({**WELL, **answers}, tmp_path) as environ:
        done = run({**environ, "PYDRA_TEST_PATIENCE": "3600", "PYDRA_TEST_SETTLE": "0"})
    assert done.returncode == 1


class Changing(dict[str, Answer]):
    """Answers of which that at AGENTS is another one at first."""

    def __init__(self, answers: Answers, *first: Answer) -> None:
        super().__init__(answers)
        self.first = [*first]

    def get(self, path: str, default: Any = None) -> Any:
        return self.first.pop() if path == AGENTS and self.first else super().get(path, default)


def test_a_problem_that_may_pass_is_waited_for(tmp_path: Path) -> None:
    with serve_api(Changing(WELL, daemons(2)), tmp_path) as environ:
        done = run({**environ, "PYDRA_TEST_PATIENCE": "3600", "PYDRA_TEST_SETTLE": "0"})
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pool_without_nodes_is_noted_and_no_pool_with_nodes_is_a_problem(tmp_path: Path) -> None:
    values = overlay(VALUES, at("backends.sim.nodePools", {"label": "kind", "pools": {"big": {"values": ["big"]}}}))
    big = f"{AGENTS}-big"
    with serve_api({**WELL, AGENTS: daemons(0, 0), big: daemons(3)}, tmp_path) as environ:
        done = run(environ, values)
    assert (done.returncode, done.stderr) == (0, "")
    assert "note: DaemonSet pydra-sim: no node is in this pool" in done.stdout
    assert "driver sim.pydra.dev: 3 devices on 3 nodes" in done.stdout
    with serve_api({**WELL, AGENTS: daemons(0, 0), big: daemons(0, 0)}, tmp_path) as environ:
        done = run(environ, values)
    assert done.returncode == 1
    assert "DaemonSet pydra-sim-big: no node has the labels that it asks for" in done.stderr


def test_a_pod_that_goes_is_no_reason(tmp_path: Path) -> None:
    going = pod("node-2", containerStatuses=[waits("Error")])
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    answers = {**WELL, AGENTS: daemons(2), PODS: (200, {"items": [going]}), EVENTS: (200, {"items": []})}
    with serve_api(answers, tmp_path) as environ:
        done = run(environ)
    assert "Error" not in done.stderr


def metrics_without(driver: str, gate: str) -> str:
    metrics = Metrics()
    metrics.fields_dropped.labels(driver, gate).set(1)
    metrics.fields_dropped.labels(driver, "DRAListTypeAttributes").set(0)
    return metrics.text().decode()


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        ("DRADeviceTaints", "has the feature gate DRADeviceTaints off"),
        (EFFECT_NONE, "does not know taint effect None"),
        (OVERHEADS, "does not know overheads of node allocatable resources"),
    ],
)
def test_what_the_api_server_drops_is_noted(feature: str, words: str, tmp_path: Path) -> None:
    answers = {**WELL, PODS: (200, {"items": [pod(node, ready=True, address="127.0.0.1") for node in NODES]})}
    page = metrics_without("sim.pydra.dev", feature)
    with serve_agent(metrics=page) as port, serve_api(answers, tmp_path) as environ:
        done = run(environ, port=port)
    assert (done.returncode, done.stderr) == (0, "")
    notes = [line for line in done.stdout.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert notes[0].startswith(f"note: driver sim.pydra.dev: the API server {words}: devices are")


def test_a_feature_gate_that_is_off_and_needed_is_a_problem(tmp_path: Path) -> None:
    agents = AGENTS.replace("pydra-sim", "pydra-nvidia")
    answers = {
        DRA: (200, {}),
        agents: daemons(1, wanted=1, updated=1),
        PODS: (200, {"items": [pod("node-1", ready=True, address="127.0.0.1")]}),
        SLICES: published({"name": "gpu-0"}),
        **{f"{CLASSES}/{name}": (200, {}) for name in ("gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com")},
    }
    queries = {
        SLICES: {"limit": ["50"], "fieldSelector": ["spec.driver=gpu.nvidia.com"]},
        PODS: {"limit": ["50"], "labelSelector": ["pydra.dev/agent=pydra-nvidia"]},
    }
    page = metrics_without("gpu.nvidia.com", "DRAPartitionableDevices")
    values = overlay(NVIDIA, at("backends.nvidia.settings", {"dynamicMig": True, "vfio": True}))
    with serve_agent(metrics=page) as port, serve_api(answers, tmp_path, queries=queries) as environ:
        done = run(environ, values, port=port)
    assert done.returncode == 1
    assert done.stderr == (
        "driver gpu.nvidia.com: the API server has the feature gate DRAPartitionableDevices off, which is needed for"
        " dynamicMig and vfio: enable it in API server and scheduler, or turn that off\n"
    )
    assert "note: DeviceClass gpu.nvidia.com: does not stand for nvidia.com/gpu, since the API server" in done.stdout


@pytest.mark.parametrize(
    ("slices", "notes"),
    [
        pytest.param(
            published({"name": "accel-0"}, node="node-2"),
            ["note: driver sim.pydra.dev: the agents on node-1, node-3 are ready and find no device; see their logs"],
            id="nodes without devices",
        ),
        pytest.param(
            (
                200,
                {
                    "items": [
                        published(
                            {"name": "accel-0", "taints": [{"key": "sim.pydra.dev/sick", "effect": "NoExecute"}]},
                            {"name": "accel-1", "taints": [{"key": "sim.pydra.dev/look", "effect": "None"}]},
                            node=node,
                        )[1]["items"][0]
                        for node in NODES
                    ]
                },
            ),
            [
                "note: driver sim.pydra.dev: new pods do not get accel-0 on node-1 (sim.pydra.dev/sick), accel-0 on"
                " node-2 (sim.pydra.dev/sick), accel-0 on node-3 (sim.pydra.dev/sick)"
            ],
            id="tainted devices",
        ),
    ],
)
def test_what_is_remarkable_is_noted(slices: Answer, notes: list[str], tmp_path: Path) -> None:
    with serve_api({**WELL, SLICES: slices}, tmp_path) as environ:
        done = run(environ)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("note: ")] == notes


def test_slices_and_pods_are_read_in_pages(tmp_path: Path) -> None:
    """Those of a large cluster at once are more than the pod's memory."""
    first, second = published({"name": "accel-0"}, node="node-2", more=True), WELL[SLICES]
    agents = {PODS: (200, {**WELL[PODS][1], "metadata": {"continue": "x"}}), f"{PODS}x": (200, {"items": []})}
    with serve_api({**WELL, **agents, SLICES: first, f"{SLICES}x": second}, tmp_path) as environ:
        done = run(environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert "driver sim.pydra.dev: 4 devices on 3 nodes" in done.stdout
    many = (200, {**first[1], "items": first[1]["items"] * 50})
    with serve_api({**WELL, SLICES: many, f"{SLICES}x": many}, tmp_path) as environ:
        done = run(environ)
    assert "driver sim.pydra.dev: at least 500 devices on 1 nodes" in done.stdout


def test_an_api_server_that_is_not_there_is_said_without_a_traceback(tmp_path: Path) -> None:
    with serve_api(WELL, tmp_path) as environ:
        pass
    done = run(environ)
    assert done.returncode == 1
    assert done.stderr.startswith("the API server does not answer:")


def test_the_script_is_handed_over_as_it_is() -> None:
    (container,) = render(SIM).one("Pod")["spec"]["containers"]
    script, release = container["args"]
    assert script.rstrip() == (CHART / "files" / "helm_test.py").read_text().rstrip()
    assert yaml.safe_load(release) == {
        "namespace": "pydra-system",
        "agents": {"pydra-sim": ["sim.pydra.dev"]},
        "gates": {"sim.pydra.dev": {}},
        "classes": {"partition.sim.pydra.dev": "", "sim.pydra.dev": ""},
        "port": 9464,
        "webhooks": {},
    }


def test_the_log_of_a_test_that_failed_stays() -> None:
    annotations = render(SIM).one("Pod", "pydra-test")["metadata"]["annotations"]
    assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"


def test_it_may_run_where_agents_may() -> None:
    mine, theirs = {"key": "team", "operator": "Exists"}, {"key": "lab", "operator": "Exists"}
    values = overlay(SIM, {"tolerations": [mine], "backends": {"sim": {"tolerations": [theirs, mine]}}})
    assert render(values).one("Pod")["spec"]["tolerations"] == [mine, theirs]
    assert "tolerations" not in render(SIM).one("Pod")["spec"]
