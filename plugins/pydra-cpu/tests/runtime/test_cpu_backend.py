"""The backend between the agent and a container runtime without containers."""

from __future__ import annotations

import asyncio
import json
import os
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cpu_agent import Agent
from pydra import ClaimError, Health, PreparedDevice, Taint, TaintEffect
from pydra.cdi.spec import build_spec
from pydra_cpu.composition import open_backend
from pydra_cpu.hardware_reader import CpusUnreadable
from pydra_cpu.settings import KubeletManagers, Settings
from pydra_cpu.simulation.machine import Machine
from pydra_nri import (
    CREATED,
    CDIDevice,
    Container,
    LinuxContainer,
    LinuxCPU,
    LinuxResources,
    PodSandbox,
    RuntimeUnavailable,
)
from pydra_nri.simulation.runtime import FakeRuntime, OperationFailed

POD = PodSandbox(id="sandbox", name="trainer", uid="uid", namespace="team")


class Node(Agent):
    """An agent's part, and the runtime of its node."""

    def __init__(self, runtime: FakeRuntime) -> None:
        super().__init__(namespace=POD.namespace)
        self.runtime = runtime

    async def create(
        self, name: str, *prepared: PreparedDevice, limit: int = 0, cdi: Sequence[str] = (), start: bool = True
    ) -> str:
        """The CPUs of a new container with these devices, and a limit of so many CPUs."""
        env = tuple(f"{key}={value}" for one in prepared for key, value in one.edits.env.items())
        linux = LinuxContainer(resources=LinuxResources(cpu=LinuxCPU(quota=limit * 100_000 or None)))
        devices = tuple(CDIDevice(name=one) for one in cdi)
        container = Container(id=name, name=name, pod_sandbox_id=POD.id, env=env, linux=linux, cdi_devices=devices)
        await self.runtime.create_container(container, start=start)
        return self.cpus(name)

    async def stop(self, name: str) -> None:
        await self.runtime.stop_container(self.runtime.containers[name])

    def cpus(self, name: str) -> str:
        return self.runtime.containers[name].linux.resources.cpu.cpus


@asynccontextmanager
async def serve(
    tmp_path: Path, *, cpu: str = "none", memory: str = "None", node: Node | None = None, **settings: Any
) -> AsyncIterator[Node]:
    Machine(cores=8).write(tmp_path)
    for name, policy in (("cpu", cpu), ("memory", memory)):
        state = tmp_path / f"var/lib/kubelet/{name}_manager_state"
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text(f'{{"policyName": "{policy}"}}')
    node = node or Node(FakeRuntime(request_timeout=100.0))
    found = Settings(
        sys_root=f"{tmp_path}/sys",
        proc_root=f"{tmp_path}/proc",
        host_root=str(tmp_path),
        nri_socket=f"{tmp_path}/nri.sock",
        poll_period=0.01,
        **settings,
    )
    async with node.runtime.serve(found.nri_socket), node.connect(found):
        await node.runtime.run_pod(POD)
        yield node


async def measure(node: Node) -> dict[str, float]:
    return {sample.name: sample.value for sample in await node.backend.measure()}


async def test_a_container_has_the_cpus_of_its_claim_and_its_neighbours_have_the_others(tmp_path: Path) -> None:
    async with serve(tmp_path) as node:
        assert await node.create("neighbour") == "", "all CPUs: nothing is changed while there are no claims"
        assert await node.create("fast", await node.prepare("claim", 3)) == "0-2"
        assert node.cpus("neighbour") == "3-7"
        assert await node.create("later") == "3-7"
        assert node.runtime.containers["fast"].linux.resources.cpu.mems == "0"


async def test_a_container_that_is_starting_is_never_on_the_cpus_of_a_claim(tmp_path: Path) -> None:
    """The runtime may lose what would move it, and no later event need come."""
    async with serve(tmp_path) as node:
        await node.create("before", start=False)
        prepared = await node.prepare("claim", 3)
        with pytest.raises(OperationFailed, match="fast of pod team/trainer waits for container before of pod team"):
            await node.create("fast", prepared)
        assert await node.create("after", start=False) == "3-7"
        await node.runtime.start_container(node.runtime.containers["before"])
        assert await node.create("fast", prepared) == "0-2"
        assert (node.cpus("before"), node.cpus("after")) == ("3-7", "3-7")


