"""One agent with three drivers, and a claim for devices of each below one PCIe root: the CPUs' is one of a list."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import yaml

import pydra_cpu
import pydra_net
import pydra_sim
from pydra.kube.api_resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from pydra_dev.kubelet.observations import Step
from pydra_dev.node import run_node
from tests.integration.agent.node_user import NAMESPACE, NodeUser
from tests.integration.agent.process import DEADLINE, run_agent

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "near-accelerator.yaml"
ROOT = "resource.kubernetes.io/pcieRoot"
ACCELERATOR, NIC = pydra_sim.DRIVER, pydra_net.DRIVER


class Near(NodeUser):
    """An embedded node whose agent serves three drivers, all of one simulated machine."""

    async def apply_example(self) -> None:
        """Create the example's pod and template."""
        template, pod = yaml.safe_load_all(EXAMPLE.read_text())
        await self.apply(template, pod)

    async def hold(self, name: str, device_class: str, count: int, *, root: str) -> None:
        """Give all these devices of a PCIe root to another pod."""
        domain, _, attribute = ROOT.partition("/")
        expression = f"device.attributes['{domain}'].?{attribute}.orValue('') == '{root}'"
        exactly = {"deviceClassName": device_class, "count": count, "selectors": [{"cel": {"expression": expression}}]}
        await self.create_both(name, {"name": "all", "exactly": exactly})
        await self.wait_running(name)

    async def list_claims(self) -> list[dict[str, Any]]:
        """The claim of the example's pod, once it is made."""
        found = (await self.node.client.list(RESOURCE_CLAIMS, namespace=NAMESPACE)).items
        return [dict(one) for one in found if one["metadata"]["name"].startswith("near-near-")]

    async def read_roots(self) -> dict[tuple[str, str], set[str]]:
        """The PCIe roots of each device, by driver and name."""
        slices = (await self.node.client.list(RESOURCE_SLICES)).items
        devices = {
            (one["spec"]["driver"], device["name"]): device for one in slices for device in one["spec"]["devices"]
        }
        values = {key: (device.get("attributes") or {}).get(ROOT, {}) for key, device in devices.items()}
        return {key: {one.get("string", ""), *one.get("strings", ())} - {""} for key, one in values.items()}

    async def wait_explained(self) -> str:
        """Why the claim of the example's pod cannot be allocated, as `pydra explain claim` has it."""
        with anyio.fail_after(DEADLINE):
            while not (found := await self.list_claims()):  # noqa: ASYNC110 - made by the control plane
                await anyio.sleep(0.02)
        name = found[0]["metadata"]["name"]
        command = [sys.executable, "-m", "pydra.cli.tool", "explain", "claim", name, "-o", "json"]
        environ = {**os.environ, "KUBECONFIG": str(self.node.server.kubeconfig)}
        done = await anyio.run_process(command, env=environ, check=False, stderr=subprocess.STDOUT)
        return str(json.loads(done.stdout)["reviews"][0]["reason"])


def _list(attribute: dict[str, Any]) -> list[str]:
    return [attribute["string"]] if "string" in attribute else attribute.get("strings", [])


@asynccontextmanager
async def serve() -> AsyncIterator[Near]:
    steps: list[Step] = []
    async with run_node(steps.append, version="v1.37.0", gates={"DRAListTypeAttributes": True}) as node:
        found = Near(node, steps)
        ours = {"selectors": [{"cel": {"expression": f"device.driver == '{ACCELERATOR}'"}}]}
        await found.create_classes({**pydra_cpu.DEVICE_CLASSES, **pydra_net.DEVICE_CLASSES, ACCELERATOR: ours})
        flags = [flag for backend in ("cpu", "sim", "net") for flag in ("--backend", backend)]
        environ = {f"PYDRA_{name}_SCENARIO": "server" for name in ("CPU", "NET")}
        environ |= {f"PYDRA_{name}_STATE": f"{node.root}/{name}" for name in ("CPU", "NET")}
        async with run_agent(node, *flags, environ=environ, forked=True) as agent:
            await agent.wait_ready()
            yield found


async def test_three_drivers_give_a_claim_devices_below_one_pcie_root_or_its_author_reads_why_not() -> None:
    async with serve() as near:
        await near.apply_example()
        await near.wait_running("near")
        (claim,) = await near.list_claims()
        results = claim["status"]["allocation"]["devices"]["results"]
        assert {one["driver"] for one in results} == {ACCELERATOR, NIC, pydra_cpu.DRIVER}
        roots = await near.read_roots()
        found = [roots[one["driver"], one["device"]] for one in results]
        assert set.intersection(*found)
        await near.node.client.delete(PODS, "near", namespace=NAMESPACE, grace_period=0)
        await near.node.client.delete(RESOURCE_CLAIM_TEMPLATES, "near-accelerator", namespace=NAMESPACE)
        with anyio.fail_after(DEADLINE):
            while await near.list_claims():  # noqa: ASYNC110 - until the garbage collection has found it
                await anyio.sleep(0.02)
        await near.hold("interfaces", NIC, 2, root="pci0000:00")
        await near.hold("accelerators", ACCELERATOR, 4, root="pci0000:01")
        await near.apply_example()
        why = await near.wait_explained()
        assert "cannot be satisfied together: request nic finds no device beside those before it" in why
        assert f"2 against matchAttribute {ROOT}: has pci0000:01, the devices before it pci0000:00" in why
