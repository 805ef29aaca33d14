"""A release of the chart in the test's namespace, with simulated accelerators under a driver name of its own.

PYDRA_E2E_CHART_IMAGE names the images, which are on the node: with localhost/pydra:1, localhost/pydra-sim:1 is used.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import helm_python
import yaml

from pydra.kube.auth import load_credentials
from pydra.kube.client import KubeClient
from pydra.kube.resources import PODS, JsonObject, Resource
from tests.chart.rendering import CHART, overlay
from tests.e2e.cluster import KUBELET_ROOT, Cluster

IMAGE = os.environ.get("PYDRA_E2E_CHART_IMAGE", "")
SECONDS = 100

DAEMON_SETS = Resource(group="apps", version="v1", plural="daemonsets", kind="DaemonSet", namespaced=True)
KINDS = tuple(
    Resource(group=group, version="v1", plural=plural, kind=plural, namespaced=namespaced)
    for group, plurals, namespaced in (
        ("", ("configmaps", "secrets", "serviceaccounts", "services", "pods", "resourcequotas"), True),
        ("apps", ("daemonsets", "deployments"), True),
        ("policy", ("poddisruptionbudgets",), True),
        ("rbac.authorization.k8s.io", ("roles", "rolebindings"), True),
        ("rbac.authorization.k8s.io", ("clusterroles", "clusterrolebindings"), False),
        ("resource.k8s.io", ("deviceclasses",), False),
        (
            "admissionregistration.k8s.io",
            (
                "validatingadmissionpolicies",
                "validatingadmissionpolicybindings",
                "validatingwebhookconfigurations",
            ),
            False,
        ),
    )
    for plural in plurals
)
"""Everything that the chart may make here."""


class Release:
    """The release `pydra` in the cluster's namespace; its driver is the cluster's."""

    def __init__(self, helm: helm_python.Config, cluster: Cluster) -> None:
        self.cluster = cluster
        self._helm = helm
        self._state = f"/var/run/pydra-{cluster.driver}"

    async def install(self, *values: Mapping[str, Any], name: str = "pydra") -> None:
        """Install it, and wait until all of it is ready."""
        await self._call(self._helm.install, CHART, name, self.values(*values), wait="watcher", timeout=SECONDS)

    async def upgrade(self, *values: Mapping[str, Any]) -> None:
        """The same for an upgrade."""
        await self._call(self._helm.upgrade, CHART, "pydra", self.values(*values), wait="watcher", timeout=SECONDS)

    async def test(self) -> None:
        """`helm test`; raises HelmError."""
        await self._call(self._helm.test, "pydra", timeout=SECONDS)

    async def uninstall(self) -> None:
        """Remove it, and what it left on the node."""
        await self._call(self._helm.uninstall, "pydra", wait="watcher", timeout=SECONDS, ignore_not_found=True)
        for path in (self._state, KUBELET_ROOT / "plugins" / self.cluster.driver):
            shutil.rmtree(path, ignore_errors=True)

    def values(self, *values: Mapping[str, Any]) -> dict[str, Any]:
        """Its values, these over those that every test has."""
        path, _, tag = IMAGE.rpartition(":")
        registry, _, repository = path.rpartition("/")
        driver = self.cluster.driver
        backend = {
            "enabled": True,
            "driver": driver,
            "hostPaths": [{"path": self._state, "type": "DirectoryOrCreate"}],
            "settings": {"state": self._state},
            "deviceClasses": {"names": {"sim.pydra.dev": driver, "partition.sim.pydra.dev": f"partition.{driver}"}},
        }
        image = {"registry": registry, "repository": repository, "tag": tag, "pullPolicy": "Never"}
        return overlay({"image": image, "backends": {"sim": backend}}, *values)

    async def objects(self) -> set[str]:
        """What is there of it, in the cluster as a whole."""
        found: set[str] = set()
        for kind in KINDS:
            listed = await self.cluster.client.list(kind, namespace=self.cluster.namespace if kind.namespaced else "")
            for one in listed.items:
                name = one["metadata"]["name"]
                if name.endswith(f".{self.cluster.namespace}") or self.cluster.driver in name or _is_ours(kind, name):
                    found.add(f"{kind.plural}/{name}")
        return found

    async def agent(self) -> JsonObject:
        """The agent's pod, the only one that runs."""
        selector = "app.kubernetes.io/component=agent"
        pods = await self.cluster.client.list(PODS, namespace=self.cluster.namespace, label_selector=selector)
        (pod,) = [one for one in pods.items if not one["metadata"].get("deletionTimestamp")]
        return pod

    @asynccontextmanager
    async def as_agent(self, scratch: Path) -> AsyncIterator[KubeClient]:
        """The API with the agent's own token, as the kubelet has put it into the pod."""
        uid = (await self.agent())["metadata"]["uid"]
        (token,) = (KUBELET_ROOT / "pods" / uid / "volumes" / "kubernetes.io~projected").glob("kube-api-access-*/token")
        config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
        config["users"] = [{"name": one["name"], "user": {"token": token.read_text()}} for one in config["users"]]
        path = scratch / "agent.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        async with KubeClient(await load_credentials(environ={"KUBECONFIG": str(path)})) as client:
            yield client

    async def _call(self, action: Any, *arguments: Any, **options: Any) -> None:
        await anyio.to_thread.run_sync(partial(action, *arguments, **options))


@asynccontextmanager
async def open_release(cluster: Cluster) -> AsyncIterator[Release]:
    """None yet; whatever a test has installed goes with the test's pods."""
    with helm_python.Config(kubeconfig_path=os.environ["KUBECONFIG"], namespace=cluster.namespace) as helm:
        release = Release(helm, cluster)
        try:
            yield release
        finally:
            await release.uninstall()


def _is_ours(kind: Resource, name: str) -> bool:
    return kind.namespaced and name.startswith("pydra")