async def test_a_container_that_has_started_gets_the_cpus_of_claims_without_one(tmp_path: Path) -> None:
    async with serve(tmp_path) as node:
        await node.prepare("claim", 3)
        assert await node.create("first") == "3-7"
        await node.create("second")
        assert (node.cpus("first"), node.cpus("second")) == ("0-7", "3-7")


async def test_what_the_runtime_has_created_but_not_started_when_it_registers_the_backend_is_corrected_later(
    tmp_path: Path,
) -> None:
    node = Node(FakeRuntime(request_timeout=100.0))
    node.runtime.pods[POD.id] = POD
    await node.create("early", start=False)
    node.runtime.containers["early"] = replace(node.runtime.containers["early"], state=CREATED)
    async with serve(tmp_path, node=node):
        prepared = await node.prepare("claim", 3)
        with pytest.raises(OperationFailed, match="waits for container early"):
            await node.create("fast", prepared)
        await node.runtime.start_container(node.runtime.containers["early"])
        await node.create("fast", prepared)
        assert node.cpus("early") == "3-7"


@pytest.mark.parametrize(("kernel", "reserved", "starts"), [("0-7", "", False), ("3-7", "", True), ("3-7", "7", True)])
async def test_a_container_does_not_start_with_the_cpus_of_others_if_its_update_was_lost(
    kernel: str, reserved: str, starts: bool, tmp_path: Path
) -> None:
    """containerd stores an update of a container whose process it is making, and that has the CPUs from before."""
    node = Node(FakeRuntime(request_timeout=100.0))
    allowed = tmp_path / "sys/fs/cgroup/cpuset/pod/early/cpuset.cpus"
    allowed.parent.mkdir(parents=True)
    allowed.write_text(kernel)
    early = Container(
        id="early", name="early", pod_sandbox_id=POD.id, state=CREATED, linux=LinuxContainer(cgroups_path="/pod/early")
    )
    async with serve(tmp_path, node=node, reserved_cpus=reserved):
        prepared = await node.prepare("claim", 3)
        assert await node.create("fast", prepared) == "0-2"
    node.runtime.containers["early"] = early  # made while the backend was away
    async with serve(tmp_path, node=node, reserved_cpus=reserved):
        with nullcontext() if starts else pytest.raises(OperationFailed, match="was made for CPU 0-7, and has CPU 3-7"):
            await node.runtime.start_container(early)


async def test_a_container_that_was_corrected_before_it_started_gets_all_cpus_back(tmp_path: Path) -> None:
    node = Node(FakeRuntime(request_timeout=100.0))
    async with serve(tmp_path, node=node):
        await node.create("fast", await node.prepare("claim", 3))
    early = Container(id="early", name="early", pod_sandbox_id=POD.id, state=CREATED)
    node.runtime.containers["early"] = early  # created while the backend was away
    async with serve(tmp_path, node=node):
        assert node.cpus("early") == "3-7"
        await node.runtime.start_container(node.runtime.containers["early"])
        await node.stop("fast")
        assert node.cpus("early") == "0-7"


@pytest.mark.parametrize(("kernel", "becomes"), [("0-7", "3-7"), ("", "3-7"), ("4-7", "0-7")])
async def test_a_change_that_the_runtime_refused_is_repeated_if_the_kernel_allows_more(
    kernel: str, becomes: str, tmp_path: Path
) -> None:
    """If it allows less, as below a slice that is restricted, the runtime would refuse each repetition."""
    allowed = tmp_path / "sys/fs/cgroup/cpuset/pod/neighbour/cpuset.cpus"
    allowed.parent.mkdir(parents=True)
    async with serve(tmp_path) as node:
        linux = LinuxContainer(cgroups_path="/pod/neighbour", resources=LinuxResources(cpu=LinuxCPU(cpus="0-7")))
        before = Container(id="neighbour", pod_sandbox_id=POD.id, linux=linux)
        await node.runtime.create_container(before)
        await node.create("fast", await node.prepare("claim", 3))
        assert node.cpus("neighbour") == "3-7"
        node.runtime.containers["neighbour"] = before
        allowed.write_text(kernel)
        await node.create("later")
        assert node.cpus("neighbour") == becomes


