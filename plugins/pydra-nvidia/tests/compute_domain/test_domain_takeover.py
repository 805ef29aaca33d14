"""Live domains change hands: pydra's controller adopts what NVIDIA's left, and NVIDIA's removes what pydra's made.

Both are in one namespace, as when one release takes the place of the other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from domain_cluster import OWN, Cluster
from pydra import ClaimError
from pydra.controllers import NODES, PODS, RESOURCE_CLAIM_TEMPLATES
from pydra_dev.api import kinds
from pydra_nvidia import compute_domain
from pydra_nvidia.compute_domain.claim_config import ComputeDomainDaemonConfig
from pydra_nvidia.compute_domain.controller.object_fields import (
    CLIQUES,
    COMPUTE_DOMAINS,
    DAEMON_SETS,
    get_label,
    list_finalizers,
)
from pydra_nvidia.compute_domain.names import (
    API_VERSION,
    CHANNEL_CLASS,
    CHANNEL_KIND,
    CLIQUE_LABEL,
    CONTAINER,
    DAEMON_CLASS,
    DAEMON_KIND,
    DOMAIN_LABEL,
    DRIVER,
    FINALIZER,
    TARGET_LABEL,
)
from pydra_nvidia.compute_domain.settings import Settings

RACK = "5a4f3c1e-9d27-4b86-a0c5-7e1f2b3d4c5a.2"
NODES_OF_RACK = dict.fromkeys(("a", "b", "c"), RACK)
IN_USE = ("a", "b")
Object = dict[str, Any]


def leave_vendors_domain(cluster: Cluster) -> str:
    """The domain `cd` as NVIDIA's controller, kubelet plugins and daemons have it while two nodes use it."""
    uid = cluster.create_domain("cd")
    cluster.patch(COMPUTE_DOMAINS, "cd", {"metadata": {"finalizers": [FINALIZER]}}, "default")
    daemon = f"computedomain-daemon-{uid}"
    create_template(cluster, uid, OWN, daemon, "Daemon", ("daemon", DAEMON_CLASS, {"kind": DAEMON_KIND}))
    channel = {"kind": CHANNEL_KIND, "allocationMode": "Single"}
    create_template(cluster, uid, "default", "cd", "Workload", ("channel", CHANNEL_CLASS, channel))
    pod = {
        "nodeSelector": {DOMAIN_LABEL: uid},
        "serviceAccountName": "compute-domain-daemon-service-account",
        "containers": [{"name": CONTAINER, "image": "nvidia:1", "command": ["compute-domain-daemon", "run"]}],
    }
    template = {"metadata": {"labels": {DOMAIN_LABEL: uid}}, "spec": pod}
    spec = {"selector": {"matchLabels": {DOMAIN_LABEL: uid}}, "template": template}
    cluster.api.create(kinds.DAEMON_SETS, {"metadata": build_metadata(daemon, uid), "spec": spec}, namespace=OWN)
    for node in IN_USE:
        cluster.start_pod(f"pod-{node}", uid, node)
        cluster.patch(NODES, node, {"metadata": {"labels": {DOMAIN_LABEL: uid}}})
    cluster.run_daemon_sets()
    entries = []
    for index, node in enumerate(reversed(IN_USE)):  # each took the lowest that was free
        cluster.set_ready(node, ready=True)
        found = next(one for one in cluster.list(PODS) if one["spec"]["nodeName"] == node)
        cluster.patch(PODS, found["metadata"]["name"], {"metadata": {"labels": {CLIQUE_LABEL: RACK}}}, OWN)
        entry = {"nodeName": node, "ipAddress": found["status"]["podIP"], "cliqueID": RACK, "index": index}
        entries.append({**entry, "status": "Ready"})
    labels = {DOMAIN_LABEL: uid, CLIQUE_LABEL: RACK}
    clique = {"metadata": {"name": f"{uid}.{RACK}", "labels": labels}, "daemons": entries}
    kind = next(one for one in cluster.api.kinds if one.kind == CLIQUES.kind)
    cluster.api.create(kind, clique, namespace=OWN)
    return uid


def create_template(
    cluster: Cluster, uid: str, namespace: str, name: str, target: str, content: tuple[str, str, Object]
) -> None:
    request, device_class, parameters = content
    opaque = {"driver": DRIVER, "parameters": {"apiVersion": API_VERSION, "domainID": uid, **parameters}}
    devices = {
        "requests": [{"name": request, "exactly": {"deviceClassName": device_class}}],
        "config": [{"requests": [request], "opaque": opaque}],
    }
    body = {"metadata": build_metadata(name, uid, **{TARGET_LABEL: target}), "spec": {"spec": {"devices": devices}}}
    cluster.api.create(kinds.RESOURCE_CLAIM_TEMPLATES, body, namespace=namespace)


def build_metadata(name: str, uid: str, **labels: str) -> Object:
    return {"name": name, "finalizers": [FINALIZER], "labels": {DOMAIN_LABEL: uid, **labels}}


def delete_as_vendor(cluster: Cluster, uid: str) -> None:
    """What NVIDIA's controller does, in its order, once the domain is deleted."""
    for resource in (RESOURCE_CLAIM_TEMPLATES, DAEMON_SETS):
        for found in cluster.list(resource):
            if get_label(found) == uid:
                cluster.delete(resource, found["metadata"]["name"], found["metadata"]["namespace"])
    for node in cluster.list(NODES):
        if get_label(node) == uid:
            body = {**node, "metadata": {**node["metadata"], "labels": {}}}
            cluster.api.update(kinds.NODES, node["metadata"]["name"], body)
    for resource in (RESOURCE_CLAIM_TEMPLATES, DAEMON_SETS, COMPUTE_DOMAINS):
        for found in cluster.list(resource):
            metadata = found["metadata"]
            kept = [one for one in list_finalizers(found) if one != FINALIZER]
            cluster.patch(resource, metadata["name"], {"metadata": {"finalizers": kept}}, metadata["namespace"])


