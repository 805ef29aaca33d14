"""A ComputeDomain of one node: controller and daemons from the chart, channels from an agent of this machine.

The agent has the simulated machine of a GB200, whose programs `nvidia-imex` and `nvidia-imex-ctl` are replaced by files
that run where there is no simulation: in the daemon's container.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from pydra.errors import NotFound
from pydra.kube.api_resources import NODES, PODS, Resource
from pydra_nvidia.compute_domain import DRIVER
from tests.e2e.agent import Agent, open_agent
from tests.e2e.cluster import STAY, Cluster, kill_processes, open_cluster
from tests.e2e.release import IMAGE, PRIVILEGED, open_release

pytestmark = pytest.mark.skipif(not IMAGE, reason="PYDRA_E2E_CHART_IMAGE names no image that is on the node")

BACKEND = "nvidia-compute-domain"
DOMAINS = Resource(
    group="resource.nvidia.com", version="v1beta1", plural="computedomains", kind="ComputeDomain", namespaced=True
)
DEFINITIONS = Resource(
    group="apiextensions.k8s.io", version="v1", plural="customresourcedefinitions", kind="CustomResourceDefinition"
)
LABEL = "resource.nvidia.com/computeDomain"
INTERPRETER = "#!/proc/self/exe\n"
"""Python, where the caller is: on the node it is elsewhere than in the container."""

IMEX = f"""{INTERPRETER}import pathlib, signal, sys
running = pathlib.Path(sys.argv[2]).with_name("running")
running.touch()
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.sigwait([signal.SIGTERM])
running.unlink()
"""
CONTROL = f"""{INTERPRETER}import pathlib, sys
running = pathlib.Path(sys.argv[sys.argv.index("-c") + 1]).resolve().with_name("running")
print("READY" if running.exists() else "UNAVAILABLE")
"""


async def test_a_domain_lives_from_its_creation_to_its_end_although_all_its_processes_are_killed(
    tmp_path: Path,
) -> None:
    async with open_domains(tmp_path) as (cluster, agent):
        await cluster.create(
            DOMAINS,
            {
                "metadata": {"name": "rack"},
                "spec": {"numNodes": 1, "channel": {"resourceClaimTemplate": {"name": "rack-channel"}}},
            },
        )
        look = "ls /dev/nvidia-caps-imex-channels >/dev/termination-log"
        await cluster.create_pod("first", look, resourceClaimTemplateName="rack-channel")
        (container,) = (await cluster.wait_phase("first", "Succeeded"))["status"]["containerStatuses"]
        assert container["state"]["terminated"]["message"].split() == ["channel0"]
        await cluster.start_pod("trainer", STAY, resourceClaimTemplateName="rack-channel")
        await wait_ready(cluster, "True", "NodesReady")

        pods = (await cluster.client.list(PODS, namespace=cluster.namespace)).items
        ours = [pod for pod in pods if pod["metadata"]["name"] not in ("first", "trainer")]
        assert len(ours) == 2, "one pod of the controller, one daemon"
        kill_processes(ours, b"compute-domain")
        assert agent.stop(signal.SIGKILL) == -signal.SIGKILL
        async with open_agent(cluster, tmp_path, backend=BACKEND, scenario="gb200"):
            await wait_ready(cluster, "True", "NodesReady")
            assert (await cluster.pod("trainer"))["status"]["containerStatuses"][0]["restartCount"] == 0
            await cluster.client.delete(DOMAINS, "rack", namespace=cluster.namespace)

            async def waits() -> bool:
                found = await cluster.client.get(DOMAINS, "rack", namespace=cluster.namespace)
                return any("trainer" in one["message"] for one in found["status"]["conditions"])

            await cluster.wait("the domain waits for the pod, and says so", waits)
            await cluster.delete_pod("trainer")
            await cluster.delete_pod("first")
            await cluster.wait_gone("rack", DOMAINS)
            node = await cluster.client.get(NODES, cluster.node)
            assert LABEL not in node["metadata"]["labels"]


@asynccontextmanager
async def open_domains(scratch: Path) -> AsyncIterator[tuple[Cluster, Agent]]:
    """The chart's controller, and an agent for the node in the place of the chart's, which finds no GPU here."""
    backends = {BACKEND: {"enabled": True, "nodeSelector": {"example.com/no-such-node": "true"}}}
    async with (
        open_cluster(DRIVER, **PRIVILEGED) as cluster,
        definitions_removed(cluster),
        open_release(cluster, backends) as release,
    ):
        await release.install({"computeDomainController": {"enabled": True, "replicas": 1}})
        async with open_agent(cluster, scratch, backend=BACKEND, scenario="gb200") as agent:
            programs = scratch / "hardware" / "tree" / "usr" / "bin"
            for name, text in (("nvidia-imex", IMEX), ("nvidia-imex-ctl", CONTROL)):
                (programs / name).unlink()
                (programs / name).write_text(text)
                (programs / name).chmod(0o755)
            yield cluster, agent


@asynccontextmanager
async def definitions_removed(cluster: Cluster) -> AsyncIterator[None]:
    """Helm keeps them, and they name this test's release: the next one would be refused."""
    yield
    for name in ("computedomaincliques", "computedomains"):
        with suppress(NotFound):
            await cluster.client.delete(DEFINITIONS, f"{name}.{DOMAINS.group}")


async def wait_ready(cluster: Cluster, status: str, reason: str) -> None:
    async def look() -> bool:
        found = await cluster.client.get(DOMAINS, "rack", namespace=cluster.namespace)
        conditions = (found.get("status") or {}).get("conditions") or ()
        return any((one["type"], one["status"], one["reason"]) == ("Ready", status, reason) for one in conditions)

    await cluster.wait(f"the domain is Ready={status}, {reason}", look)
