"""The measured world: an API server process, the real agent process, and a kubelet's gRPC channel to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from benchmarks.stats import children_of
from pydra.kubelet import pb

DRIVER = "sim.pydra.dev"
NODE = "bench-node"
PER_GROUP = 200
CONFIG = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "SimConfig", "clockMHz": 1200}
"""A configuration of the simulated accelerators."""

START_SECONDS = 30.0
SETTLED = 13
"""Seconds after which a start is over for the agent: it gives back memory after 10 s."""
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""A file system in memory: where CDI files lie on a node (below /run), and what stands in for hardware here."""


@dataclass
class World:
    """Where everything is; `agent` is the running agent, if one was started."""

    root: Path
    volatile: Path
    url: str
    server: subprocess.Popen[str]
    agent: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    driver: str = DRIVER

    @property
    def socket(self) -> Path:
        """The driver's service socket."""
        return self.root / "plugins" / self.driver / "dra.sock"

    @property
    def child(self) -> int:
        """The process of the backend."""
        assert self.agent is not None
        return children_of(self.agent.pid)[0]

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request to the API server."""
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            self.url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def count_requests(self) -> int:
        """How many requests the API server has had."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        print(file=self.server.stdin, flush=True)
        return int(self.server.stdout.readline())

    def create_claims(self, numbers: Sequence[int]) -> list[pb.Claim]:
        """Allocated claims for a simulated accelerator each, with a configuration, as the kubelet would name them."""
        names = [_name_device(number) for number in numbers]
        return [claim for name in names for claim in self.create_claim(f"claim-{name}", [name], CONFIG)]

    def create_claim(self, name: str, devices: Sequence[str], config: dict[str, Any] | None = None) -> list[pb.Claim]:
        """One allocated claim for these devices of the driver, as a list for the kubelet's calls."""
        collection = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
        claim, status = _describe_claim(name, self.driver, devices, config)
        made = self.request("POST", collection, claim)
        self.request("PUT", f"{collection}/{name}/status", {**made, "status": status})
        return [pb.Claim(namespace="default", uid=made["metadata"]["uid"], name=name)]

    def slices(self) -> list[dict[str, Any]]:
        """The ResourceSlices that are published."""
        items: list[dict[str, Any]] = self.request("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
        return items

    def start_agent(self, devices: int, **settings: str) -> None:
        """Start the agent over a machine with this many accelerators; `wait_registered` and `wait_slices` follow."""
        scenario = self.root / "scenario.yaml"
        scenario.write_text(_describe_machine(devices))
        variables = {"PYDRA_SIM_SCENARIO": f"{scenario}", "PYDRA_SIM_STATE": f"{self.volatile}/hardware"}
        self.start_agent_of("sim", variables | settings)

    def start_agent_of(self, backend: str, settings: Mapping[str, str]) -> None:
        """Start the agent with this backend and its variables."""
        arguments = [
            "--backend", backend, "--node-name", NODE, "--kubeconfig", f"{self.root}/kubeconfig",
            "--kubelet-root", f"{self.root}", "--cdi-dir", f"{self.volatile}/cdi",
            "--records-dir", f"{self.volatile}/run", "--http-address", "",
        ]  # fmt: skip
        environ = {**os.environ, **settings}
        # As installed: with bytecode beside the sources. Compiling them takes half a second at each start.
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self.started = time.perf_counter()
        with (self.root / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "pydra.cli.agent", *arguments], env=environ, stderr=log, stdout=log
            )

    def stop_agent(self) -> None:
        """SIGTERM, and wait."""
        if self.agent is not None:
            self.agent.terminate()
            self.agent.wait(30)
            self.agent = None

    def wait_registered(self) -> float:
        """Seconds from the start of the process until its registration socket answers."""
        registry = self.root / "plugins_registry"
        return self._wait(lambda: any(name.endswith("-reg.sock") for name in os.listdir(registry)))

    def wait_slices(self, devices: int) -> float:
        """Seconds from the start of the process until all devices are published."""
        return self._wait(lambda: sum(len(item["spec"].get("devices") or ()) for item in self.slices()) == devices)

    def _wait(self, done: Any) -> float:
        assert self.agent is not None
        while time.perf_counter() - self.started < START_SECONDS:
            if done():
                return time.perf_counter() - self.started
            if self.agent.poll() is not None:
                break
            time.sleep(0.005)
        sys.exit(f"the agent did not come up:\n{(self.root / 'agent.log').read_text()[-4000:]}")

    @contextmanager
    def kubelet(self) -> Iterator[Calls]:
        """A channel to the driver's service, as the kubelet holds one."""
        with grpc.insecure_channel(f"unix:{self.socket}") as channel:
            grpc.channel_ready_future(channel).result(timeout=10)
            yield Calls(channel)