async def test_a_change_that_the_kernel_has_shown_is_not_looked_for_at_each_event(tmp_path: Path) -> None:
    """It would be a file for each container of the node."""
    allowed = tmp_path / "sys/fs/cgroup/cpuset/pod/neighbour/cpuset.cpus"
    allowed.parent.mkdir(parents=True)
    async with serve(tmp_path) as node:
        linux = LinuxContainer(cgroups_path="/pod/neighbour", resources=LinuxResources(cpu=LinuxCPU(cpus="0-7")))
        before = Container(id="neighbour", pod_sandbox_id=POD.id, linux=linux)
        await node.runtime.create_container(before)
        await node.create("fast", await node.prepare("claim", 3))
        allowed.write_text("3-7")
        await node.create("later")
        node.runtime.containers["neighbour"] = before
        allowed.write_text("0-7")
        await node.create("latest")
        assert node.cpus("neighbour") == "0-7"


async def test_neighbours_get_the_cpus_back_when_the_last_container_of_the_claim_ends(tmp_path: Path) -> None:
    async with serve(tmp_path) as node:
        await node.create("neighbour")
        prepared = await node.prepare("claim", 3)
        for name in ("fast", "second"):
            await node.create(name, prepared)
        await node.stop("fast")
        assert node.cpus("neighbour") == "3-7"
        await node.stop("second")
        assert node.cpus("neighbour") == "0-7"


async def test_a_container_that_starts_again_has_the_same_cpus_and_nobody_else_has_them(tmp_path: Path) -> None:
    async with serve(tmp_path) as node:
        await node.create("neighbour")
        prepared = await node.prepare("claim", 3)
        await node.create("fast", prepared)
        await node.stop("fast")
        await node.prepare("another", 3)
        assert await node.create("again", prepared) == "0-2"
        assert node.cpus("neighbour") == "3-7"


async def test_a_variable_without_the_claims_cdi_device_is_refused_where_the_runtime_reports_such_devices(
    tmp_path: Path,
) -> None:
    """As containerd does from 2.3 on, so no other pod of the namespace has the CPUs by naming the claim."""
    async with serve(tmp_path) as node:
        prepared, other = await node.prepare("claim", 3), await node.prepare("other", 1)
        ((own,),) = build_spec("dra.cpu", "claim", [prepared]).ids
        ((others,),) = build_spec("dra.cpu", "other", [other]).ids
        assert await node.create("fast", prepared, cdi=(own,)) == "0-2"
        for name, cdi in (("forged", ()), ("another", (others,))):
            with pytest.raises(OperationFailed, match="but no CDI device of claim team/claim; name the claim in"):
                await node.create(name, prepared, cdi=cdi)


async def test_the_kubelets_changes_leave_containers_on_their_cpus(tmp_path: Path) -> None:
    async with serve(tmp_path) as node:
        await node.create("fast", await node.prepare("claim", 3))
        fast = node.runtime.containers["fast"]
        changed = await node.runtime.update_container(fast, LinuxResources(cpu=LinuxCPU(shares=512, cpus="0-7")))
        assert changed.linux.resources.cpu == LinuxCPU(shares=512, cpus="0-2", mems="0")


async def test_the_kubelets_changes_do_not_restrict_containers_to_all_cpus(tmp_path: Path) -> None:
    """Such a container would never run on a CPU that comes later."""
    async with serve(tmp_path) as node:
        await node.create("neighbour")
        neighbour = node.runtime.containers["neighbour"]
        changed = await node.runtime.update_container(neighbour, LinuxResources(cpu=LinuxCPU(shares=512)))
        assert changed.linux.resources.cpu == LinuxCPU(shares=512)
        changed = await node.runtime.update_container(neighbour, LinuxResources(cpu=LinuxCPU(cpus="0-3")))
        assert changed.linux.resources.cpu == LinuxCPU(shares=512, cpus="0-7"), "nor to fewer"


async def test_a_container_whose_list_of_cpus_is_written_otherwise_is_corrected_as_others(tmp_path: Path) -> None:
    """The kernel takes it, as from `crictl update --cpuset-cpus`, and the runtime reports it as it was written."""
    node = Node(FakeRuntime(request_timeout=100.0))
    linux = LinuxContainer(resources=LinuxResources(cpu=LinuxCPU(cpus="0-1, 3")))
    node.runtime.pods[POD.id] = POD
    node.runtime.containers["neighbour"] = Container(id="neighbour", pod_sandbox_id=POD.id, linux=linux)
    async with serve(tmp_path, node=node):
        await node.create("fast", await node.prepare("claim", 3))
        assert node.cpus("neighbour") == "3-7"


