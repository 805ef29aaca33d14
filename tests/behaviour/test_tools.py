"""The tools beside an agent at work: what they say of a claim, of the node's slices, and of the node."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from pydra.cli.tool import main
from tests.behaviour.node import NODE, Agent, Node
from tests.behaviour.waiting import wait_for

DRIVER = "board.example.com"


class Tool:
    """`pydra` on the node."""

    def __init__(self, node: Node, agent: Agent, output: pytest.CaptureFixture[str]) -> None:
        self.flags = [
            *("--node-name", NODE, "--kubeconfig", str(node.server.kubeconfig), "--cdi-dir", str(node.cdi)),
            *("--kubelet-root", str(node.root / "kubelet"), "--records-dir", str(node.root / "run")),
            *("--boot-id-file", str(node.root / "boot_id"), "--http-address", f"127.0.0.1:{agent.port}"),
        ]
        self.output = output

    def run(self, *arguments: str) -> tuple[int, str]:
        """Its exit code, and what it printed."""
        code = main([*arguments, *self.flags])
        return code, self.output.readouterr().out

    def json(self, *arguments: str) -> Any:
        """What it printed as JSON."""
        return json.loads(self.run(*arguments, "-o", "json")[1])

    def findings(self, *arguments: str) -> dict[str, str]:
        """The level of each finding by its subject; the worst one of several."""
        order = ["ok", "note", "unknown", "problem"]
        levels: dict[str, str] = {}
        for one in self.json(*arguments)["findings"]:
            levels[one["subject"]] = max(levels.get(one["subject"], "ok"), one["level"], key=order.index)
        return levels


@pytest.fixture
def tool(quiet: Node, quiet_agent: Agent, capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(quiet, quiet_agent, capsys)


@pytest.fixture
def board_class(quiet: Node) -> Iterator[None]:
    """The class that claims which are not allocated ask for."""
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    body = {"metadata": {"name": "board"}, "spec": {"selectors": [selector]}}
    quiet.api.request("POST", "/apis/resource.k8s.io/v1/deviceclasses", body)
    yield
    quiet.api.request("DELETE", "/apis/resource.k8s.io/v1/deviceclasses/board")


def test_a_claim_is_explained_from_its_allocation_to_its_file(quiet: Node, tool: Tool) -> None:
    device = quiet.board.device()
    claim = quiet.api.create_claim(device)
    assert tool.findings("explain", "claim", claim.name) == {"allocated": "ok", "reserved": "note", "prepared": "note"}
    quiet.kubelet.prepare_one(claim)
    report = tool.json("explain", "claim", f"default/{claim.name}")
    assert [one["level"] for one in report["findings"]] == ["ok", "note", "ok", "ok"]
    (shown,) = report["devices"]
    assert (shown["driver"], shown["pool"], shown["device"]) == (DRIVER, NODE, device)
    assert shown["slice"] == quiet.api.slices()[0]["metadata"]["name"]
    assert shown["cdi"] == [f"{DRIVER}/claim={claim.uid}:r0:{device}"]
    (file,) = (one for one in quiet.cdi.iterdir() if claim.uid in one.name)
    assert str(file) in [one["found"] for one in report["findings"]]
    file.write_text("{}")
    code, printed = tool.run("explain", "claim", claim.name)
    assert code == 1
    assert f"{file} is not what the record says" in printed
    quiet.kubelet.release(claim)


def test_what_drivers_say_of_the_devices_of_a_claim_is_shown(quiet: Node, tool: Tool) -> None:
    device = quiet.board.device()
    claim = quiet.api.create_claim(device)
    path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{claim.name}"
    body = quiet.api.request("GET", path)
    place = {"driver": DRIVER, "pool": NODE, "device": device}
    waiting = {"type": "Ready", "status": "False", "reason": "Waiting", "message": "no server has answered"}
    since = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    network = {"interfaceName": "net1", "ips": ["10.0.0.5/24"]}
    body["status"]["devices"] = [{**place, "networkData": network, "conditions": [{**waiting, **since}]}]
    quiet.api.request("PUT", f"{path}/status", body)
    _, printed = tool.run("explain", "claim", claim.name)
    assert f"of {DRIVER}: interface net1 of the pod with 10.0.0.5/24; Ready is False: no server has answered" in printed


def test_a_claim_that_fails_is_explained_with_its_last_error(quiet: Node, tool: Tool) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.board.order("prepare", claim.name, "refuse")
    quiet.kubelet.refusal(claim)
    wait_for(lambda: quiet.api.events(claim), "an Event on the claim")
    report = tool.json("explain", "claim", claim.name)
    assert report["last_error"] == "ClaimFailed: the board says no"
    code, printed = tool.run("explain", "claim", claim.name)
    assert code == 1
    assert "problem  last error  ClaimFailed: the board says no" in printed


def test_a_claim_that_is_not_allocated_is_compared_with_each_device(
    quiet: Node, tool: Tool, request: pytest.FixtureRequest
) -> None:
    taken = quiet.board.device()
    quiet.api.create_claim(taken)
    claim = quiet.api.create_claim(name="waiting", allocated=False)
    code, printed = tool.run("explain", "claim", claim.name)
    assert code == 1
    assert "there is no DeviceClass board\n" in printed
    request.getfixturevalue("board_class")
    code, printed = tool.run("explain", "claim", claim.name)
    assert code == 0
    assert "not yet, since no pod uses the claim" in printed
    reviews = {one["reason"]: one["devices"] for one in tool.json("explain", "claim", claim.name)["reviews"]}
    assert "shared0" in reviews[""]
    assert [reason for reason, devices in reviews.items() if taken in devices] == ["in use"]


@pytest.mark.usefixtures("board_class")
def test_taints_of_rules_and_node_selectors_of_pods_are_seen_as_the_scheduler_sees_them(
    quiet: Node, tool: Tool
) -> None:
    device = quiet.board.device()
    claim = quiet.api.create_claim(name="choosy", allocated=False)
    taint = {"key": "board.example.com/repair", "effect": "NoSchedule"}
    rule = {"metadata": {"name": "repair"}, "spec": {"deviceSelector": {"device": device}, "taint": taint}}
    quiet.api.request("POST", "/apis/resource.k8s.io/v1beta2/devicetaintrules", rule)
    reviews = tool.json("explain", "claim", claim.name)["reviews"]
    (reason,) = (one["reason"] for one in reviews if device in one["devices"])
    assert "board.example.com/repair" in reason
    printed = tool.run("slices")[1]
    assert f"{device}: tainted board.example.com/repair:NoSchedule" in printed
    assert "-> DeviceTaintRule repair gives it" in printed
    quiet.api.request("DELETE", "/apis/resource.k8s.io/v1beta2/devicetaintrules/repair")
    pod = {
        "metadata": {"name": "choosy"},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "containers": [{"name": "main", "image": "none"}],
            "resourceClaims": [{"name": "it", "resourceClaimName": claim.name}],
        },
    }
    quiet.api.request("POST", "/api/v1/namespaces/default/pods", pod)
    assert [(one["devices"], one["reason"]) for one in tool.json("explain", "claim", claim.name)["reviews"]] == [
        ([], "pod choosy wants a node with disk=ssd")
    ]
    quiet.api.request("DELETE", "/api/v1/namespaces/default/pods/choosy")


def test_a_rule_without_a_selector_taints_all_devices_as_kubernetes_up_to_1_37_does(quiet: Node, tool: Tool) -> None:
    device, path = quiet.board.device(), "/apis/resource.k8s.io/v1beta2/devicetaintrules"
    taint = {"key": "board.example.com/all", "effect": "NoSchedule"}
    quiet.api.request("POST", path, {"metadata": {"name": "all"}, "spec": {"taint": taint}})
    report = tool.json("slices")
    quiet.api.request("DELETE", f"{path}/all")
    [found] = [one["taints"] for one in report["devices"] if one["device"] == device]
    assert found == ["board.example.com/all:NoSchedule"]


def test_a_taint_for_information_is_no_problem(quiet: Node, tool: Tool) -> None:
    device, path = quiet.board.device(), "/apis/resource.k8s.io/v1beta2/devicetaintrules"
    taint = {"key": "board.example.com/seen", "effect": "None"}
    rule = {"metadata": {"name": "seen"}, "spec": {"deviceSelector": {"device": device}, "taint": taint}}
    quiet.api.request("POST", path, rule)
    found = tool.findings("slices")
    quiet.api.request("DELETE", f"{path}/seen")
    assert found == {f"pool {NODE}": "ok", "taints": "note"}


@pytest.mark.usefixtures("board_class")
def test_what_no_device_has_is_reported_with_the_selector_the_values_and_the_count(quiet: Node, tool: Tool) -> None:
    selector = {"cel": {"expression": f"device.attributes['{DRIVER}'].?serail.orValue('') == 'b9'"}}
    wanted = {"deviceClassName": "board", "count": 31, "selectors": [selector]}
    requests = [{"name": "r", "exactly": wanted}]
    config = [{"opaque": {"driver": "baord.example.com", "parameters": {"apiVersion": "v1", "kind": "Board"}}}]
    claim = quiet.api.create_claim(name="much", allocated=False, devices={"requests": requests, "config": config})
    pod = {
        "metadata": {"name": "much"},
        "spec": {
            "containers": [{"name": "main", "image": "none"}],
            "resourceClaims": [{"name": "it", "resourceClaimName": claim.name}],
        },
    }
    quiet.api.request("POST", "/api/v1/namespaces/default/pods", pod)
    code, printed = tool.run("explain", "claim", claim.name)
    quiet.api.request("DELETE", "/api/v1/namespaces/default/pods/much")
    assert code == 1
    assert "config[0] is for driver baord.example.com, which publishes no device" in printed
    assert '(did you mean "board.example.com"?)' in printed
    assert "wants 31 devices of class board, of 0 that match 0 are available" in printed
    assert f"not selected by the request: device.attributes['{DRIVER}'].?serail.orValue('') == 'b9' (" in printed
    assert 'no attribute serail (did you mean "serial"?)' in printed
    assert "pydra slices --all-nodes lists" in printed


def test_a_config_for_a_driver_that_ignores_it_is_reported_of_a_claim_that_is_prepared(quiet: Node, tool: Tool) -> None:
    parameters = {"apiVersion": "v1", "kind": "Board"}
    drivers = ("baord.example.com", "other.example.com")
    config = [{"opaque": {"driver": driver, "parameters": parameters}} for driver in drivers]
    requests = [{"name": "r0", "exactly": {"deviceClassName": "board"}}]
    claim = quiet.api.create_claim(quiet.board.device(), devices={"requests": requests, "config": config})
    quiet.kubelet.prepare_one(claim)
    spec = {**quiet.api.slices()[0]["spec"], "driver": "other.example.com"}
    path = "/apis/resource.k8s.io/v1/resourceslices"
    quiet.api.request("POST", path, {"metadata": {"name": "others"}, "spec": spec})
    try:
        found = tool.json("explain", "claim", claim.name)["findings"]
    finally:
        quiet.api.request("DELETE", f"{path}/others")
    assert [(one["level"], one["found"]) for one in found if one["subject"] == "config"] == [
        (
            "note",
            'config[0] is for driver baord.example.com, which publishes no device (did you mean "board.example.com"?)',
        ),
        ("note", "config[1] is for driver other.example.com, of which the claim has no device"),
    ]
    quiet.kubelet.release(claim)


def test_a_pod_is_explained_by_its_claims_and_by_those_that_it_lacks(quiet: Node, tool: Tool) -> None:
    claim, path = quiet.api.create_claim(quiet.board.device()), "/api/v1/namespaces/default/pods"
    templates = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
    quiet.api.request("POST", templates, {"metadata": {"name": "one-board"}, "spec": {"spec": {}}})
    spec = {
        "containers": [{"name": "main", "image": "none"}],
        "resourceClaims": [
            {"name": "own", "resourceClaimName": claim.name},
            {"name": "soon", "resourceClaimTemplateName": "one-board"},
            {"name": "never", "resourceClaimTemplateName": "on-board"},
        ],
    }
    quiet.api.request("POST", path, {"metadata": {"name": "three"}, "spec": spec})
    try:
        report = tool.json("explain", "pod", "three")
        code, printed = tool.run("explain", "pod", "default/three")
        missed = tool.run("explain", "pod", "thre")
    finally:
        quiet.api.request("DELETE", f"{path}/three")
        quiet.api.request("DELETE", f"{templates}/one-board")
    assert [one["claim"] for one in report["claims"]] == [f"default/{claim.name}"]
    assert [one["found"] for one in report["findings"]] == [
        "claim soon has not been made yet from template one-board",
        'claim never: there is no ResourceClaimTemplate on-board in namespace default (did you mean "one-board"?)',
    ]
    assert code == 1
    assert "pod default/three, claims: 1" in printed
    assert f"claim default/{claim.name} (uid {claim.uid})" in printed
    assert missed[0] == 1
    assert 'there is no pod thre in namespace default (did you mean "three"?)' in missed[1]


def test_a_pod_that_has_ended_does_not_lack_the_claims_that_were_deleted_then(quiet: Node, tool: Tool) -> None:
    claim, path = quiet.api.create_claim(quiet.board.device()), "/api/v1/namespaces/default/pods"
    entries = [
        {"name": "own", "resourceClaimName": claim.name},
        {"name": "made", "resourceClaimTemplateName": "one-board"},
        {"name": "unmade", "resourceClaimTemplateName": "one-board"},
    ]
    spec = {"containers": [{"name": "main", "image": "none"}], "resourceClaims": entries}
    pod = quiet.api.request("POST", path, {"metadata": {"name": "ended"}, "spec": spec})
    made = [{"name": "made", "resourceClaimName": "ended-made-x2b7q"}]
    status = {"phase": "Failed", "resourceClaimStatuses": made}
    quiet.api.request("PUT", f"{path}/ended/status", {**pod, "status": status})
    report = tool.json("explain", "pod", "ended")
    quiet.api.request("DELETE", f"{path}/ended")
    assert [(one["level"], one["found"]) for one in report["findings"]] == [
        ("note", "has ended (Failed), and needs no claims any more: those made from templates are deleted")
    ]
    assert [one["claim"] for one in report["claims"]] == [f"default/{claim.name}"]


def test_a_pod_without_claims_is_told_how_to_have_one(quiet: Node, tool: Tool) -> None:
    path = "/api/v1/namespaces/default/pods"
    spec = {"containers": [{"name": "main", "image": "none"}]}
    quiet.api.request("POST", path, {"metadata": {"name": "bare"}, "spec": spec})
    code, printed = tool.run("explain", "pod", "bare")
    quiet.api.request("DELETE", f"{path}/bare")
    assert code == 0
    assert "none, so it gets no device" in printed
    assert "name claims in spec.resourceClaims and in resources.claims of containers" in printed


def test_a_pod_whose_extended_resource_is_not_allocated_is_told_what_the_scheduler_says(
    quiet: Node, tool: Tool
) -> None:
    path, classes = "/api/v1/namespaces/default/pods", "/apis/resource.k8s.io/v1/deviceclasses"
    board = {"metadata": {"name": "board"}, "spec": {"extendedResourceName": "example.com/board"}}
    quiet.api.request("POST", classes, board)
    limits = {"limits": {"example.com/board": "9", "cpu": "1"}}
    spec = {"containers": [{"name": "main", "image": "none", "resources": limits}]}
    pod = quiet.api.request("POST", path, {"metadata": {"name": "many"}, "spec": spec})
    said = {"type": "PodScheduled", "status": "False", "message": "1 cannot allocate all claims"}
    quiet.api.request("PUT", f"{path}/many/status", {**pod, "status": {"phase": "Pending", "conditions": [said]}})
    report = tool.json("explain", "pod", "many")
    quiet.api.request("DELETE", f"{path}/many")
    quiet.api.request("DELETE", f"{classes}/board")
    assert [(one["level"], one["found"]) for one in report["findings"]] == [
        (
            "note",
            "none yet for example.com/board (DeviceClass board): the scheduler makes it when it finds the devices",
        ),
        ("problem", "not yet; the scheduler says of pod many: 1 cannot allocate all claims"),
    ]


def test_the_events_of_a_pod_with_extended_resources_are_those_of_its_claim(quiet: Node, tool: Tool) -> None:
    claim, path = quiet.api.create_claim(quiet.board.device()), "/api/v1/namespaces/default/pods"
    pod = {"metadata": {"name": "extended"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    made = quiet.api.request("POST", path, pod)
    made["status"] = {"extendedResourceClaimStatus": {"resourceClaimName": claim.name, "requestMappings": []}}
    quiet.api.request("PUT", f"{path}/extended/status", made)
    event = {
        "metadata": {"name": "extended.1"},
        "regarding": {"kind": "Pod", "name": "extended", "namespace": "default"},
        "reason": "FailedPrepareDynamicResources",
        "note": "failed to \x1b]0;prepare",
        "type": "Warning",
        "action": "Prepare",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "kubelet",
        "reportingInstance": "node",
    }
    quiet.api.request("POST", "/apis/events.k8s.io/v1/namespaces/default/events", event)
    found = tool.json("explain", "claim", claim.name)["last_error"]
    printed = tool.run("explain", "claim", claim.name)[1]
    quiet.api.request("DELETE", f"{path}/extended")
    assert found == "FailedPrepareDynamicResources: failed to \x1b]0;prepare"
    assert printed.count("failed to \\x1b]0;prepare") == 2, "among the findings, and in the table of Events"
    assert "\x1b" not in printed, "a terminal would take it for a command"


def test_a_claim_that_is_made_again_has_no_error_of_the_one_before_it(quiet: Node, tool: Tool) -> None:
    device = quiet.board.device()
    claim = quiet.api.create_claim(device, name="mended")
    quiet.board.order("prepare", claim.name, "refuse")
    quiet.kubelet.refusal(claim)
    wait_for(lambda: quiet.api.events(claim), "an Event on the claim")
    quiet.api.delete_claim(claim)
    quiet.api.create_claim(device, name="mended")
    report = tool.json("explain", "claim", "mended")
    assert (report["last_error"], report["events"]) == ("", [])


def test_containers_that_get_no_device_of_a_claim_are_told(quiet: Node, tool: Tool) -> None:
    claim, path = quiet.api.create_claim(quiet.board.device()), "/api/v1/namespaces/default/pods"
    for name, used in (("forgets", []), ("misspells", [{"name": "it", "request": "r00"}]), ("uses", [{"name": "it"}])):
        container = {"name": "main", "image": "none", "resources": {"claims": used}}
        claims = [{"name": "it", "resourceClaimName": claim.name}]
        pod = {"metadata": {"name": name}, "spec": {"containers": [container], "resourceClaims": claims}}
        quiet.api.request("POST", path, pod)
    found = tool.json("explain", "claim", claim.name)["findings"]
    for name in ("forgets", "misspells", "uses"):
        quiet.api.request("DELETE", f"{path}/{name}")
    assert [(one["level"], one["found"]) for one in found if one["subject"] == "containers"] == [
        ("note", "no container of pod forgets names it in resources.claims, so none gets the devices"),
        (
            "problem",
            "container main of pod misspells gets no device of request r00, which is none of the claim's "
            '(did you mean "r0"?)',
        ),
    ]


def test_a_claim_of_a_node_that_is_gone_is_told_and_one_without_requests(quiet: Node, tool: Tool) -> None:
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    results = [{"request": "r0", "driver": DRIVER, "pool": "gone", "device": "d0"}]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gone"]}]}
    lost, nothing = quiet.api.create_claim(allocated=False), quiet.api.create_claim(allocated=False, devices={})
    there = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    for claim, allocation in ((lost, there), (nothing, {})):
        body = quiet.api.request("GET", f"{path}/{claim.name}")
        quiet.api.request("PUT", f"{path}/{claim.name}/status", {**body, "status": {"allocation": allocation}})
    code, printed = tool.run("explain", "claim", lost.name)
    assert code == 1
    problem = "problem  node       there is no node gone any more, which has its devices"
    assert problem in printed
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "own"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "own", "resourceClaimName": lost.name}]}
    quiet.api.request("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "waits"}, "spec": spec})
    code, printed = tool.run("explain", "pod", "waits")
    of_pod = tool.json("explain", "pod", "waits")["findings"]
    quiet.api.request("DELETE", "/api/v1/namespaces/default/pods/waits")
    assert ([one["level"] for one in of_pod if one["level"] == "problem"], problem in printed, code) == ([], True, 1)
    assert "note     allocated  no device: it has no requests" in tool.run("explain", "claim", nothing.name)[1]


def test_a_claim_of_a_wrong_name_is_answered_with_the_one_that_there_is(quiet: Node, tool: Tool) -> None:
    quiet.api.create_claim(name="patient", allocated=False)
    code, printed = tool.run("explain", "claim", "default/patent")
    assert code == 1
    assert 'there is no claim patent in namespace default (did you mean "patient"?)' in printed


@pytest.mark.parametrize("name", ["..", "./patient", "default/", "a/b/c"])
def test_a_name_that_no_claim_can_have_is_refused(tool: Tool, name: str) -> None:
    assert main(["explain", "claim", name, *tool.flags]) == 2
    assert f"pydra: {name!r} names a claim w" in tool.output.readouterr().err


def test_a_claim_that_is_gone_while_the_node_holds_it_is_reported(quiet: Node, tool: Tool) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.kubelet.prepare_one(claim)
    quiet.api.delete_claim(claim)
    code, printed = tool.run("explain", "claim", claim.name)
    assert code == 1
    assert "the API server has no such claim, and this node holds it" in printed
    quiet.kubelet.release(claim)


def test_without_the_api_server_what_the_node_has_is_explained(quiet: Node, tool: Tool, tmp_path: Path) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.kubelet.prepare_one(claim)
    gone = tmp_path / "kubeconfig"
    gone.write_text(quiet.server.kubeconfig.read_text().replace(quiet.server.url, "http://127.0.0.1:1"))
    assert main(["explain", "claim", claim.name, *tool.flags, "--kubeconfig", str(gone)]) == 0
    printed = tool.output.readouterr().out
    assert "unknown  claim     cannot read ResourceClaim" in printed
    assert f"ok       prepared  by {DRIVER}" in printed
    quiet.kubelet.release(claim)


def test_a_claim_of_a_cluster_that_serves_no_claims_is_unknown_and_not_absent(quiet: Node, tool: Tool) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.api_fault(verb="get", resource="resourceclaims", status=404, body="404 page not found", times=None)
    try:
        findings = tool.findings("explain", "claim", claim.name)
    finally:
        quiet.server.faults.clear()
    assert findings["claim"] == "unknown"


def test_what_the_agents_account_may_not_list_is_unknown_and_no_failure(quiet: Node, tool: Tool) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.kubelet.prepare_one(claim)
    for resource in ("events", "pods"):
        quiet.api_fault(verb="list", resource=resource, status=403, times=None)
    try:
        findings = tool.findings("explain", "claim", claim.name, "-n", "default")
        code, printed = tool.run("explain", "claim", claim.name)
    finally:
        quiet.server.faults.clear()
    assert (findings["events"], findings["pods"], findings["prepared"]) == ("unknown", "unknown", "ok")
    assert code == 0
    assert "-> run it with a kubeconfig that may" in printed
    quiet.kubelet.release(claim)


def test_of_a_pod_with_several_claims_what_may_not_be_listed_is_said_once(quiet: Node, tool: Tool) -> None:
    claims, path = [quiet.api.create_claim(quiet.board.device()) for _ in range(2)], "/api/v1/namespaces/default/pods"
    entries = [{"name": one.name, "resourceClaimName": one.name} for one in claims]
    spec = {"containers": [{"name": "main", "image": "none"}], "resourceClaims": entries}
    quiet.api.request("POST", path, {"metadata": {"name": "both"}, "spec": spec})
    for resource in ("devicetaintrules", "events"):
        quiet.api_fault(verb="list", resource=resource, status=403, times=None)
    try:
        report = tool.json("explain", "pod", "both")
    finally:
        quiet.server.faults.clear()
        quiet.api.request("DELETE", f"{path}/both")
    assert len(report["claims"]) == 2
    assert [(one["subject"], one["level"]) for one in report["findings"]] == [
        ("devicetaintrules", "unknown"),
        ("events", "unknown"),
    ]


@pytest.mark.parametrize("damaged", [False, True], ids=["", "beside records that cannot be read"])
def test_a_driver_that_left_claims_behind_is_reported_with_what_to_do(quiet: Node, tool: Tool, damaged: bool) -> None:
    left, other = (quiet.root / "run" / driver / "claims" for driver in ("gone.example.com", "damaged.example.com"))
    left.mkdir(parents=True)
    (left / "1.json").write_text("?")
    if damaged:
        other.mkdir(parents=True)
        (other / "corrupt").touch()  # where a directory belongs
    code, printed = tool.run("doctor")
    for one in (left, other):
        shutil.rmtree(one.parent, ignore_errors=True)
    assert code == 1
    assert "driver gone.example.com is not served, and holds claims: 1" in printed


def test_slices_show_devices_with_their_taints_and_claims(changing: Node, tool: Tool) -> None:
    device, broken = changing.board.device(), changing.board.device()
    claim = changing.api.create_claim(device)
    assert tool.findings("slices") == {f"pool {NODE}": "ok"}
    changing.board.set_devices(device, **{broken: "too hot"})
    wait_for(changing.api.taints, "the taint is published")
    report = tool.json("slices")
    shown = {one["device"]: one for one in report["devices"]}
    assert f"default/{claim.name}" in shown[device]["claims"]
    assert shown[broken]["taints"] == [f"{DRIVER}/unhealthy:NoSchedule"]
    code, printed = tool.run("slices")
    assert code == 1
    assert f"{broken}: tainted {DRIVER}/unhealthy:NoSchedule" in printed
    assert "the Event DeviceUnhealthy of the node says why" in printed


def test_all_nodes_are_shown_and_those_that_publish_nothing_are_named(quiet: Node, tool: Tool) -> None:
    quiet.api.request("POST", "/api/v1/nodes", {"metadata": {"name": "silent"}})
    code, printed = tool.run("slices", "--all-nodes")
    quiet.api.request("DELETE", "/api/v1/nodes/silent")
    assert code == 1
    assert "node silent publishes nothing" in printed
    assert f"pool {NODE}" in printed


def test_a_node_that_publishes_nothing_is_reported(tool: Tool) -> None:
    code = main(["slices", *tool.flags, "--node-name", "other"])
    assert code == 1
    assert "node other publishes nothing" in tool.output.readouterr().out


def test_the_doctor_finds_nothing_wrong_with_a_node_that_works(tool: Tool, quiet: Node) -> None:
    report = tool.json("doctor")
    wrong = [one for one in report["findings"] if one["level"] == "problem"]
    assert wrong == []
    said = {one["subject"]: one["found"] for one in report["findings"] if one["level"] == "ok"}
    assert said["agent"] == f"ready, and serves {DRIVER}"
    assert said["clock"] == "agrees with the API server's"
    assert (said["plugins"], said["records"]) == (str(quiet.plugins / DRIVER), str(quiet.root / "run" / DRIVER))
    assert said["access"] == "has all permissions that the agent needs"
    gates = {one["found"] for one in report["findings"] if one["subject"] == "gate"}
    assert {
        "DRADeviceTaints is on: unhealthy devices",
        "DRAListTypeAttributes is off: no attributes with lists",
        "DRADeviceCompatibilityGroups is off: no partitions that exclude others by their kind",
        "DRAPartitionableDevicesType is off: no partitions that are counted by type",
        "DRANodeAllocatableResources is off: no devices that count as CPUs or memory of the node",
    } <= gates


def test_the_doctor_asks_about_gates_by_slices_that_the_policy_allows_the_agent(tool: Tool, quiet: Node) -> None:
    asked = bytearray()
    tool.flags += ["--kubeconfig", quiet.start_relay(asked)]
    tool.run("doctor")
    assert set(re.findall(rb'"pool":{[^}]*"name":"([^"]*)"', asked)) == {NODE.encode()}
    assert set(re.findall(rb'"driver":"([^"]*)"', asked)) == {DRIVER.encode()}


def test_the_doctor_warns_of_an_older_kubelet_that_starts_pods_without_their_extended_resources(
    tool: Tool, quiet: Node
) -> None:
    status = {"nodeInfo": {"kubeletVersion": "v1.34.9"}}
    quiet.api.request("POST", "/api/v1/nodes", {"metadata": {"name": "old"}, "status": status})
    body = {"metadata": {"name": "boards"}, "spec": {"extendedResourceName": "example.com/board"}}
    quiet.api.request("POST", "/apis/resource.k8s.io/v1/deviceclasses", body)
    try:
        assert "extended resources" not in {one["subject"] for one in tool.json("doctor")["findings"]}
        tool.flags += ["--node-name", "old"]
        report = tool.json("doctor")
        [found] = [one for one in report["findings"] if one["subject"] == "extended resources"]
        assert found["level"] == "problem"
        assert "kubelet v1.34.9 starts pods with extended resources without their devices" in found["found"]
        assert "remove extendedResourceName from DeviceClass boards" in found["advice"]
    finally:
        quiet.api.request("DELETE", "/apis/resource.k8s.io/v1/deviceclasses/boards")
        quiet.api.request("DELETE", "/api/v1/nodes/old")


def test_the_doctor_names_the_claim_whose_cdi_file_has_been_deleted(quiet: Node, tool: Tool) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.kubelet.prepare_one(claim)
    (file,) = (one for one in quiet.cdi.iterdir() if claim.uid in one.name)
    content = file.read_text()
    file.unlink()
    code, printed = tool.run("doctor")
    file.write_text(content)
    assert code == 1
    assert f"{file} is missing: claim default/{claim.name}" in printed
    quiet.kubelet.release(claim)


def test_the_doctor_names_the_record_that_cannot_be_read(quiet: Node, tool: Tool) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.kubelet.prepare_one(claim)
    (record,) = (quiet.root / "run" / DRIVER / "claims").glob("*.json")
    good = record.read_bytes()
    record.write_bytes(b"garbage")
    code, printed = tool.run("doctor")
    record.write_bytes(good)
    quiet.kubelet.release(claim)
    assert (code, f"the record of {DRIVER} cannot be read: not a checkpoint record" in printed) == (1, True)


def test_the_doctor_tells_what_a_backend_finds_wrong_on_the_node(
    quiet: Node, tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOARD_DIRECTORY", str(quiet.board.path))
    doctor = ("doctor", "--backend", "tests.behaviour.backends.board:")
    device = quiet.board.device()
    quiet.kubelet.prepare_one(quiet.api.create_claim(device))
    assert "tests.behaviour.backends.board: finds nothing wrong on the node" in tool.run(*doctor)[1]
    (quiet.board.path / "held" / device / "a-stranger").touch()
    code, printed = tool.run(*doctor)
    assert code == 1
    assert "is configured for a-stranger, which is no claim of this node; unplug it" in printed
    unreadable = quiet.root / "run" / "other.example.com" / "claims"
    unreadable.mkdir(parents=True)
    (unreadable / "corrupt").touch()
    printed = tool.run(*doctor)[1]
    shutil.rmtree(unreadable.parent)
    assert "is configured for a-stranger" in printed, "the records of its own claims can be read"
    assert f"reading the records in {unreadable} failed" in printed
    monkeypatch.setenv("BOARD_DIRECTORY", "/proc/nowhere")
    assert "cannot examine the node: FileNotFoundError" in tool.run(*doctor)[1]


def test_the_doctor_names_slices_that_others_have_written_into_the_nodes_pool(quiet: Node, tool: Tool) -> None:
    [own] = quiet.api.slices()
    spec = {**own["spec"], "pool": {**own["spec"]["pool"], "generation": 999}, "nodeName": "of-an-attacker"}
    path = "/apis/resource.k8s.io/v1/resourceslices"
    quiet.api.request("POST", path, {"metadata": {"name": "foreign"}, "spec": spec})
    try:
        code, printed = tool.run("doctor")
    finally:
        quiet.api.request("DELETE", f"{path}/foreign")
    assert code == 1
    assert "has slices that this node has not published: foreign (of node of-an-attacker)" in " ".join(printed.split())


def test_the_doctor_does_not_call_ok_what_is_not_there(quiet: Node, tool: Tool) -> None:
    tool.flags += ["--cdi-dir", "/proc/nowhere"]
    found = {one["found"]: one["level"] for one in tool.json("doctor")["findings"]}
    checkpoint = quiet.root / "kubelet" / "dra_manager_state"
    assert not checkpoint.exists()
    assert found[f"{checkpoint} is not there: the kubelet has not prepared any claim yet"] == "note"
    assert found["/proc/nowhere is not there yet; the agent makes it"] == "note"


def test_the_doctor_names_each_request_that_the_agent_may_not_make(tool: Tool, quiet: Node) -> None:
    quiet.api_fault(verb="update", resource="resourceslices", status=403, times=None)
    try:
        code, printed = tool.run("doctor")
    finally:
        quiet.server.faults.clear()
    assert code == 1
    assert "problem  access      may not update resourceslices.resource.k8s.io\n" in printed


def test_the_doctor_asks_for_the_status_of_claims_where_the_agent_writes_it(
    tool: Tool, quiet: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet.api_fault(verb="patch", resource="resourceclaims", status=403, times=None)
    try:
        _, without = tool.run("doctor")
        monkeypatch.setenv("PYDRA_DEVICE_STATUS", "true")
        _, printed = tool.run("doctor")
    finally:
        quiet.server.faults.clear()
    assert "may not" not in without
    assert "problem  access      may not patch resourceclaims.resource.k8s.io/status\n" in printed


def test_the_doctor_says_that_another_program_answers_in_place_of_the_agent(tool: Tool) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{, =pydra_registered")

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Page) as server, ThreadPoolExecutor(1) as thread:
        thread.submit(server.serve_forever)
        try:
            code = main(["doctor", *tool.flags, "--http-address", f"127.0.0.1:{server.server_port}"])
        finally:
            server.shutdown()
    assert code == 1
    assert f"no agent answers at 127.0.0.1:{server.server_port}" in tool.output.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--kubelet-root", "/proc/nowhere"), "/proc/nowhere/plugins_registry is not there"),
        (("--http-address", "127.0.0.1:1"), "no agent answers at 127.0.0.1:1"),
        (("--boot-id-file", "/proc/nowhere"), "the boot id cannot be read from /proc/nowhere"),
        (("--node-name", "nobody"), "--node-name is the name that kubectl get nodes has"),
        (("--kubeconfig", "/proc/nowhere"), "kubeconfig /proc/nowhere"),
        (("--backend", "baord"), "backend baord is not installed"),
    ],
)
def test_the_doctor_finds_what_is_wrong_and_says_what_to_do(tool: Tool, flags: tuple[str, ...], words: str) -> None:
    code = main(["doctor", *tool.flags, *flags])
    assert code == 1
    assert words in tool.output.readouterr().out
