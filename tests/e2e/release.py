"""A release of the chart in the test's namespace, with simulated accelerators under a driver name of its own.

PYDRA_E2E_CHART_IMAGE names the images, which are on the node: with localhost/pydra:1, localhost/pydra-sim:1 is used.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import helm_python
import yaml

from pydra.kube.api_resources import NAMESPACES, PODS, JsonObject, Resource
from pydra.kube.client import KubeClient
from pydra.kube.credentials import load_credentials
from tests.chart.rendering import CHART, overlay
from tests.e2e.cluster import KUBELET_ROOT, RECORDS_DIRECTORY, Cluster, kill_processes, open_cluster

IMAGE = os.environ.get("PYDRA_E2E_CHART_IMAGE", "")
SECONDS = 100
PRIVILEGED = {"pod-security.kubernetes.io/enforce": "privileged"}

DAEMON_SETS = Resource(group="apps", version="v1", plural="daemonsets", kind="DaemonSet", namespaced=True)
CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS = (
    Resource(group="rbac.authorization.k8s.io", version="v1", plural=f"{kind.lower()}s", kind=kind)
    for kind in ("ClusterRole", "ClusterRoleBinding")
)
KINDS = tuple(
    Resource(group=group, version="v1", plural=plural, kind=plural, namespaced=namespaced)
    for group, plurals, namespaced in (
        ("", ("configmaps", "secrets", "serviceaccounts", "services", "pods", "resourcequotas"), True),
        ("apps", ("daemonsets", "deployments"), True),
        ("networking.k8s.io", ("networkpolicies",), True),
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
    """The release `pydra` in the cluster's namespace; its driver is the cluster's. `state` is its hardware's."""

    def __init__(self, helm: helm_python.Config, cluster: Cluster, backends: Mapping[str, Any] | None = None) -> None:
        self.cluster = cluster
        self.state = state_of(cluster.driver)
        self._helm = helm
        self._backends = backends or self._simulated()

    async def install(self, *values: Mapping[str, Any], name: str = "pydra", wait: bool = True) -> None:
        """Install it, and wait until all of it is ready."""
        await self._apply(self._helm.install, *values, name=name, wait=wait)

    async def upgrade(self, *values: Mapping[str, Any], wait: bool = True) -> None:
        """The same for an upgrade."""
        await self._apply(self._helm.upgrade, *values, name="pydra", wait=wait)

    async def _apply(self, action: Any, *values: Mapping[str, Any], name: str, wait: bool) -> None:
        waiting = {"wait": "watcher", "timeout": SECONDS} if wait else {}
        await self._call(action, CHART, name, self.values(*values), **waiting)

    async def roll_back(self, revision: int) -> None:
        """Go back to what an earlier revision was, and wait until all of it is ready."""
        await self._call(self._helm.rollback, "pydra", version=revision, wait="watcher", timeout=SECONDS)

    async def test(self) -> None:
        """`helm test`; raises HelmError."""
        await self._call(self._helm.test, "pydra", timeout=SECONDS)

    async def uninstall(self) -> None:
        """Remove it, and wait until nothing of it is in the cluster; what is on the node stays."""
        await self._call(self._helm.uninstall, "pydra", wait="watcher", timeout=SECONDS, ignore_not_found=True)
        await self.cluster.wait("all of the release is gone", self._is_gone)

    async def _is_gone(self) -> bool:
        left = await self.objects() - {"pods/pydra-test"}  # Helm leaves a test that failed, for its log
        return not [one for one in left if not one.startswith("deviceclasses/")]

    def sockets(self) -> list[Path]:
        """What the kubelet could find the driver by, and call it at."""
        named = (KUBELET_ROOT / "plugins_registry").glob(f"*{self.cluster.driver}*")
        return sorted((*named, *(KUBELET_ROOT / "plugins" / self.cluster.driver).glob("*.sock")))

    def clean_node(self) -> None:
        """Remove what the agent keeps on the node between two releases."""
        driver = self.cluster.driver
        for path in (self.state, KUBELET_ROOT / "plugins" / driver, RECORDS_DIRECTORY / driver):
            shutil.rmtree(path, ignore_errors=True)

    def hardware(self, scenario: str, *, name: str = "scenario") -> dict[str, Any]:
        """The values for accelerators as this scenario has them, in a file of this name."""
        path = self.state / f"{name}.yaml"
        self.state.mkdir(exist_ok=True)
        path.write_text(scenario)
        return {"backends": {"sim": {"settings": {"scenario": str(path)}}}}

    def values(self, *values: Mapping[str, Any]) -> dict[str, Any]:
        """Its values, these over those that every test has."""
        common: dict[str, Any] = {"kubelet": {"root": str(KUBELET_ROOT)}, "backends": self._backends}
        if not _is_root_shared():
            common["host"] = {"mountPropagation": "None"}
        return overlay(image_values(IMAGE), common, *values)

    def _simulated(self) -> dict[str, Any]:
        """The backend `sim` under the cluster's driver name."""
        driver = self.cluster.driver
        backend = {
            "enabled": True,
            "driver": driver,
            "hostPaths": [{"path": str(self.state), "type": "DirectoryOrCreate"}],
            "settings": {"state": str(self.state)},
            "deviceClasses": {"names": {"sim.pydra.dev": driver, "partition.sim.pydra.dev": f"partition.{driver}"}},
        }
        return {"sim": backend}

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
        (pod,) = await self.agents()
        return pod

    async def agents(self) -> list[JsonObject]:
        """The agents' pods that do not end yet."""
        selector = "app.kubernetes.io/component=agent"
        pods = await self.cluster.client.list(PODS, namespace=self.cluster.namespace, label_selector=selector)
        return [one for one in pods.items if not one["metadata"].get("deletionTimestamp")]

    async def kill_agent(self) -> None:
        """Kill all processes of the agent, and wait until it serves again."""
        kill_processes([await self.agent()], b"pydra")

        async def serves() -> bool:
            status = (await self.agent())["status"]["containerStatuses"][0]
            return bool(status["restartCount"]) and bool(status["ready"])

        await self.cluster.wait("the agent serves again", serves)

    @asynccontextmanager
    async def as_agent(self, scratch: Path) -> AsyncIterator[KubeClient]:
        """The API with the agent's own token, as the kubelet has put it into the pod."""
        uid = (await self.agent())["metadata"]["uid"]
        (token,) = (KUBELET_ROOT / "pods" / uid / "volumes" / "kubernetes.io~projected").glob("*/token")
        config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
        config["users"] = [{"name": one["name"], "user": {"token": token.read_text()}} for one in config["users"]]
        path = scratch / "agent.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        async with KubeClient(await load_credentials(environ={"KUBECONFIG": str(path)})) as client:
            yield client

    async def _call(self, action: Any, *arguments: Any, **options: Any) -> None:
        await anyio.to_thread.run_sync(partial(action, *arguments, **options))


