"""The coroutines that pydra calls: read, decide, act. What a claim has is in the agent's records only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from pydra import AllocatedDevice, Claim, ClaimError, ContainerEdits, Device, HeldClaim, Inventory, Plan, PreparedDevice
from pydra_net.cdi import edits
from pydra_net.claim_plan import check_offered, list_with_ethtool, list_with_functions, plan_claim
from pydra_net.device_names import DRIVER
from pydra_net.device_status import PodState, build_status, build_statuses
from pydra_net.hardware_reader import HardwareReader
from pydra_net.hardware_types import Node
from pydra_net.health import CarrierHistory, find_lost
from pydra_net.inventory import build_inventory
from pydra_net.kernel import Events
from pydra_net.make_virtual_functions import FunctionMaker
from pydra_net.move_pod_interfaces import PodInterfaces
from pydra_net.settings import Settings, list_counts
from pydra_net.steps import ConfigureFunction, GiveRdma, Step
from pydra_net.steps_of_held_claims import list_gives, list_of_device
from pydra_nri import Plugin
from pydra_pci import Tree

_QUIET = 0.5
"""Seconds in which events are collected."""


class NetBackend:
    """One node's interfaces. `runtime` is the connection to the container runtime; `held` returns the node's claims.

    `claims_known` is set when these are known.
    """

    def __init__(
        self,
        settings: Settings,
        tree: Tree,
        reader: HardwareReader,
        events: Events,
        *,
        held: Callable[[], Sequence[HeldClaim]],
        claims_known: asyncio.Event,
        interfaces: PodInterfaces,
        runtime: Plugin,
    ) -> None:
        self.runtime = runtime
        self._held = held
        self._claims_known = claims_known
        self._settings = settings
        self._selects = _build_filter(settings.filter)
        self._tree = tree
        self._reader = reader
        self._interfaces = interfaces
        self._carrier = CarrierHistory(time.monotonic)
        self._maker = FunctionMaker(tree, list_counts(settings.virtual_functions))
        self._events = events
        self._inventory = Inventory()

    async def discover(self) -> Inventory:
        """All interfaces that the node does not need itself, those in pods included."""
        self._inventory = await self._read_inventory()
        return self._inventory

    async def wait_changed(self) -> None:
        """Return when interfaces, addresses or the runtime have come or gone since `discover`."""
        while True:
            await self._wait_hint()
            if await self._read_inventory() != self._inventory:
                return
            await asyncio.sleep(_QUIET)

    async def restore(self, held: Sequence[HeldClaim], /) -> None:
        """Let the runtime's pods be compared with the claims, which are known from now on."""
        self._claims_known.set()

    async def plan(self, claim: Claim, held: Sequence[HeldClaim], /) -> Plan:
        """The interfaces, with all that is configured on them now."""
        await self.runtime.check_synchronized()
        devices = [one.device for one in claim.devices]
        lists = (list_with_ethtool(claim), list_with_functions(claim), devices)
        node = await asyncio.to_thread(self._reader.read, *lists)
        return plan_claim(claim, held, node, self._reader.find_pci_address)

    async def apply(self, step: Step, _result: Any, _claim: Claim, /) -> None:
        """Check that the node can do without the interface, and let it be found again wherever it is.

        What is shared is made in the pod only.
        """
        check_offered(step, await self._read())
        await self._interfaces.mark(step)

    async def undo(self, step: Step, _result: Any, claim: Claim, /) -> None:
        """Put the interface back as it was."""
        await self._interfaces.release(step, claim)

    async def prepare(self, claim: Claim, /) -> list[PreparedDevice]:
        """Nothing but a check: what is moved, is when the pod has a network namespace."""
        await self.runtime.check_synchronized()
        return [self._prepare_device(claim, device) for device in claim.devices]

    def _prepare_device(self, claim: Claim, device: AllocatedDevice) -> PreparedDevice:
        nodes, attributes = ContainerEdits(), {}
        for step in list_of_device(claim, device):
            if isinstance(step, GiveRdma):
                nodes = edits(step, self._tree)
                attributes["rdmaDevice"] = step.name
            elif not isinstance(step, ConfigureFunction):
                attributes["ifName"] = step.target.name
        return device.prepared(nodes, attributes=attributes, status=build_status(claim, device, PodState()))

    async def _wait_hint(self) -> None:
        """Return when the kernel reports a change, an interface was moved or not, or after the period."""
        hints = [asyncio.ensure_future(self._events.wait()), asyncio.ensure_future(self._interfaces.changed.wait())]
        try:
            await asyncio.wait(hints, timeout=self._settings.poll_period, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for hint in hints:
                hint.cancel()
            await asyncio.gather(*hints, return_exceptions=True)
        self._interfaces.changed.clear()

    async def _read(self) -> Node:
        return await asyncio.to_thread(self._reader.read)

    async def _read_inventory(self) -> Inventory:
        self._interfaces.forget_ended()
        problem = ""
        try:
            await self.runtime.check_synchronized()
        except ClaimError as error:
            problem = str(error)
        node = await self._read()
        if await asyncio.to_thread(self._maker.make, node.reading.links, node.needed):
            node = await self._read()
        gives = list_gives([one for one in self._held() if not one.left_over])
        in_pods, settled = await self._interfaces.locate(gives)
        lost = await asyncio.to_thread(find_lost, gives, in_pods, settled, self._reader.read_hardware)
        inventory = await asyncio.to_thread(
            build_inventory,
            node,
            self._held(),
            self._reader.read_hardware,
            self._reader.find_pci_address,
            problem,
            selects=self._selects,
            lost=lost,
            changes=self._carrier.note(node.devices),
            in_pods=in_pods,
        )
        return replace(
            inventory,
            claim_statuses=build_statuses(self._held(), self._interfaces.read_state(lost)),
            unreadable=tuple(self._maker.list_problems(node.reading.links, node.needed)),
        )


def _build_filter(expression: str) -> Callable[[Device], bool]:
    if not expression:
        return lambda _: True
    from pydra_net.cel_filter import DeviceFilter  # noqa: PLC0415 - see the settings

    compiled = DeviceFilter(expression)
    return lambda device: compiled.selects(DRIVER, device)
