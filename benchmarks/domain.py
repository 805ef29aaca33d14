"""A ComputeDomain of many nodes on an embedded API server: what it asks, and when it is ready.

The controller is a process. The daemons are real too, in this process, with programs in the place of nvidia-imex that
are ready at once. Nodes, claims and kubelets are played.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel

from pydra.controllers import KubeClient, load_credentials
from pydra_dev.api import kinds
from pydra_dev.apiserver.custom_kinds import parse_definition
from pydra_dev.apiserver.server import ApiServer, serve_api
from pydra_dev.apiserver.verbs import Query
from pydra_nvidia.compute_domain.custom_resource_definitions import COMPUTE_DOMAIN_DEFINITION, DEFINITIONS
from pydra_nvidia.compute_domain.daemon.daemon import Daemon
from pydra_nvidia.compute_domain.daemon.metrics import DaemonMetrics
from pydra_nvidia.compute_domain.daemon.settings import DaemonSettings
from pydra_nvidia.compute_domain.imex_directories import TEMPLATE
from pydra_nvidia.compute_domain.names import CHANNEL_CLASS, CHANNEL_KIND, DOMAIN_LABEL, DRIVER

NAMESPACE = "kube-system"
CLIQUE_SIZE = 16
PATIENCE = 600
DOMAINS = parse_definition(COMPUTE_DOMAIN_DEFINITION).kind
MERGE = "application/merge-patch+json"
PROGRAMS = {"imex": "trap '' USR1\nexec sleep infinity\n", "imex-ctl": "echo READY\n"}


async def measure_domain(count: int, scratch: Path) -> None:
    """One domain of so many nodes, from its creation until it says that all are ready."""
    for name, text in PROGRAMS.items():
        (scratch / name).write_text(f"#!/bin/sh\n{text}")
        (scratch / name).chmod(0o755)
    async with serve_api(definitions=DEFINITIONS) as server:
        api = server.api
        spec = {"channel": {"resourceClaimTemplate": {"name": "cd"}}}
        domain = api.create(DOMAINS, {"metadata": {"name": "cd"}, "spec": spec}, namespace="default")["metadata"]["uid"]
        nodes = {f"node-{number:04}": f"rack.{number // CLIQUE_SIZE}" for number in range(count)}
        for number, (node, clique) in enumerate(nodes.items()):
            _create_node(server, node, clique)
            _allocate(server, f"pod-{number}", domain, node)
        with (scratch / "controller.log").open("wb") as log:
            controller = subprocess.Popen(  # noqa: ASYNC220 - nobody waits yet
                [
                    *(sys.executable, "-m", "pydra_nvidia.compute_domain.command", "controller"),
                    *("--namespace", NAMESPACE, "--daemon-image", "pydra:1", "--leader-election=false"),
                ],
                env={**os.environ, "KUBECONFIG": str(server.kubeconfig)},
                stdout=log,
                stderr=log,
            )
        try:
            began = time.monotonic()
            await _wait(lambda: len(api.list(kinds.NODES, Query(label_selector=DOMAIN_LABEL)).items) == count)
            print(f"\na ComputeDomain of {count} nodes in {-(-count // CLIQUE_SIZE)} cliques")
            print(f"  all nodes have the label           {time.monotonic() - began:6.1f} s")
            async with anyio.create_task_group() as tasks:
                daemons = {node: Played(server, scratch / node, domain, node, clique) for node, clique in nodes.items()}
                for daemon in daemons.values():
                    tasks.start_soon(daemon.run)
                    await anyio.lowlevel.checkpoint()
                began = time.monotonic()
                await _wait(lambda: all(list(map(Played.is_ready, daemons.values()))))
                last = time.monotonic()
                print(f"  from the last start to all ready   {last - began:6.1f} s")
                await _wait(lambda: api.list(DOMAINS).items[0]["status"]["summary"] == f"{count}/{count}")
                print(f"  then until the status says so      {time.monotonic() - last:6.1f} s")
                tasks.cancel_scope.cancel()
        finally:
            controller.terminate()
            controller.wait()
        calls = [one for one in server.requests.calls if one.user_agent.startswith("pydra-compute-domain")]
        print(f"  requests of controller and daemons {len(calls) / count:6.2f} a node: ", end="")
        told = Counter(f"{one.verb} {one.resource}" for one in calls)
        print(", ".join(f"{number} {what}" for what, number in told.most_common()))


def _create_node(server: ApiServer, name: str, clique: str) -> None:
    made = server.api.create(kinds.NODES, {"metadata": {"name": name}})
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": made["metadata"]["uid"], "controller": True}
    attributes = {"type": {"string": "channel"}, "id": {"int": 0}, "cliqueID": {"string": clique}}
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "channel-0", "attributes": attributes}]
    body = {
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices},
    }
    server.api.create(kinds.RESOURCE_SLICES, body)


def _allocate(server: ApiServer, name: str, domain: str, node: str) -> None:
    """A pod's claim has the channel of a node."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": CHANNEL_KIND, "domainID": domain}
    config = [{"requests": ["channel"], "opaque": {"driver": DRIVER, "parameters": parameters}}]
    requests = [{"name": "channel", "exactly": {"deviceClassName": CHANNEL_CLASS}}]
    claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": requests, "config": config}}}
    made = server.api.create(kinds.RESOURCE_CLAIMS, claim, namespace="default")
    results = [{"request": "channel", "driver": DRIVER, "pool": node, "device": "channel-0"}]
    allocation = {"devices": {"results": results, "config": [{"source": "FromClaim", **config[0]}]}}
    status = {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": name, "uid": f"{name}-uid"}]}
    body = {**made, "status": status}
    server.api.update(kinds.RESOURCE_CLAIMS, name, body, namespace="default", subresource="status")


class Played:
    """A daemon, its pod, and the kubelet that probes it."""

    def __init__(self, server: ApiServer, place: Path, domain: str, node: str, clique: str) -> None:
        self._server = server
        self._name = f"daemon-{node}"
        number = int(node.rpartition("-")[2])
        self._address = f"10.0.{number // 250}.{number % 250 + 1}"
        place.mkdir()
        (place / "imexd.cfg.tmpl").write_text(TEMPLATE)
        (place / "hosts").write_text("")
        self._settings = DaemonSettings(
            domain=domain,
            clique=clique,
            node=node,
            address=self._address,
            pod=self._name,
            namespace=NAMESPACE,
            directory=str(place),
            hosts_file=str(place / "hosts"),
            program=str(place.parent / "imex"),
            control=str(place.parent / "imex-ctl"),
        )
        body = {
            "metadata": {"name": self._name, "labels": {DOMAIN_LABEL: domain}},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "c"}]},
        }
        server.api.create(kinds.PODS, body, namespace=NAMESPACE)
        self._report("False")
        self._daemon: Daemon | None = None
        self._ready = False

    async def run(self) -> None:
        """Until cancelled."""
        credentials = await load_credentials(environ={}, kubeconfig=str(self._server.kubeconfig))
        async with KubeClient(credentials, user_agent="pydra-compute-domain-daemon") as client:
            self._daemon = Daemon(client, self._settings, DaemonMetrics())
            await self._daemon.run()

    def is_ready(self) -> bool:
        """Whether the pod is; the kubelet looks, too."""
        if not self._ready and self._daemon is not None and not self._daemon.missing():
            self._report("True")
            self._ready = True
        return self._ready

    def _report(self, ready: str) -> None:
        conditions = [{"type": "Ready", "status": ready}]
        body = {"status": {"phase": "Running", "podIP": self._address, "conditions": conditions}}
        api = self._server.api
        api.patch(kinds.PODS, self._name, body, content_type=MERGE, namespace=NAMESPACE, subresource="status")


async def _wait(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not holds():  # noqa: ASYNC110 - some of it happens in another process
            await anyio.sleep(0.05)
