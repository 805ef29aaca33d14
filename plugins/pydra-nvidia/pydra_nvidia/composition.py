"""Builds the backend out of its parts, over the node's hardware or a simulated machine."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from pydra import ClaimError, held_claims
from pydra_nvidia.backend import NvidiaBackend
from pydra_nvidia.cdi.edits import DeviceEdits
from pydra_nvidia.cdi.hooks import describe_hooks, find_hook
from pydra_nvidia.claim_records import read_entries
from pydra_nvidia.fabric.active_partitions import ActivePartitions
from pydra_nvidia.fabric.apply_fabric import ActivateFabricApplier
from pydra_nvidia.hardware_reader import BASEBOARD_FILE, HardwareReader
from pydra_nvidia.health.incident_store import FILE, IncidentStore
from pydra_nvidia.health.monitor import HealthMonitor
from pydra_nvidia.host.driver_root import find_driver_root
from pydra_nvidia.host.persistenced import Persistenced
from pydra_nvidia.machine_access import MachineAccess
from pydra_nvidia.mig.apply_partitions import CreateMigApplier, MigModeOffApplier, MigModeOnApplier
from pydra_nvidia.nvfm import FabricManager
from pydra_nvidia.nvml.hung_queries import FILE as QUERIES_FILE
from pydra_nvidia.nvml.hung_queries import SuspendedQueries
from pydra_nvidia.nvml.persistence import PersistenceMode
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.prior_state import PriorState
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.apply_mps import StartMpsApplier
from pydra_nvidia.sharing.apply_time_slice import SetTimeSliceApplier
from pydra_nvidia.sharing.mps_daemon import MpsDaemons
from pydra_nvidia.sharing.mps_watch import MpsWatch
from pydra_nvidia.step_appliers import StepAppliers
from pydra_nvidia.steps import ActivateFabric, BindVfio, CreateMig, MigModeOff, MigModeOn, SetTimeSlice, StartMps
from pydra_nvidia.takeover.takeover import VendorTakeover
from pydra_nvidia.vfio.apply_passthrough import BindVfioApplier
from pydra_pci import Tree, run_beside

_log = logging.getLogger(__name__)


@asynccontextmanager
async def open_backend(machine: MachineAccess) -> AsyncIterator[NvidiaBackend]:
    """The backend, with a session to NVML that begins when it is first needed and ends with the block."""
    settings, tree, gate = machine.settings, machine.tree, machine.gate
    session = NvmlSession(machine.load, gate)
    fabric = FabricManager(machine.load_fabric, tree.here(settings.fabric_manager_socket))
    partitions = ActivePartitions(fabric, lambda: read_entries(held_claims()))
    hardware = HardwareReader(
        session,
        tree,
        settings=settings,
        baseboard=os.path.join(settings.state, BASEBOARD_FILE),
        partitions=partitions if settings.fabric_partitions else None,
    )
    queries = SuspendedQueries(os.path.join(settings.state, QUERIES_FILE))
    health = HealthMonitor(session, IncidentStore(os.path.join(settings.state, FILE)), queries, settings=settings)
    find_root = partial(find_driver_root, tree, settings)
    persistenced = Persistenced(tree, find_root)
    daemons = MpsDaemons(settings, tree, find_root)
    start_mps = StartMpsApplier(session, settings, daemons, hardware.reread)
    appliers = StepAppliers(
        {
            MigModeOn: MigModeOnApplier(session, tree),
            MigModeOff: MigModeOffApplier(session, tree),
            CreateMig: CreateMigApplier(session, tree),
            ActivateFabric: ActivateFabricApplier(partitions, session, PersistenceMode(tree, session, persistenced)),
            SetTimeSlice: SetTimeSliceApplier(session, find_root),
            StartMps: start_mps,
            BindVfio: BindVfioApplier(tree, settings, session),
        }
    )
    edits = DeviceEdits(tree, settings)
    await _say_hook(tree, settings)
    backend = NvidiaBackend(
        settings,
        session=session,
        gate=gate,
        hardware=hardware,
        prior_state=PriorState(session, persistenced),
        appliers=appliers,
        edits=edits,
        health=health,
        queries=queries,
        mps=MpsWatch(start_mps, settings),
        takeover=VendorTakeover(
            settings=settings,
            tree=tree,
            hardware=hardware,
            appliers=appliers,
            edits=edits,
        ),
    )
    try:
        work = {"maintenance": backend.follow_maintenance(), "MPS daemons": backend.supervise()}
        async with run_beside(work):
            yield backend
    finally:
        session.close()
        health.take()  # what came until then counts after a restart


async def _say_hook(tree: Tree, settings: Settings) -> None:
    """Log once how containers are set up, as a warning where they lack something.

    A hook that is missing costs the claims, which say so themselves.
    """
    try:
        hook = await asyncio.to_thread(find_hook, tree, settings)
    except ClaimError as error:
        _log.warning("%s", error)
        return
    _log.log(logging.INFO if hook else logging.WARNING, "%s", describe_hooks(hook))
