"""One agent with three drivers on a real node: a pod whose devices are below one PCIe root.

The scheduler of Kubernetes 1.36 compares no lists, even with the feature gate (kubernetes#139332): there, and without
the gate, the CPUs must be near one root only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import yaml

import pydra_cpu
import pydra_net
from pydra.errors import Conflict
from pydra.kube.api_resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from pydra.kube.version import check_server
from tests.e2e.agent import open_agent
from tests.e2e.cluster import DRIVER, STAY, Cluster, find_processes, open_cluster

EXAMPLE = Path(pydra_cpu.__file__).parents[1] / "examples" / "near-accelerator.yaml"
ROOT = "resource.kubernetes.io/pcieRoot"
LISTS = pytest.mark.gates("DRAListTypeAttributes")


@pytest.mark.gates("DRAConsumableCapacity")
@pytest.mark.parametrize("cpus", ["desktop", pytest.param("server", marks=LISTS)])
async def test_a_pod_has_an_accelerator_an_interface_and_cpus_below_one_pcie_root(tmp_path: Path, cpus: str) -> None:
    async with (
        open_cluster() as cluster,
        open_classes(cluster),
        open_agent(cluster, tmp_path, beside={"cpu": cpus, "net": "server"}),
    ):
        if cpus == "server" and (await check_server(cluster.client)).minor < 37:
            pytest.skip("the scheduler of Kubernetes 1.36 compares no lists")
        template, _ = yaml.safe_load_all(EXAMPLE.read_text())
        await cluster.create(RESOURCE_CLAIM_TEMPLATES, template)
        script = f"{STAY}; true"
        pod = await cluster.start_pod("near", script, resourceClaimTemplateName=template["metadata"]["name"])
        # Of the shell: it drops variables whose names have hyphens, such as those with a claim's uid, for its children.
        (process,) = find_processes([pod], script.encode())
        variables = (process / "environ").read_text().split("\0")
        assert {one[:4] for one in variables if one.startswith(("SIM_ACCEL_", "DRA_CPUSET_"))} == {"SIM_", "DRA_"}
        (claim,) = (await cluster.client.list(RESOURCE_CLAIMS, namespace=cluster.namespace)).items
        slices = (await cluster.client.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={cluster.node}")).items
        values = {
            (one["spec"]["driver"], device["name"]): (device.get("attributes") or {}).get(ROOT, {})
            for one in slices
            for device in one["spec"].get("devices") or ()
        }
        results = claim["status"]["allocation"]["devices"]["results"]
        assert {one["driver"] for one in results} == {DRIVER, pydra_cpu.DRIVER, pydra_net.DRIVER}
        chosen = [values[one["driver"], one["device"]] for one in results]
        assert set.intersection(*({one.get("string"), *one.get("strings", ())} - {None} for one in chosen))


@asynccontextmanager
async def open_classes(cluster: Cluster) -> AsyncIterator[None]:
    """The classes of the three drivers; those that are new go at the end, since releases bring their own."""
    made = []
    await cluster.create_class(DRIVER)
    try:
        for backend in (pydra_cpu, pydra_net):
            for name, spec in backend.DEVICE_CLASSES.items():
                with suppress(Conflict):
                    await cluster.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": dict(spec)})
                    made.append(name)
        yield
    finally:
        for name in made:
            await cluster.client.delete(DEVICE_CLASSES, name)
