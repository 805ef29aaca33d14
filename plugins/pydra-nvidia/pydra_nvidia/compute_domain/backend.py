"""The coroutines that pydra calls: the channels and the daemon of one node, as NVIDIA's controller expects them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any

from pydra import (
    AllocatedDevice,
    AttributeValue,
    Claim,
    ClaimError,
    ContainerEdits,
    Device,
    Health,
    HealthStatus,
    HeldClaim,
    Inheritance,
    InheritedClaim,
    Inventory,
    Mount,
    Plan,
    PreparedDevice,
    set_status,
)
from pydra_nvidia.cdi.edits import VOID, DeviceEdits, merge
from pydra_nvidia.compute_domain.claim_config import (
    ComputeDomainChannelConfig,
    ComputeDomainDaemonConfig,
    Config,
    find_config,
)
from pydra_nvidia.compute_domain.claim_plan import plan_claim
from pydra_nvidia.compute_domain.imex_control import ImexControl
from pydra_nvidia.compute_domain.imex_directories import DomainNotReady, ImexDirectories
from pydra_nvidia.compute_domain.settings import Imex, Settings
from pydra_nvidia.compute_domain.steps import CHANNEL, DAEMON, MakeDomainDirectory
from pydra_nvidia.compute_domain.takeover import convert_claims
from pydra_nvidia.host.device_nodes import (
    CapabilityMissing,
    count_imex_channels,
    find_imex_channels,
    find_imex_management,
    read_majors,
)
from pydra_nvidia.host.driver_root import DriverMissing, find_driver_root
from pydra_nvidia.host.kernel_driver import read_module_version
from pydra_nvidia.host.pci import DRIVER as KERNEL_DRIVER
from pydra_nvidia.host.pci import find_gpus
from pydra_nvidia.machine_access import MachineAccess
from pydra_nvidia.nvml.maintenance_gate import InMaintenance
from pydra_nvidia.nvml.nvlink import NodeFabric, find_fabric, read_fabrics
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.takeover.takeover import read_left
from pydra_nvidia.takeover.vendor_checkpoint import FILE
from pydra_nvidia.waiting import call_time, in_thread, left
from pydra_pci import is_vfio

CONFIG_PLACE = "/imexd"
"""Where the daemon's pod has the directory of its ComputeDomain."""

_MOUNT_OPTIONS = ("rw", "nosuid", "nodev", "bind")
_NAMES_SINCE = [570, 158, 1]
"""The first driver whose IMEX knows its nodes by names."""
_LOOK_AGAIN = 1.0
"""Seconds between two questions whether an IMEX daemon is ready."""


class FabricNotReady(ClaimError):
    """The node's GPUs have not joined their NVLink fabric, or not all of them the same."""

    reason = "FabricNotReady"


