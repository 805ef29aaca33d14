"""The coroutines that pydra and the container runtime call: read, decide, act.

What a claim has is in the agent's records only. Nothing is remembered here but which containers there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from pydra import Claim, ClaimError, ContainerEdits, HeldClaim, Inventory, PreparedDevice, Sample
from pydra_cpu.busy_time import parse_cpu_times
from pydra_cpu.claim_plan import Shares, list_taken, plan_claim, read_shares
from pydra_cpu.cpu_list import format_cpu_list, parse_cpu_list
from pydra_cpu.device_status import build_status, build_statuses
from pydra_cpu.devices import list_devices
from pydra_cpu.hardware_faults import FaultMonitor, Faults
from pydra_cpu.hardware_reader import read_topology
from pydra_cpu.hardware_types import Topology
from pydra_cpu.inventory import build_inventory
from pydra_cpu.kubelet_policy import find_static_manager
from pydra_cpu.pinning import Container, Pin, PinRefused, build_variable, find_occupied, find_pins, find_pool
from pydra_cpu.samples import CpuTimes, build_samples
from pydra_cpu.settings import KubeletManagers, Settings
from pydra_nri import Container as RuntimeContainer
from pydra_nri import (
    ContainerAdjustment,
    ContainerUpdate,
    CreateContainerResponse,
    LinuxCPU,
    LinuxResources,
    Plugin,
    PodSandbox,
    cpuset,
)
from pydra_pci import Tree

_PATIENCE = 2.0
"""Seconds that a claim waits for a connection to the runtime that is just being made."""

_CFS_PERIOD = 100_000
"""The kernel's default, in microseconds."""

_log = logging.getLogger(__name__)


