"""The controller's process against an API server: it lives through kills, takes turns, and says what is wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from domain_cluster import OWN, Cluster
from pydra.controllers import (
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
    Cache,
    Informer,
    KubeClient,
    LostLease,
    Resource,
    load_credentials,
)
from pydra_dev.api import kinds
from pydra_dev.api.errors import StatusError
from pydra_dev.apiserver.faults import Fault
from pydra_dev.apiserver.server import ApiServer, serve_api
from pydra_dev.apiserver.store import Signal
from pydra_dev.node import free_port
from pydra_nvidia.compute_domain.controller.object_fields import CLIQUES, COMPUTE_DOMAINS, DAEMON_SETS
from pydra_nvidia.compute_domain.controller.requests import LabelNode
from pydra_nvidia.compute_domain.controller.writer import Writer, build_label, name_manager
from pydra_nvidia.compute_domain.custom_resource_definitions import DEFINITIONS
from pydra_nvidia.compute_domain.names import DOMAIN_LABEL
from tests.forked import ForkedProgram

FABRIC = {"a": "rack.1", "b": "rack.1"}
DEADLINE = 100


class Scene:
    """A server, the cluster on it, and the controllers that were started."""

    def __init__(self, server: ApiServer, log: Path) -> None:
        self.server = server
        self.log = log
        self.cluster = Cluster(FABRIC, api=server.api)
        self._changed = Signal()
        server.store.listen(self._changed.notify)

    async def until(self, holds: Callable[[], bool], *, daemons: bool = True) -> None:
        """Wait for it; meanwhile DaemonSets have their pods, and all pods are ready."""
        with anyio.fail_after(DEADLINE):
            while True:
                changed = self._changed.event
                if daemons:
                    self.cluster.run_daemon_sets()
                    for pod in self.cluster.list(PODS):
                        if not pod.get("status", {}).get("podIP"):
                            self.cluster.set_ready(pod["spec"]["nodeName"], ready=True)
                if holds():
                    return
                await changed.wait()

    def is_ready(self, name: str = "cd") -> bool:
        status = self.cluster.domain(name).get("status") or {}
        return status.get("summary") == "2/2" and status["status"] == "Ready"

    def writes(self) -> int:
        return len([call for call in self.server.requests.writes() if call.resource not in ("leases", "events")])

    @asynccontextmanager
    async def controller(self, *flags: str, identity: str = "one") -> AsyncIterator[ForkedProgram]:
        """A process that is killed at the end of the block, if it still runs."""
        environ = {**os.environ, "KUBECONFIG": str(self.server.kubeconfig), "POD_NAME": identity}
        given = ("--namespace", OWN, "--daemon-image", "pydra:1", "--max-nodes", "3", *flags)
        module = "pydra_nvidia.compute_domain.command"
        process = ForkedProgram(module, ("controller", *given), environ, str(self.log))
        try:
            yield process
        finally:
            process.kill()
            await process.wait()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with serve_api(definitions=DEFINITIONS) as server:
        yield Scene(server, tmp_path / "log")


def start_domain(scene: Scene) -> str:
    uid = scene.cluster.create_domain("cd")
    for node in FABRIC:
        scene.cluster.start_pod(f"pod-{node}", uid, node)
    return uid


async def run_until_a_write(scene: Scene, is_over: Callable[[], bool]) -> None:
    """A controller that is killed when the server has its first write: those after it are not answered."""
    before = scene.writes()

    def stop() -> None:
        if scene.writes() > before:
            scene.server.faults.freeze()

    unlisten = scene.server.store.listen(stop)
    async with scene.controller("--leader-election=false") as process:
        await scene.until(lambda: scene.writes() > before or is_over())
        process.send_signal(signal.SIGKILL)
    unlisten()
    scene.server.faults.thaw()


async def test_a_domain_survives_the_kill_of_its_controller_after_each_request(scene: Scene) -> None:
    uid = start_domain(scene)
    kills = 0
    while not scene.is_ready():
        await run_until_a_write(scene, scene.is_ready)
        kills += 1
    assert kills >= 6  # finalizer, two templates, DaemonSet, labels, clique, status
    assert scene.cluster.labels() == {"a": uid, "b": uid}
    assert [entry[1:] for entry in scene.cluster.indexes()] == [("a", 0), ("b", 1)]
    scene.cluster.delete_domain("cd")
    for node in FABRIC:
        scene.cluster.end_pod(f"pod-{node}")
    while scene.cluster.list(COMPUTE_DOMAINS):
        await run_until_a_write(scene, lambda: not scene.cluster.list(COMPUTE_DOMAINS))
    scene.cluster.run_daemon_sets()
    for resource in (DAEMON_SETS, RESOURCE_CLAIM_TEMPLATES, CLIQUES, PODS):
        assert scene.cluster.list(resource) == ()
    assert scene.cluster.labels() == {}


async def test_one_controller_acts_and_the_next_takes_over_when_it_is_gone(scene: Scene) -> None:
    flags = ("--lease-seconds", "3")
    async with scene.controller(*flags, identity="one") as first:
        await scene.until(lambda: holder(scene) == "one")
        async with scene.controller(*flags, identity="two"):
            start_domain(scene)
            await scene.until(scene.is_ready)
            assert holder(scene) == "one"
            first.send_signal(signal.SIGKILL)
            scene.cluster.create_domain("later")
            await scene.until(lambda: len(scene.cluster.list(DAEMON_SETS)) == 2)
            assert holder(scene) == "two"


async def test_a_controller_that_is_stopped_gives_the_lease_back(scene: Scene) -> None:
    async with scene.controller("--lease-seconds", "600") as process:
        await scene.until(lambda: holder(scene) == "one")
        process.send_signal(signal.SIGTERM)
        await process.wait()
        assert (process.returncode, holder(scene)) == (0, "")


async def test_a_controller_whose_lease_was_taken_ends_without_another_write(scene: Scene) -> None:
    async with scene.controller("--lease-seconds", "3") as process:
        await scene.until(lambda: holder(scene) == "one")
        [lease] = scene.server.api.list(kinds.LEASES).items
        spec = {**lease["spec"], "holderIdentity": "other", "leaseDurationSeconds": 3600}
        body = {**lease, "spec": spec}
        scene.server.api.update(kinds.LEASES, lease["metadata"]["name"], body, namespace=OWN)
        with anyio.fail_after(DEADLINE):
            await process.wait()
        assert process.returncode == 1
        assert holder(scene) == "other"


async def test_a_controller_that_cannot_renew_its_lease_says_what_the_api_server_answered(scene: Scene) -> None:
    async with scene.controller("--lease-seconds", "3") as process:
        await scene.until(lambda: holder(scene) == "one")
        scene.server.faults.add(Fault(verb="update", resource="leases", times=None, status=503))
        with anyio.fail_after(DEADLINE):
            await process.wait()
    log = scene.log.read_text()
    assert process.returncode == 1
    assert "could not renew the Lease" in log.splitlines()[-1]
    assert "injected fault 503" in log.splitlines()[-1]


def holder(scene: Scene) -> str:
    leases = scene.server.api.list(kinds.LEASES).items
    return str(leases[0]["spec"]["holderIdentity"]) if leases else ""


async def test_what_the_api_server_refuses_is_reported_on_the_domain_and_holds_nothing_else_up(
    scene: Scene,
) -> None:
    scene.server.faults.add(Fault(verb="create", resource="resourceclaimtemplates", times=None, status=403))
    async with scene.controller("--leader-election=false"):
        start_domain(scene)
        await scene.until(lambda: any("injected fault 403" in note for note in notes(scene)))
        await scene.until(scene.is_ready)
        assert scene.cluster.condition("cd", "ObjectsCreated")[0] == "RequestFailed"
        scene.server.faults.clear()
        await scene.until(lambda: scene.cluster.condition("cd", "ObjectsCreated")[0] == "Created")


async def test_an_api_server_that_asks_for_time_gets_it(scene: Scene) -> None:
    resource = "resourceclaimtemplates"
    scene.server.faults.add(Fault(verb="create", resource=resource, times=None, status=429, retry_after=1))
    scene.cluster.create_domain("cd")
    async with scene.controller("--leader-election=false"):
        await scene.server.requests.wait_count(3, "create", resource)  # two templates, and the first once more
        assert "trying again in 1.0 s" in scene.log.read_text()


async def test_nothing_is_sent_when_the_lease_is_lost_between_two_requests(scene: Scene) -> None:
    uid = scene.cluster.create_domain("cd")
    requests, writes = scene.cluster.plan(uid), scene.writes()
    assert len(requests) > 2
    credentials = await load_credentials(environ={}, kubeconfig=str(scene.server.kubeconfig))
    async with KubeClient(credentials, user_agent="test") as client:
        informers = {one: Informer(client, one) for one in (COMPUTE_DOMAINS, RESOURCE_CLAIM_TEMPLATES)}
        caches = {one: Cache(one, informer, lambda *_: None) for one, informer in informers.items()}
        answers = iter([True, False])
        with pytest.raises(LostLease):
            await Writer(client, caches, lambda: next(answers)).carry_out(requests)
    assert scene.writes() == writes + 1


async def test_what_a_domain_left_that_lost_its_finalizer_goes_at_once_for_the_next_of_its_name(scene: Scene) -> None:
    start_domain(scene)
    async with scene.controller("--leader-election=false"):
        await scene.until(scene.is_ready)
        scene.cluster.patch(COMPUTE_DOMAINS, "cd", {"metadata": {"finalizers": None}}, "default")
        scene.cluster.delete_domain("cd")
        for node in FABRIC:
            scene.cluster.end_pod(f"pod-{node}")
        uid = start_domain(scene)
        await scene.until(scene.is_ready)
        assert scene.cluster.labels() == {"a": uid, "b": uid}
        assert {entry[0] for entry in scene.cluster.indexes()} == {f"{uid}.rack.1"}


def notes(scene: Scene, reason: str = "RequestFailed") -> Sequence[str]:
    return [one["note"] for one in scene.server.api.list(kinds.NEW_EVENTS).items if one["reason"] == reason]


async def test_the_owner_of_a_claim_for_a_domain_that_does_not_exist_gets_an_event(scene: Scene) -> None:
    scene.cluster.start_pod("lost", "0f4a1c5e", "a")
    async with scene.controller("--leader-election=false"):
        await scene.until(lambda: bool(notes(scene, "ComputeDomainUnknown")))
    assert notes(scene, "ComputeDomainUnknown")[0].startswith("the claim names a ComputeDomain with the UID 0f4a1c5e")


async def test_the_label_of_a_node_belongs_to_its_domain(scene: Scene) -> None:
    uid = start_domain(scene)
    async with scene.controller("--leader-election=false"):
        await scene.until(lambda: set(scene.cluster.labels()) == set(FABRIC))
    request = LabelNode(node="a", uid=scene.server.api.get(kinds.NODES, "a")["metadata"]["uid"], domain="another")
    with pytest.raises(StatusError, match=f'conflict with "pydra-compute-domain-{uid}"'):
        scene.server.api.apply(kinds.NODES, "a", build_label(request), manager=name_manager("another"))
    scene.cluster.remove_node("a")
    with pytest.raises(StatusError, match="no existing object was found"):
        scene.server.api.apply(kinds.NODES, "a", build_label(request), manager=name_manager("another"))


@pytest.mark.parametrize("gone", [RESOURCE_SLICES, NODES], ids=["slice", "node"])
async def test_a_node_whose_slice_comes_after_the_claim_is_labelled_when_it_comes(scene: Scene, gone: Resource) -> None:
    """As when the kubelet has restarted, which removes the slices of its node, or when the node was made again."""
    published = scene.server.api.get(kinds.RESOURCE_SLICES, "a")
    scene.cluster.delete(gone, "a")
    uid = scene.cluster.create_domain("cd")
    scene.cluster.start_pod("pod-a", uid, "a")
    scene.cluster.settle()  # so that the controller writes no status, after which it would look again
    async with scene.controller("--leader-election=false"):
        scene.cluster.create_domain("later")
        await scene.until(lambda: "status" in scene.cluster.domain("later"))
        scene.cluster.delete_domain("later")
        await scene.until(lambda: len(scene.cluster.list(COMPUTE_DOMAINS)) == 1)  # nothing wakes it any more
        assert scene.cluster.labels() == {}
        [owner] = published["metadata"]["ownerReferences"]
        if gone is NODES:
            scene.cluster.delete(RESOURCE_SLICES, "a")
            owner["uid"] = scene.server.api.create(kinds.NODES, {"metadata": {"name": "a"}})["metadata"]["uid"]
        metadata = {"name": "a", "ownerReferences": [owner]}
        scene.server.api.create(kinds.RESOURCE_SLICES, {"metadata": metadata, "spec": published["spec"]})
        await scene.until(lambda: scene.cluster.labels() == {"a": uid})


async def test_a_label_that_the_controller_has_not_seen_stays(scene: Scene) -> None:
    uid = scene.cluster.create_domain("cd")
    async with scene.controller("--leader-election=false"):
        await scene.until(lambda: len(scene.cluster.list(DAEMON_SETS)) == 1)
        for verb in ("list", "watch"):
            scene.server.faults.add(Fault(verb=verb, resource="nodes", times=None, status=503))
        scene.server.break_watches()
        scene.cluster.patch(NODES, "a", {"metadata": {"labels": {DOMAIN_LABEL: "theirs"}}})
        for node in FABRIC:
            scene.cluster.start_pod(f"pod-{node}", uid, node)
        await scene.until(lambda: "a: the node is in the ComputeDomain with the UID theirs" in waits(scene))
    assert scene.cluster.labels() == {"a": "theirs", "b": uid}


def waits(scene: Scene) -> str:
    """What the condition Ready says."""
    conditions = (scene.cluster.domain("cd").get("status") or {}).get("conditions") or ()
    return next((one["message"] for one in conditions if one["type"] == "Ready"), "")


async def test_a_controller_survives_watches_that_break_and_a_server_that_is_away(scene: Scene) -> None:
    start_domain(scene)
    async with scene.controller("--leader-election=false"):
        await scene.until(lambda: len(scene.cluster.list(DAEMON_SETS)) == 1)
        scene.server.break_watches()
        async with scene.server.down():
            scene.cluster.run_daemon_sets()
        await scene.until(scene.is_ready)


async def test_a_domain_of_256_nodes_costs_at_most_3_requests_a_node(scene: Scene) -> None:
    nodes = [f"n{number:03}" for number in range(256)]
    for number, node in enumerate(nodes):
        scene.cluster.add_node(node, f"rack.{number // 16}")
    uid = scene.cluster.create_domain("cd")
    for node in nodes:
        scene.cluster.start_pod(f"pod-{node}", uid, node)
    async with scene.controller("--leader-election=false", "--max-nodes", "18"):
        await scene.until(lambda: len(scene.cluster.labels()) == len(nodes), daemons=False)
        scene.cluster.run_daemon_sets()
        for node in nodes:
            scene.cluster.set_ready(node, ready=True)
            await anyio.lowlevel.checkpoint()
        await scene.until(lambda: summary(scene) == "256/256", daemons=False)
    asked = [call for call in scene.server.requests.calls if call.user_agent.startswith("pydra-compute-domain")]
    assert len(asked) <= 2 * len(nodes)  # a daemon adds one


def summary(scene: Scene) -> str:
    return str((scene.cluster.domain("cd").get("status") or {}).get("summary", ""))


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (Fault(verb="get", resource="leases"), "the Lease"),
        (Fault(verb="create", resource="leases"), "the Lease"),
        (Fault(verb="list", resource="computedomaincliques"), "computedomaincliques.resource.nvidia.com"),
    ],
    ids=lambda value: f"{value.verb}-{value.resource}" if isinstance(value, Fault) else "",
)
async def test_a_controller_that_the_api_server_keeps_from_acting_is_not_ready(
    scene: Scene, refused: Fault, said: str
) -> None:
    scene.server.faults.add(replace(refused, status=403, times=None))
    port = free_port()
    async with scene.controller("--http-address", f"127.0.0.1:{port}"):
        page = await wait_ready(port, 503, "injected fault 403")
        assert said in page
        scene.server.faults.clear()
        await wait_ready(port, 200, "ok")


async def wait_ready(port: int, status: int, text: str) -> str:
    """What /readyz says, once it answers with this status and says this."""
    with anyio.fail_after(DEADLINE):
        while True:
            async with aiohttp.ClientSession() as session:
                try:
                    async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                        page = await answer.text()
                        if answer.status == status and text in page:
                            return page
                except aiohttp.ClientError:  # nothing listens yet
                    pass
            await anyio.sleep(0.05)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--imex", "sometimes"), 'imex: found "sometimes", allowed: driverManaged, hostManaged'),
        (("--daemon-image", ""), "daemonImage: missing"),
        (("--max-nodes", "0"), 'maxNodes: found "0", allowed: 1 to 9999'),
        (("--http-address", "9465"), 'httpAddress: found "9465", allowed: HOST:PORT'),
        (("--log-level", "loud"), 'logLevel: found "loud", allowed: debug, info, warning, error'),
    ],
)
async def test_a_wrong_setting_is_an_error_that_says_what_is_allowed(
    scene: Scene, flags: tuple[str, ...], said: str
) -> None:
    async with scene.controller(*flags) as process:
        with anyio.fail_after(DEADLINE):
            await process.wait()
    text = scene.log.read_text()
    assert process.returncode == 2
    assert said in text
    assert "Traceback" not in text