def left(cluster: Cluster) -> list[str]:
    resources = (COMPUTE_DOMAINS, DAEMON_SETS, RESOURCE_CLAIM_TEMPLATES, PODS)
    found = [one["metadata"]["name"] for resource in resources for one in cluster.list(resource)]
    return [*found, *cluster.labels()]


def test_a_live_domain_of_nvidias_controller_is_adopted_and_no_daemon_ends() -> None:
    cluster = Cluster(NODES_OF_RACK)
    uid = leave_vendors_domain(cluster)
    daemons = {pod["metadata"]["uid"] for pod in cluster.list(PODS)}
    objects = [*cluster.list(RESOURCE_CLAIM_TEMPLATES), *cluster.list(DAEMON_SETS), *cluster.list(CLIQUES)]
    cluster.settle()
    assert {pod["metadata"]["uid"] for pod in cluster.list(PODS)} == daemons
    assert [*cluster.list(RESOURCE_CLAIM_TEMPLATES), *cluster.list(DAEMON_SETS), *cluster.list(CLIQUES)] == objects
    assert cluster.labels() == dict.fromkeys(IN_USE, uid)
    assert cluster.condition("cd")[0] == "NodesReady"
    assert cluster.condition("cd", "DaemonsUpToDate")[0] == "WaitingForPods"

    # Another node joins, with a daemon of NVIDIA's image, and the first ones keep their numbers.
    cluster.start_pod("pod-c", uid, "c")
    cluster.settle()
    cluster.set_ready("c", ready=True)
    cluster.settle()
    assert sorted(entry[1:] for entry in cluster.indexes()) == [("a", 1), ("b", 0), ("c", 2)]

    # When no pod uses the domain, its daemons become pydra's.
    for node in NODES_OF_RACK:
        cluster.end_pod(f"pod-{node}")
    cluster.settle()
    [found] = cluster.list(DAEMON_SETS)
    assert found["spec"]["template"]["spec"]["containers"][0]["image"] == cluster.settings.daemon_image
    cluster.delete_domain("cd")
    cluster.settle()
    assert left(cluster) == []


def test_a_live_domain_of_pydras_controller_is_whole_for_nvidias_which_removes_all_of_it() -> None:
    cluster = Cluster(NODES_OF_RACK)
    uid = cluster.create_domain("cd")
    for node in IN_USE:
        cluster.start_pod(f"pod-{node}", uid, node)
    cluster.settle()
    cluster.delete_domain("cd")
    delete_as_vendor(cluster, uid)
    cluster.run_daemon_sets()
    assert left(cluster) == []


def checkpoint(**kinds_of_claims: str) -> str:
    """That of NVIDIA's plugin, with a claim of each name for a device of each kind, all of the domain `theirs`."""
    claims = {}
    for name, kind in kinds_of_claims.items():
        names = {"Requests": [kind], "PoolName": "node", "DeviceName": f"{kind}-0", "CDIDeviceIDs": []}
        device = {"channel": None, "daemon": None, kind: {"info": {"id": 0}, "device": names}}
        group = {"devices": [device], "configState": {"Type": kind, "ComputeDomain": "theirs"}}
        entry = {"checkpointState": "PrepareCompleted", "status": {}, "preparedDevices": [group]}
        claims[name] = {**entry, "name": name, "namespace": "default"}
    return json.dumps({"checksum": 0, "v2": {"checksum": 0, "preparedClaims": claims, "nodeBootID": ""}})


async def test_claims_of_nvidias_plugin_are_taken_over_and_its_daemon_serves_more_pods(tmp_path: Path) -> None:
    place = tmp_path / "plugin" / "domains" / "theirs"
    place.mkdir(parents=True)
    (place / "imexd.cfg").write_text("IMEX_CMD_PORT=50005\n")
    (tmp_path / "plugin" / "checkpoint.json").write_text(checkpoint(imex="daemon", pod="channel"))
    settings = Settings(scenario="gb200", state=str(tmp_path / "state"))
    async with compute_domain.connect(settings) as backend:
        found = await backend.inherit(str(tmp_path / "plugin"))
        assert found.files == (str(tmp_path / "plugin" / "checkpoint.json"),)
        daemon, channel = (one.claim for one in found.claims)
        assert daemon.devices[0].config(ComputeDomainDaemonConfig) == ComputeDomainDaemonConfig(domain="theirs")
        [node] = found.claims[1].prepared[0].edits.device_nodes
        assert node.path == "/dev/nvidia-caps-imex-channels/channel0"
        assert await backend.prepare(channel)  # as the next pod's, which finds the daemon where it is
        await backend.undo(daemon.steps[0].step, None, daemon)
    assert not place.exists()


async def test_a_channel_is_taken_over_with_its_node_once_the_gpus_have_joined_their_fabric(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text(checkpoint(pod="channel"))
    scenario = tmp_path / "scenario.yaml"
    gpus = f"gpus: [{{model: gb200-186gb, fabric: {{cluster: {RACK[:-2]}, clique: 2, state: %d}}}}]"
    machine = f"host: {{imexChannels: 2048}}\n{gpus}"
    scenario.write_text(machine % 2)
    async with compute_domain.connect(Settings(scenario=str(scenario), state=str(tmp_path / "state"))) as backend:
        with pytest.raises(ClaimError, match="is joining its NVLink fabric"):
            await backend.inherit(str(tmp_path))
        scenario.write_text(machine % 3)
        found = await backend.inherit(str(tmp_path))
        assert [one.minor for one in found.claims[0].prepared[0].edits.device_nodes] == [0]