class CpuBackend:
    """One node's CPUs. `runtime` is the connection to the container runtime; `held` returns the claims of the node."""

    runtime: Plugin

    def __init__(self, settings: Settings, tree: Tree, held: Callable[[], Sequence[HeldClaim]]) -> None:
        self._held = held
        self._settings = settings
        self._tree = tree
        self._topology = read_topology(tree)
        self._monitor = FaultMonitor(tree)
        self._times = CpuTimes()
        self._inventory = Inventory()
        self._containers: dict[str, Container] = {}
        self._restored = asyncio.Event()
        self._told = ""

    async def discover(self) -> Inventory:
        """All CPUs that are online and not reserved."""
        self._topology, self._inventory = await self._read()
        return self._inventory

    async def wait_changed(self) -> None:
        """Return when CPUs or the runtime have come or gone since `discover`, or CPUs of claims, or faults."""
        while (await self._read())[1] == self._inventory:  # noqa: ASYNC110 - files have no event
            await asyncio.sleep(self._settings.poll_period)

    async def measure(self) -> list[Sample]:
        """How many CPUs there are, who has them, and how busy those of claims have been since the last call."""
        stat = await asyncio.to_thread(self._tree.read, self._tree.proc("stat"))
        self._times = CpuTimes(self._times.after, parse_cpu_times(stat))
        held = self._held()
        pool = find_pool(self._containers.values(), held, self._list_offered())
        return list(build_samples(list_devices(self._topology, self._settings), held, pool, self._times))

    async def restore(self, held: Sequence[HeldClaim], /) -> None:
        """Let the runtime's containers be compared with the claims, which are known from now on."""
        self._restored.set()

    async def plan(self, claim: Claim, held: Sequence[HeldClaim], /) -> Shares:
        """The CPUs for each device. A claim that leaves no CPU to the containers without one is refused."""
        await self._check_node()
        before = list_taken(held)
        occupied = find_occupied(self._containers.values(), held, before)
        shares = plan_claim(claim, held, self._topology, self._settings, occupied)
        taken = {cpu for share in shares if share for cpu in parse_cpu_list(share.taken)}
        others = sum(not one.variables for one in self._containers.values())
        if others and taken and not self._list_offered() - before - occupied.keys() - taken:
            raise ClaimError(
                f"the claim would leave no CPU to the {others} containers without a claim; ask for fewer CPUs"
            )
        return shares

    async def prepare(self, claim: Claim, /) -> list[PreparedDevice]:
        """Name the CPUs in the containers' environment, by which they are recognized when they are created."""
        await self._check_node()
        shares = read_shares(claim.plan)
        prepared = []
        for device, share in zip(claim.devices, shares, strict=True):
            if share is None:
                prepared.append(device.prepared())
            else:
                edits = ContainerEdits().with_env(*build_variable(claim, shares, device.request))
                attributes = {"allocatedNumCPUs": share.count}
                prepared.append(device.prepared(edits, attributes=attributes, status=build_status(share)))
        return prepared

    async def unprepare(self, claim: Claim, prepared: Sequence[PreparedDevice], /) -> None:
        """Nothing: other containers have had the CPUs since the last container of the claim ended."""

    async def synchronize(
        self, pods: Sequence[PodSandbox], containers: Sequence[RuntimeContainer]
    ) -> Sequence[ContainerUpdate]:
        """Learn which containers there are, and correct those that have other CPUs than they should."""
        # Claims are not known before, and the runtime may be faster than the agent.
        await self._restored.wait()
        sandboxes = {pod.id: pod for pod in pods}
        self._containers = {
            one.id: _read_container(sandboxes[one.pod_sandbox_id], one)
            for one in containers
            if one.pod_sandbox_id in sandboxes
        }
        return _build_updates(self._correct(self._find_pins()))

    async def create_container(self, pod: PodSandbox, container: RuntimeContainer) -> CreateContainerResponse:
        """Restrict a new container, and take from others what it gets. Raises PinRefused."""
        created = _read_container(pod, container)
        pins = self._find_pins(created)
        pin = pins[created.id]
        if isinstance(pin, PinRefused):
            raise pin
        if created.cpus and created.cpus != pin.cpus:
            text = format_cpu_list(created.cpus)
            _log.warning("something else restricts containers to CPUs, too: %s was to have %s", created, text)
        self._containers[created.id] = created
        wrong = self._correct(pins)
        own = wrong.pop(created.id, None)
        adjust = ContainerAdjustment() if own is None else ContainerAdjustment.of(_build_cpuset(own))
        return CreateContainerResponse(adjust=adjust, update=_build_updates(wrong))

    async def update_container(
        self, _pod: PodSandbox, container: RuntimeContainer, wanted: LinuxResources
    ) -> Sequence[ContainerUpdate]:
        """Keep the container's CPUs while the kubelet changes something else."""
        if wanted.cpu.quota is not None and (known := self._containers.get(container.id)):
            self._containers[container.id] = replace(known, limit=_read_limit(wanted.cpu))
        pins = self._find_pins()
        wrong = self._correct(pins)
        pin = pins.get(container.id)
        return _build_updates({**wrong, container.id: pin} if isinstance(pin, Pin) else wrong)

    async def stop_container(self, _pod: PodSandbox, container: RuntimeContainer) -> Sequence[ContainerUpdate]:
        """Forget the container, and give its CPUs to others. Its claim has them again with its next container."""
        self._containers.pop(container.id, None)
        return _build_updates(self._correct(self._find_pins()))

    async def remove_container(self, _pod: PodSandbox, container: RuntimeContainer) -> None:
        """Forget the container."""
        self._containers.pop(container.id, None)

    async def _read(self) -> tuple[Topology, Inventory]:
        problem = ""
        try:
            await self._check_node()
        except ClaimError as error:
            problem = str(error)
        topology, faults = await asyncio.to_thread(self._read_hardware)
        held = self._held()
        inventory = build_inventory(topology, self._settings, held, problem, faults)
        statuses = build_statuses(held, self._containers.values(), frozenset(cpu.id for cpu in topology.cpus))
        return topology, replace(inventory, claim_statuses=tuple(statuses))

    def _read_hardware(self) -> tuple[Topology, Faults]:
        topology = read_topology(self._tree)
        return topology, self._monitor.read(cpu.id for cpu in topology.cpus)

    async def _check_node(self) -> None:
        """Raise ClaimError if containers cannot be restricted to CPUs here, now or at all."""
        if manager := find_static_manager(self._tree, self._settings.kubelet_root):
            text = f"the kubelet of this node has the {manager}"
            if self._settings.kubelet_managers is KubeletManagers.REFUSE:
                raise ClaimError(text)
            if text != self._told:
                _log.warning("%s; claims get CPUs all the same, as the setting kubeletManagers has it", text)
                self._told = text
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self.runtime.wait_synchronized()
        self.runtime.require_synchronized()

    def _correct(self, pins: Mapping[str, Pin | PinRefused]) -> dict[str, Pin]:
        """Those of containers that have other CPUs than they should, which count as changed from now on."""
        wrong = {
            key: pin
            for key, pin in pins.items()
            if isinstance(pin, Pin) and pin.cpus != self._list_cpus(self._containers[key])
        }
        self._containers |= {key: self._containers[key].with_cpus(pin.cpus) for key, pin in wrong.items()}
        return wrong

    def _list_cpus(self, container: Container) -> frozenset[int]:
        """The container's CPUs. One without a claim that has all CPUs need not be restricted to them."""
        unrestricted = not container.cpus and not container.variables
        return frozenset(cpu.id for cpu in self._topology.cpus) if unrestricted else container.cpus

    def _find_pins(self, *created: Container) -> Mapping[str, Pin | PinRefused]:
        return find_pins((*self._containers.values(), *created), self._held(), self._list_offered())

    def _list_offered(self) -> frozenset[int]:
        return frozenset(cpu.id for cpu in self._topology.cpus) - self._settings.reserved


def _read_container(pod: PodSandbox, container: RuntimeContainer) -> Container:
    return Container(
        id=container.id,
        namespace=pod.namespace,
        pod=pod.name,
        name=container.name,
        env=container.env,
        cpus=parse_cpu_list(container.linux.resources.cpu.cpus),
        limit=_read_limit(container.linux.resources.cpu),
    )


def _read_limit(cpu: LinuxCPU) -> float:
    """Quota and period are microseconds; a quota of -1 is none."""
    return max(0, cpu.quota or 0) / (cpu.period or _CFS_PERIOD)


def _build_updates(pins: Mapping[str, Pin]) -> tuple[ContainerUpdate, ...]:
    return tuple(ContainerUpdate.of(key, _build_cpuset(pin)) for key, pin in sorted(pins.items()))


def _build_cpuset(pin: Pin) -> LinuxResources:
    return cpuset(format_cpu_list(pin.cpus), format_cpu_list(pin.memory))