async def test_the_owner_of_a_claim_is_warned_of_a_limit_that_throttles_a_container_on_its_own_cpus(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path) as node:
        prepared = await node.prepare("claim", 2)

        async def warnings() -> list[str]:
            return [one.warning for one in (await node.backend.discover()).claim_statuses]

        await node.create("free", prepared)
        await node.create("roomy", prepared, limit=3)
        await node.create("neighbour", limit=1)
        assert await warnings() == []
        await node.create("slow", prepared, limit=2)
        (text,) = await warnings()
        assert text.startswith("container slow of pod team/trainer has limits.cpu 2, which throttles it")
        slow = node.runtime.containers["slow"]
        await node.runtime.update_container(slow, LinuxResources(cpu=LinuxCPU(quota=-1)))
        assert await warnings() == []


async def test_a_backend_that_starts_again_corrects_what_changed_meanwhile(tmp_path: Path) -> None:
    async with serve(tmp_path) as node:
        await node.create("neighbour")
        await node.create("fast", await node.prepare("claim", 3))
    del node.held["claim"]
    del node.runtime.containers["fast"]
    async with serve(tmp_path, node=node):
        assert node.cpus("neighbour") == "0-7"


async def test_the_claim_that_would_leave_no_cpu_to_others_is_refused_while_there_are_others(tmp_path: Path) -> None:
    async with serve(tmp_path) as node:
        await node.create("neighbour")
        with pytest.raises(ClaimError, match="would leave no CPU to containers without a claim"):
            await node.prepare("all", 8)
        await node.stop("neighbour")
        assert await node.create("fast", await node.prepare("all", 8)) == "0-7"
        with pytest.raises(OperationFailed, match="claims have all CPUs of the node"):
            await node.create("late")