class ComputeDomainBackend:
    """One node's part in ComputeDomains. NVML is open only while it is asked, so it never keeps a driver in use."""

    def __init__(self, machine: MachineAccess, settings: Settings) -> None:
        self._settings = settings
        self._machine = machine
        self._tree = machine.tree
        self._session = NvmlSession(machine.load, machine.gate)
        self._bus = find_gpus(machine.tree)
        self._edits = DeviceEdits(machine.tree, machine.settings)
        self._directories = ImexDirectories(machine.settings.state)
        self._imex = ImexControl(lambda: find_driver_root(machine.tree, machine.settings))
        self._last: Inventory | None = None
        self._seen: object = None
        self._settled = True

    async def discover(self) -> Inventory:
        """`channel-0` and, where IMEX is the driver's, `daemon-0`; nothing on a node without NVIDIA hardware.

        During maintenance as they were before.
        """
        self._seen = await asyncio.to_thread(self._signature)  # before reading: changes since are noticed
        try:
            self._last = await in_thread(self._take_stock)
        except InMaintenance:
            self._settled = False
            if self._last is None:
                raise
        return self._last

    async def wait_changed(self) -> None:
        """Return when drivers or channels came or went, or it is time to look at a fabric again that is not ready."""
        while True:
            await asyncio.sleep(self._settings.poll_period)
            if not self._settled or await asyncio.to_thread(self._signature) != self._seen:
                return

    async def restore(self, held: Sequence[HeldClaim], /) -> None:
        """Remove what daemons left whose claims are not held any more."""
        domains = set()
        for one in held:
            for device in one.claim.devices:
                if device.device == DAEMON:
                    config = device.config(ComputeDomainDaemonConfig)
                    if config is None:  # its record is damaged, and its pod may run
                        return
                    domains.add(config.domain)
        await in_thread(self._directories.remove_all_but, domains)

    async def plan(self, claim: Claim, held: Sequence[HeldClaim], /) -> Plan:
        """The directory of a daemon, nothing for a channel."""
        return plan_claim(claim, self._names(), self._settings.daemon_namespace)

    async def apply(self, step: MakeDomainDirectory, result: Any, claim: Claim, /) -> None:
        """Make the directory."""
        await in_thread(self._directories.make, step.domain)

    async def undo(self, step: MakeDomainDirectory, result: Any, claim: Claim, /) -> None:
        """Remove the directory with all that the daemon wrote."""
        await in_thread(self._directories.remove, step.domain)

    async def prepare(self, claim: Claim, /) -> Sequence[PreparedDevice]:
        """Device nodes for channels, once the IMEX daemon is ready; the driver and its directory for the daemon."""
        with call_time():
            return [device.prepared(await self._prepare(device, claim.namespace)) for device in claim.devices]

    async def inherit(self, directory: str, /) -> Inheritance:
        """What NVIDIA's plugin prepared before; it must have ended. Its daemons go on in their directories.

        Raises VendorRuns, and what preparing raises.
        """
        checkpoint = await read_left(directory, self._tree, switch="resources.computeDomains")
        if checkpoint is None:
            return Inheritance()
        taken = []
        for claim in convert_claims(checkpoint):
            for step in claim.steps:
                place = os.path.join(directory, "domains", step.step.domain)
                await in_thread(self._directories.adopt, step.step.domain, place)
            with call_time():
                fabric = await self._read_joined_fabric()
                edits = [await in_thread(self._build_edits, find_config(device), fabric) for device in claim.devices]
            prepared = [device.prepared(one) for device, one in zip(claim.devices, edits, strict=True)]
            taken.append(InheritedClaim(claim=claim, prepared=tuple(prepared)))
        return Inheritance(claims=tuple(taken), files=(os.path.join(directory, FILE),))

    async def _prepare(self, device: AllocatedDevice, namespace: str) -> ContainerEdits:
        config = find_config(device)
        fabric = await self._read_joined_fabric()
        edits = await in_thread(self._build_edits, config, fabric)
        if fabric.clique and isinstance(config, ComputeDomainChannelConfig):
            await self._wait_ready(config, namespace)
        return edits

    async def _read_joined_fabric(self) -> NodeFabric:
        """The node's fabric, without a problem. Raises FabricNotReady, and what reading it raises."""
        set_status("asking NVML for the fabric")
        fabric = await in_thread(self._read_fabric)
        if fabric.problem:
            raise FabricNotReady(f"the node cannot be part of a ComputeDomain yet: {fabric.problem}")
        return fabric

    async def _wait_ready(self, config: ComputeDomainChannelConfig, namespace: str) -> None:
        """Until the IMEX daemon is ready. Raises DomainNotReady, OtherNamespace."""
        is_drivers = self._settings.imex is Imex.DRIVER_MANAGED
        set_status("waiting for the IMEX daemon")
        end = time.monotonic() + left(self._settings.ready_deadline)
        while True:
            try:
                if is_drivers:
                    configuration = self._directories.check_configured(config.domain)
                    self._directories.check_namespace(config.domain, namespace)
                    await self._imex.check_daemon(configuration)
                else:
                    await self._imex.check_host(self._settings.imex_socket)
                return
            except DomainNotReady:
                if time.monotonic() + _LOOK_AGAIN > end:
                    raise
            await asyncio.sleep(_LOOK_AGAIN)

    def _build_edits(self, config: Config, fabric: NodeFabric) -> ContainerEdits:
        if isinstance(config, ComputeDomainChannelConfig):
            if not fabric.clique:
                return ContainerEdits()
            is_drivers = self._settings.imex is Imex.DRIVER_MANAGED
            count = count_imex_channels(self._tree) if config.mode == "All" and is_drivers else 1
            return ContainerEdits(device_nodes=find_imex_channels(self._tree, max(count, 1)))
        driver = self._edits.build_management(read_module_version(self._tree))
        management = ContainerEdits(device_nodes=(find_imex_management(self._tree),) if fabric.clique else ())
        own = ContainerEdits(
            env={**VOID, "CLIQUE_ID": fabric.clique, "COMPUTE_DOMAIN_UUID": config.domain},
            mounts=(
                Mount(
                    host_path=self._directories.path(config.domain),
                    container_path=CONFIG_PLACE,
                    options=_MOUNT_OPTIONS,
                ),
            ),
        )
        return merge(driver, management, own)

    def _take_stock(self) -> Inventory:
        functions = self._bus.functions()
        self._settled = True
        if not functions:
            return Inventory()
        fabric = self._read_fabric()
        problem = fabric.problem or (self._find_problem() if fabric.clique else "")
        self._settled = not problem
        health = Health()
        if problem:
            health = Health(status=HealthStatus.UNHEALTHY, reason="FabricNotReady", message=problem)
        attributes: dict[str, AttributeValue] = {"cliqueID": fabric.clique} if fabric.clique else {}
        return Inventory(
            devices=tuple(
                Device(name=name, attributes={"type": name.partition("-")[0], "id": 0, **attributes}, health=health)
                for name in self._names()
            )
        )

    def _read_fabric(self) -> NodeFabric:
        """Raises DriverMissing, NvmlError, InMaintenance."""
        drivers = [driver for _, _, driver in self._bus.drivers()]
        if KERNEL_DRIVER not in drivers:
            if all(is_vfio(driver) for driver in drivers):
                return NodeFabric()
            raise DriverMissing("the node's NVIDIA hardware has no driver: the NVIDIA kernel driver is not loaded yet")
        try:
            return find_fabric(self._session.run_here(read_fabrics))
        finally:
            self._session.close()

    def _find_problem(self) -> str:
        """What the kernel driver lacks for a node in a fabric."""
        try:
            find_imex_channels(self._tree, 1)
            if self._settings.imex is not Imex.DRIVER_MANAGED:
                return ""
            find_imex_management(self._tree)
        except CapabilityMissing as error:
            return str(error)
        version = read_module_version(self._tree)
        if not version or [int(part) for part in version.split(".")] >= _NAMES_SINCE:
            return ""
        return (
            f"the NVIDIA driver is {version}, and IMEX daemons of ComputeDomains need"
            f" {'.'.join(f'{part:02}' for part in _NAMES_SINCE)} or newer: older ones know nodes by addresses only"
        )

    def _names(self) -> tuple[str, ...]:
        return (CHANNEL, DAEMON) if self._settings.imex is Imex.DRIVER_MANAGED else (CHANNEL,)

    def _signature(self) -> object:
        return self._bus.drivers(), read_module_version(self._tree), read_majors(self._tree)
