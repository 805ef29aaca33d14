"""A node with simulated NVIDIA GPUs: the real kubelet, scheduler and container runtime, and the machine below NVML."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from pydra.errors import Conflict
from pydra.kube.api_resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, JsonObject
from pydra_nvidia import DEVICE_CLASSES as CLASSES
from pydra_nvidia import DRIVER
from pydra_nvidia.simulation.simulation import Simulation, open_simulation
from tests.e2e.agent import Agent, open_agent
from tests.e2e.cluster import Cluster, open_cluster

ONE = "seed: e2e\nsettings: {dynamic_mig: true}\ngpus: [{model: h100-80gb}]\n"
TWO = "seed: e2e\nsettings: {dynamic_mig: true}\ngpus: [{model: h100-80gb, count: 2}]\n"
PLAIN = "seed: e2e\ngpus: [{model: l40s, count: 2}]\n"
"""GPUs without partitions."""

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
LOOK = f"""{{
    env | grep -E '^(NVIDIA_VISIBLE|CUDA_MPS|LD_LIBRARY)'
    for node in /dev/nvidia* /dev/nvidia-caps/* /dev/vfio/* /dev/vfio/devices/* /dev/iommu; do
        [ -c $node ] && echo $node $((0x$(stat -c %t $node))):$((0x$(stat -c %T $node)))
    done
    echo libcuda $(readlink {LIBRARIES}/libcuda.so.1 || ls {LIBRARIES} | grep -c '^libcuda.so')
}} >/dev/termination-log; true"""
"""Ends with the variables, the nodes with their numbers, and where libcuda leads."""


class NvidiaNode:
    """The cluster, the node's agent, and its simulated machine."""

    def __init__(self, cluster: Cluster, agent: Agent, machine: Simulation) -> None:
        self.cluster = cluster
        self.agent = agent
        self.machine = machine
        self.inject = machine.inject

    def gpus(self) -> list[Any]:
        """The state of each GPU, by minor number."""
        view = self.machine.machine.read()
        return [view.state.gpus[board.uuid] for board in sorted(view.boards.values(), key=lambda one: one.minor)]

    def uuid(self, minor: int) -> str:
        """The GPU's."""
        return next(board.uuid for board in self.machine.machine.read().boards.values() if board.minor == minor)

    def partitions(self) -> list[tuple[int, int, int]]:
        """Minor number, profile and place of each."""
        return [(minor, one.profile, one.start) for minor, gpu in enumerate(self.gpus()) for one in gpu.instances]

    def leftovers(self) -> list[str]:
        """What unprepared claims must not leave: on the hardware, daemons."""
        state = Path(self.machine.settings["state"])
        return [
            *(str(place) for place in self.partitions()),
            *(f"GPU {minor} is bound to {gpu.driver}" for minor, gpu in enumerate(self.gpus()) if gpu.override),
            *(
                f"GPU {minor} is not as it was"
                for minor, gpu in enumerate(self.gpus())
                if (gpu.mig, gpu.compute_mode, gpu.time_slice) != (False, 0, 0)
            ),
            *map(str, state.glob("mps/*-*-*-*-*-*")),
        ]

    async def wait_clean(self) -> None:
        """Wait until nothing of any claim is left on the node."""
        await self.cluster.wait_unprepared()
        if left := self.leftovers():
            pytest.fail(f"left behind: {', '.join(left)}")


def ask(name: str = "gpu", *, kind: str = "gpu", where: str = "", **exactly: Any) -> JsonObject:
    """A request for devices of a class, for which the CEL expression `where` holds; A and C stand for the driver's."""
    expression = where.replace("A.", f"device.attributes['{DRIVER}'].").replace("C.", f"device.capacity['{DRIVER}'].")
    classes = {"gpu": DRIVER, "mig": "mig.nvidia.com", "vfio": f"vfio.{DRIVER}"}
    selectors = {"selectors": [{"cel": {"expression": expression}}]} if where else {}
    return {"name": name, "exactly": {"deviceClassName": classes[kind], **selectors, **exactly}}


def partition(profile: str, name: str = "gpu", **exactly: Any) -> JsonObject:
    """A request for partitions."""
    return ask(name, kind="mig", where=f"A.profile == '{profile}'", **exactly)


def configure(kind: str, requests: Sequence[str] = (), **fields: Any) -> list[JsonObject]:
    """A claim's configuration of the vendor's kind."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **fields}
    return [{"requests": list(requests), "opaque": {"driver": DRIVER, "parameters": parameters}}]


async def allocated(cluster: Cluster, claim: str) -> list[JsonObject]:
    """The results of a claim that a pod holds."""
    found = await cluster.client.get(RESOURCE_CLAIMS, claim, namespace=cluster.namespace)
    results: list[JsonObject] = found["status"]["allocation"]["devices"]["results"]
    return results


async def start_pods(cluster: Cluster, script: str, claims: Sequence[str]) -> None:
    """Pods of the claims' names, one for each, once all run."""
    for name in claims:
        await cluster.create_pod(name, script, resourceClaimName=name)
    for name in claims:
        await cluster.wait_phase(name, "Running")


async def delete_pods(cluster: Cluster, names: Sequence[str]) -> None:
    """Delete them all at once, and wait until they are gone."""
    for name in names:
        await cluster.client.delete(PODS, name, namespace=cluster.namespace)
    for name in names:
        await cluster.wait_gone(name)


@asynccontextmanager
async def open_nvidia_cluster(**labels: str) -> AsyncIterator[Cluster]:
    """The cluster with the driver's classes."""
    async with open_cluster(DRIVER, **labels) as cluster:
        for name, spec in CLASSES.items():
            with suppress(Conflict):
                await cluster.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": dict(spec)})
        yield cluster


@asynccontextmanager
async def serve(
    cluster: Cluster, scratch: Path, scenario: str, *, flags: tuple[str, ...] = ()
) -> AsyncIterator[NvidiaNode]:
    """A node that serves; when its pods have gone, the hardware must be as it was."""
    async with open_agent(cluster, scratch, backend="nvidia", scenario=scenario, flags=flags) as agent:
        node = NvidiaNode(cluster, agent, await open_machine(scratch))
        yield node
        await cluster.clear()
        await node.wait_clean()


@asynccontextmanager
async def open_node(
    scratch: Path, scenario: str, *, flags: tuple[str, ...] = (), labels: Mapping[str, str] | None = None
) -> AsyncIterator[NvidiaNode]:
    """The same, with a namespace with these labels."""
    async with open_nvidia_cluster(**(labels or {})) as cluster, serve(cluster, scratch, scenario, flags=flags) as node:
        yield node


async def open_machine(scratch: Path) -> Simulation:
    """The machine of an agent that runs there, or ran."""
    return await to_thread.run_sync(open_simulation, str(scratch / "scenario.yaml"), str(scratch / "hardware"))