async def test_containers_run_on_all_cpus_where_the_admin_has_reserved_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As on the smallest nodes of a cluster, whose settings are those of the others: no alert must tell of them."""
    async with serve(tmp_path, reserved_cpus="0-15") as node:
        for _ in range(2):
            inventory = await node.backend.discover()
            assert (inventory.devices, inventory.unreadable) == ((), ())
        assert await node.create("neighbour") == ""
    text = "no CPU is offered: reservedCpus 0-15 has all that are online (0-7), and containers run on all of them"
    assert [one.getMessage() for one in caplog.records if one.name == "pydra_cpu.backend"] == [text]


async def test_while_the_list_of_cpus_cannot_be_read_nothing_changes(tmp_path: Path) -> None:
    async with serve(tmp_path) as node:
        prepared = await node.prepare("claim", 3)
        (tmp_path / "sys/devices/system/cpu/online").write_text("")
        with pytest.raises(CpusUnreadable, match="the setting sysRoot must be where the host's /sys is mounted"):
            await node.backend.discover()
        assert await node.create("neighbour") == "3-7"
        assert await node.create("fast", prepared) == "0-2"
        assert node.cpus("neighbour") == "3-7"


async def test_containers_of_a_sandbox_that_the_runtime_does_not_report_are_kept_from_the_cpus_of_claims(
    tmp_path: Path,
) -> None:
    """As containerd does with a sandbox whose state it could not restore."""
    node = Node(FakeRuntime(request_timeout=100.0))
    labels = {"io.kubernetes.pod.name": "lost", "io.kubernetes.pod.namespace": POD.namespace}
    lost = Container(id="neighbour", name="neighbour", pod_sandbox_id="not-reported", labels=labels)
    node.runtime.containers["neighbour"] = lost
    async with serve(tmp_path, node=node):
        prepared = await node.prepare("claim", 3)
        await node.create("fast", prepared)
        assert node.cpus("neighbour") == "3-7"
        env = node.runtime.containers["fast"].env
    node.runtime.containers["fast"] = replace(lost, id="fast", name="fast", env=env)
    async with serve(tmp_path, node=node):
        assert (node.cpus("fast"), node.cpus("neighbour")) == ("0-2", "3-7")


async def test_a_container_with_a_forged_variable_is_not_created(tmp_path: Path) -> None:
    async with serve(tmp_path) as node:
        prepared = await node.prepare("claim", 2)
        (name,) = prepared.edits.env
        forged = Container(id="forged", name="forged", pod_sandbox_id=POD.id, env=(f"{name}=0-7",))
        with pytest.raises(
            OperationFailed, match="container forged of pod team/trainer has the variable 'DRA_CPUSET_claim"
        ):
            await node.runtime.create_container(forged)


async def test_large_environments_of_containers_take_no_memory(tmp_path: Path) -> None:
    """A ConfigMap of a MiB may be the environment of all containers of a namespace."""
    node = Node(FakeRuntime(request_timeout=100.0, part=1))
    node.runtime.pods[POD.id] = POD
    env = tuple(f"V{one}={'x' * (128 << 10)}" for one in range(8))
    for number in range(64):
        name = f"c{number}"
        node.runtime.containers[name] = Container(id=name, name=name, pod_sandbox_id=POD.id, env=env)
    tracemalloc.start()
    try:
        async with serve(tmp_path, node=node):
            assert tracemalloc.get_traced_memory()[1] < 32 << 20
            assert await node.create("fast", await node.prepare("claim", 3)) == "0-2"
            assert node.cpus("c63") == "3-7"
    finally:
        tracemalloc.stop()


async def test_containers_of_another_driver_keep_their_cpus_and_no_claim_gets_them(tmp_path: Path) -> None:
    node = Node(FakeRuntime(request_timeout=100.0))
    theirs = ("DRA_CPUSET_11111111-2222-3333-4444-555555555555=0-2",)
    pinned = LinuxContainer(resources=LinuxResources(cpu=LinuxCPU(cpus="0-2", mems="0")))
    old = Container(id="old", name="old", pod_sandbox_id=POD.id, env=theirs, linux=pinned)
    node.runtime.pods[POD.id] = POD
    node.runtime.containers |= {"old": old, "other": Container(id="other", name="other", pod_sandbox_id=POD.id)}
    async with serve(tmp_path, node=node):
        assert (node.cpus("old"), node.cpus("other")) == ("0-2", "3-7")
        assert await node.create("fast", await node.prepare("claim", 3)) == "3-5"
        assert (node.cpus("old"), node.cpus("other")) == ("0-2", "6-7")
        with pytest.raises(ClaimError, match="would leave no CPU to containers without a claim"):
            await node.prepare("rest", 2)
        await node.stop("old")
        with pytest.raises(OperationFailed, match="which is not of a claim that is prepared here"):
            await node.runtime.create_container(Container(id="again", name="again", pod_sandbox_id=POD.id, env=theirs))


async def test_the_cdi_spec_of_a_claim_needs_no_newer_runtime_than_its_edits_do(tmp_path: Path) -> None:
    async with serve(tmp_path) as node:
        content = build_spec("dra.cpu", "claim", [await node.prepare("claim", 2)]).content
        assert content is not None
        assert json.loads(content)["cdiVersion"] == "0.3.0"


@pytest.mark.parametrize(
    ("policies", "says"),
    [
        ({"cpu": "static"}, "the CPU manager policy static, which would give CPUs of claims"),
        ({"memory": "Static"}, "the memory manager policy Static, which would give containers with a claim the memory"),
    ],
    ids=["cpu", "memory"],
)
async def test_devices_are_unhealthy_and_claims_fail_while_a_manager_of_the_kubelet_restricts_containers(
    policies: dict[str, str], says: str, tmp_path: Path
) -> None:
    async with serve(tmp_path, **policies) as node:
        (device,) = (await node.backend.discover()).devices
        assert says in device.health.message
        with pytest.raises(ClaimError, match=says):
            await node.prepare("claim", 1)
    async with serve(tmp_path, **policies, kubelet_managers=KubeletManagers.IGNORE) as node:
        assert (await node.backend.discover()).devices[0].health == Health()
        assert await node.create("fast", await node.prepare("claim", 1)) == "0"


async def test_the_runtime_is_answered_while_the_kubelets_checkpoints_cannot_be_read(tmp_path: Path) -> None:
    """As on a disk that does not answer; without an answer, the runtime creates containers on CPUs of claims."""
    async with serve(tmp_path) as node:
        prepared = await node.prepare("claim", 3)
        checkpoint = tmp_path / "var/lib/kubelet/cpu_manager_state"
        checkpoint.unlink()
        os.mkfifo(checkpoint)
        reading = asyncio.ensure_future(node.backend.discover())
        writer = await asyncio.to_thread(checkpoint.open, "w")  # once it is being read
        with writer:
            assert await node.create("fast", prepared) == "0-2"
            assert not reading.done()
        await reading


async def test_a_device_is_unhealthy_while_a_cpu_of_a_claim_is_off_line(tmp_path: Path) -> None:
    async with serve(tmp_path) as node:
        assert (await node.backend.discover()).devices[0].health == Health()
        await node.prepare("claim", 3)
        online = tmp_path / "sys/devices/system/cpu/online"
        online.write_text("0,2-7")
        await node.backend.wait_changed()
        inventory = await node.backend.discover()
        (device,), (status,) = inventory.devices, inventory.claim_statuses
        assert status.warning.startswith("CPU 1 of the claim is off-line, and its containers have the rest")
        text = "CPU 1 of claim team/claim is off-line; bring it back, or delete the claim's pods"
        assert device.health.message == text
        assert device.capacity["dra.cpu/cpu"].value == 7
        online.write_text("0-7")
        await node.backend.wait_changed()
        assert (await node.backend.discover()).devices[0].health == Health()


async def test_it_counts_the_cpus_of_claims_and_those_that_others_run_on(tmp_path: Path) -> None:
    async with serve(tmp_path) as node:
        prepared = await node.prepare("claim", 3)
        counted = {"cpus": 8, "claimed_cpus": 3, "shared_cpus": 8, "claims": 1}
        assert await measure(node) == counted
        await node.create("fast", prepared)
        assert await measure(node) == {**counted, "shared_cpus": 5}


async def test_it_measures_how_busy_the_cpus_of_claims_were_since_the_last_time(tmp_path: Path) -> None:
    stat = tmp_path / "proc/stat"
    async with serve(tmp_path) as node:
        await node.prepare("claim", 2)
        stat.parent.mkdir(exist_ok=True)
        stat.write_text("cpu  9 9 9 9\ncpu0 100 0 0 900 0 0 0 0 0 0\ncpu1 0 0 0 1000 0 0 0 0 0 0\n")
        assert "claimed_cpus_busy_ratio" not in await measure(node)
        stat.write_text("cpu  9 9 9 9\ncpu0 150 10 20 920 0 0 0 0 50 0\ncpu1 0 0 0 1050 50 0 0 0 0 0\n")
        assert (await measure(node))["claimed_cpus_busy_ratio"] == pytest.approx(80 / 200)


async def test_a_device_tells_of_cpus_that_are_throttled_or_have_had_a_machine_check(tmp_path: Path) -> None:
    interrupts, throttles = tmp_path / "proc/interrupts", tmp_path / "sys/devices/system/cpu/cpu2/thermal_throttle"
    async with serve(tmp_path) as node:
        throttles.mkdir()
        (throttles / "core_throttle_count").write_text("7")
        assert (await node.backend.discover()).devices[0].taints == ()
        (throttles / "core_throttle_count").write_text("8")
        await node.backend.wait_changed()
        (device,) = (await node.backend.discover()).devices
        assert (device.health, device.taints) == (
            Health(),
            (Taint(key="dra.cpu/throttling", effect=TaintEffect.NONE),),
        )
        interrupts.parent.mkdir(exist_ok=True)
        interrupts.write_text("      CPU0  CPU1  CPU3\n  8:  1  2  3  timer\nMCE:  0  0  1  Machine check exceptions\n")
        await node.backend.wait_changed()
        (device,) = (await node.backend.discover()).devices
        assert device.health.taint == "dra.cpu/machine-check"
        assert device.health.message.startswith("CPU 3 has had a machine check")


async def test_devices_are_unhealthy_and_claims_fail_while_the_runtime_cannot_be_reached(tmp_path: Path) -> None:
    Machine().write(tmp_path)
    settings = Settings(sys_root=f"{tmp_path}/sys", host_root=str(tmp_path), nri_socket=f"{tmp_path}/nri.sock")
    agent = Agent(namespace="team")
    async with open_backend(settings, lambda: ()) as agent.backend:
        await agent.backend.restore(())
        (device,) = (await agent.backend.discover()).devices
        assert device.health.reason == "CannotPin"
        assert device.health.message.startswith(f"there is no {settings.nri_socket}: the container runtime is not")
        with pytest.raises(RuntimeUnavailable, match="there is no"):
            await agent.prepare("claim", 1)
