"""One agent with three drivers on a real node: a pod whose devices are below one PCIe root."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import yaml

import pydra_cpu
import pydra_net
from pydra.errors import Conflict
from pydra.kube.api_resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.e2e.agent import open_agent
from tests.e2e.cluster import DRIVER, open_cluster

EXAMPLE = Path(pydra_cpu.__file__).parents[1] / "examples" / "near-accelerator.yaml"
ROOT = "resource.kubernetes.io/pcieRoot"
SHOW = "{ env | grep -E '^(SIM_.*_UUID|DRA_CPUSET_.*)=' | cut -d= -f1; } | sort >/dev/termination-log"


@pytest.mark.gates("DRAConsumableCapacity", "DRAListTypeAttributes")
async def test_a_pod_has_an_accelerator_an_interface_and_cpus_below_one_pcie_root(tmp_path: Path) -> None:
    machine = {"cpu": "server", "net": "server"}
    async with open_cluster() as cluster, open_agent(cluster, tmp_path, beside=machine):
        await cluster.create_class(DRIVER)
        for backend in (pydra_cpu, pydra_net):
            for name, spec in backend.DEVICE_CLASSES.items():
                with suppress(Conflict):
                    await cluster.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": dict(spec)})
        template, _ = yaml.safe_load_all(EXAMPLE.read_text())
        await cluster.create(RESOURCE_CLAIM_TEMPLATES, template)
        found = await cluster.run_pod("near", SHOW, resourceClaimTemplateName=template["metadata"]["name"])
        assert [line.partition("_")[0] for line in found["main"]] == ["DRA", "SIM"]
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