class Calls:
    """The kubelet's two calls."""

    def __init__(self, channel: grpc.Channel) -> None:
        service = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
        self._prepare = channel.unary_unary(
            f"{service}/NodePrepareResources", bytes, pb.NodePrepareResourcesResponse.parse
        )
        self._unprepare = channel.unary_unary(
            f"{service}/NodeUnprepareResources", bytes, pb.NodeUnprepareResourcesResponse.parse
        )

    def prepare(self, claims: Sequence[pb.Claim]) -> None:
        """Prepare the claims in one call; an error of any of them ends the measurement."""
        answer = self._prepare(pb.NodePrepareResourcesRequest(claims=list(claims)), timeout=45)
        assert len(answer.claims) == len(claims)
        assert not any(one.error for one in answer.claims.values()), answer

    def unprepare(self, claims: Sequence[pb.Claim]) -> None:
        """Unprepare the claims in one call."""
        answer = self._unprepare(pb.NodeUnprepareResourcesRequest(claims=list(claims)), timeout=45)
        assert len(answer.claims) == len(claims)
        assert not any(one.error for one in answer.claims.values()), answer


@contextmanager
def open_world() -> Iterator[World]:
    """An API server with a node, and empty directories; the agent, if any is left, ends with the block."""
    with (
        tempfile.TemporaryDirectory(prefix="pb-") as scratch,
        tempfile.TemporaryDirectory(prefix="pb-", dir=MEMORY) as volatile,
    ):
        root = Path(scratch)
        (root / "plugins_registry").mkdir()
        with _serve_api(root / "kubeconfig") as server:
            assert server.stdout is not None
            world = World(root=root, volatile=Path(volatile), url=server.stdout.readline().strip(), server=server)
            world.request("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
            try:
                yield world
            finally:
                world.stop_agent()


@contextmanager
def _serve_api(kubeconfig: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.server", str(kubeconfig)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield server
    finally:
        server.kill()
        server.communicate()


def _name_device(number: int) -> str:
    """The name of the simulated accelerator with this number."""
    return f"g{number // PER_GROUP}-{number % PER_GROUP}"


def _describe_machine(devices: int) -> str:
    """A machine with this many whole accelerators, in YAML."""
    groups = []
    for first in range(0, devices, PER_GROUP):
        count = min(PER_GROUP, devices - first)
        groups.append(f"  - {{name: g{first // PER_GROUP}, count: {count}}}")
    return "groups:\n" + "\n".join(groups) + "\n"


def _describe_claim(
    name: str, driver: str, devices: Sequence[str], config: dict[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A claim for devices of the class that is called as its driver, and the status that a scheduler would give it."""
    configs = [{"opaque": {"driver": driver, "parameters": config}}] if config else []
    request = {"name": "devices", "exactly": {"deviceClassName": driver, "count": len(devices)}}
    made = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request], "config": configs}},
    }
    results = [{"request": "devices", "driver": driver, "pool": NODE, "device": device} for device in devices]
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}]
    status = {
        "allocation": {
            "devices": {"results": results, "config": [{"source": "FromClaim", **one} for one in configs]},
            "nodeSelector": {"nodeSelectorTerms": terms},
        },
        "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": f"pod-{name}-uid"}],
    }
    return made, status
