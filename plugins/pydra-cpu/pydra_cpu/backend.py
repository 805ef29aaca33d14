"""The coroutines that pydra calls: read, decide, act. What a claim has is in the agent's records only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from pydra import Claim, ClaimError, ContainerEdits, HeldClaim, Inventory, PreparedDevice, Sample
from pydra_cpu.claim_plan import Shares, list_taken, plan_claim, read_shares
from pydra_cpu.cpu_list import format_cpu_list, parse_cpu_list
from pydra_cpu.device_status import build_status, build_statuses
from pydra_cpu.devices import list_devices
from pydra_cpu.hardware_faults import FaultMonitor, Faults
from pydra_cpu.hardware_reader import read_topology
from pydra_cpu.hardware_types import Topology
from pydra_cpu.inventory import build_inventory
from pydra_cpu.kubelet_policy import find_static_manager
from pydra_cpu.nri_handlers import ContainerHandlers
from pydra_cpu.pinning import build_variable, find_occupied, find_pool
from pydra_cpu.samples import CpuTime, build_samples, parse_cpu_times
from pydra_cpu.settings import KubeletManagers, Settings
from pydra_nri import Plugin
from pydra_pci import Tree

_log = logging.getLogger(__name__)


class CpuBackend:
    """One node's CPUs. `runtime` is the connection to the container runtime, whose calls `handlers` answers."""

    def __init__(self, settings: Settings, tree: Tree, handlers: ContainerHandlers, runtime: Plugin) -> None:
        self.handlers = handlers
        self.runtime = runtime
        self._settings = settings
        self._tree = tree
        self._monitor = FaultMonitor(tree)
        self._times: Mapping[int, CpuTime] = {}
        self._inventory = Inventory()
        self._told: set[str] = set()

    async def discover(self) -> Inventory:
        """All CPUs that are online and not reserved."""
        self.handlers.topology, self._inventory = await self._read()
        online = self.handlers.topology.online
        if online <= self._settings.reserved:  # as the admin may want it on small nodes: not unreadable hardware
            self._warn_once(
                f"no CPU is offered: reservedCpus {self._settings.reserved_cpus} has all that are online "
                f"({format_cpu_list(online)}), and containers run on all of them"
            )
        return self._inventory

    async def wait_changed(self) -> None:
        """Return when CPUs or the runtime have come or gone since `discover`, or CPUs of claims, or faults."""
        while (await self._read())[1] == self._inventory:  # noqa: ASYNC110 - files have no event
            await asyncio.sleep(self._settings.poll_period)

    async def measure(self) -> list[Sample]:
        """How many CPUs there are, who has them, and how busy those of claims have been since the last call."""
        stat = await asyncio.to_thread(self._tree.read, self._tree.proc("stat"))
        before, self._times = self._times, parse_cpu_times(stat)
        held = self.handlers.held()
        pool = find_pool(self.handlers.containers.values(), held, self.handlers.list_offered())
        devices = list_devices(self.handlers.topology, self._settings)
        return list(build_samples(devices, held, pool, before, self._times))

    async def restore(self, held: Sequence[HeldClaim], /) -> None:
        """Let the runtime's containers be compared with the claims, which are known from now on."""
        self.handlers.claims_known.set()

    async def plan(self, claim: Claim, held: Sequence[HeldClaim], /) -> Shares:
        """The CPUs for each device. A claim that leaves no CPU to the containers without one is refused."""
        await self._check_node()
        before = list_taken(held)
        occupied = find_occupied(self.handlers.containers.values(), held, before)
        shares = plan_claim(claim, held, self.handlers.topology, self._settings, occupied)
        taken = {cpu for share in shares if share for cpu in parse_cpu_list(share.taken)}
        others = sum(not one.variables for one in self.handlers.containers.values())
        if others and taken and not self.handlers.list_offered() - before - occupied.keys() - taken:
            raise ClaimError(
                f"the claim would leave no CPU to containers without a claim (now {others}); ask for fewer CPUs"
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

    async def _read(self) -> tuple[Topology, Inventory]:
        problem = ""
        try:
            await self._check_node()
        except ClaimError as error:
            problem = str(error)
        topology, faults = await asyncio.to_thread(self._read_hardware)
        held = self.handlers.held()
        inventory = build_inventory(topology, self._settings, held, problem, faults)
        statuses = build_statuses(held, self.handlers.containers.values(), topology.online)
        return topology, replace(inventory, claim_statuses=tuple(statuses))

    def _read_hardware(self) -> tuple[Topology, Faults]:
        topology = read_topology(self._tree)
        return topology, self._monitor.read(topology.online)

    async def _check_node(self) -> None:
        """Raise ClaimError if containers cannot be restricted to CPUs here, now or at all."""
        # In a thread: a disk that does not answer must not keep the container runtime waiting, too.
        if manager := await asyncio.to_thread(find_static_manager, self._tree, self._settings.kubelet_root):
            text = f"the kubelet of this node has the {manager}"
            if self._settings.kubelet_managers is KubeletManagers.REFUSE:
                raise ClaimError(text)
            self._warn_once(f"{text}; claims get CPUs all the same, as the setting kubeletManagers has it")
        await self.runtime.check_synchronized()

    def _warn_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _log.warning("%s", text)