@asynccontextmanager
async def open_release(cluster: Cluster, backends: Mapping[str, Any] | None = None) -> AsyncIterator[Release]:
    """None yet; whatever a test has installed goes after the test's pods, which it must unprepare."""
    connect = partial(helm_python.Config, kubeconfig_path=os.environ["KUBECONFIG"], namespace=cluster.namespace)
    helm = await anyio.to_thread.run_sync(connect)  # which loads Helm
    release = Release(helm, cluster, backends)
    try:
        yield release
    finally:
        try:
            await cluster.clear()
        finally:
            await release.uninstall()
            release.clean_node()
            await anyio.to_thread.run_sync(helm.close)


@asynccontextmanager
async def open_served(cluster: Cluster, *, scenario: str = "") -> AsyncIterator[Release]:
    """A release that serves the cluster's driver; the DeviceClasses are the test's."""
    async with open_release(cluster) as release:
        await cluster.client.patch(NAMESPACES, cluster.namespace, {"metadata": {"labels": PRIVILEGED}})
        hardware = release.hardware(scenario) if scenario else {}
        await release.install({"deviceClasses": {"create": False}}, hardware)
        await cluster.wait("devices are published", cluster.devices)
        yield release


@asynccontextmanager
async def open_place(driver: str = "") -> AsyncIterator[tuple[Cluster, Release]]:
    """A namespace, and a driver name that nobody else serves, or this one."""
    driver = driver or f"chart-{secrets.token_hex(3)}.sim.pydra.dev"
    async with open_cluster(driver, **PRIVILEGED) as cluster, open_release(cluster) as release:
        yield cluster, release


def state_of(driver: str) -> Path:
    """Where the hardware of a driver's release is that is not there: on the node, at the same path for the kubelet."""
    return KUBELET_ROOT / f"pydra-{driver}"


def image_values(image: str) -> dict[str, Any]:
    """The values for images of this name, which are on the node."""
    path, _, tag = image.rpartition(":")
    registry, _, repository = path.rpartition("/")
    return {"image": {"registry": registry, "repository": repository, "tag": tag, "pullPolicy": "Never"}}


def _is_root_shared() -> bool:
    """Whether what the host mounts can reach pods, as with every systemd; the chart's default needs it."""
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return any(fields[4] == "/" and any(tag.startswith("shared:") for tag in fields[6:]) for fields in mounts)


def _is_ours(kind: Resource, name: str) -> bool:
    return kind.namespaced and name.startswith("pydra")
