"""Builds the backend out of its parts, over the node's hardware or a simulated machine."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from msgspec.structs import replace

from pydra import ClaimError, PydraError
from pydra_nvidia.backend import NvidiaBackend
from pydra_nvidia.cdi.edits import DeviceEdits
from pydra_nvidia.cdi.hooks import describe_hooks, find_hook
from pydra_nvidia.health.incidents import FILE, IncidentStore
from pydra_nvidia.health.monitor import HealthMonitor
from pydra_nvidia.held_claims import HeldEntries
from pydra_nvidia.host.driver_root import DriverRoot, find_driver_root
from pydra_nvidia.host.filesystem import Roots, Tree
from pydra_nvidia.host.persistenced import Persistenced
from pydra_nvidia.mig.apply import CreateMigApplier, MigModeOffApplier, MigModeOnApplier
from pydra_nvidia.nvml.library import load_pynvml
from pydra_nvidia.nvml.maintenance_gate import Gate
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import PREFIX, Settings, parse_settings
from pydra_nvidia.sharing.mps import MpsWatch, StartMpsApplier
from pydra_nvidia.sharing.mps_daemon import MpsDaemons
from pydra_nvidia.sharing.time_slicing import SetTimeSliceApplier
from pydra_nvidia.slicing.execution import PriorState, StepExecutor
from pydra_nvidia.steps import BindVfio, CreateMig, MigModeOff, MigModeOn, SetTimeSlice, StartMps
from pydra_nvidia.takeover.takeover import VendorTakeover
from pydra_nvidia.telemetry import Telemetry
from pydra_nvidia.vfio.apply import BindVfioApplier

_log = logging.getLogger(__name__)


class SimulationMissing(PydraError):
    """A simulated machine was asked for where `pydra_nvidia.simulation` is not installed."""

    reason = "SimulationMissing"


@contextmanager
def needs_simulation() -> Iterator[None]:
    """Around imports of `pydra_nvidia.simulation`, which images for nodes leave out. Raises SimulationMissing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not f"{error.name}.".startswith("pydra_nvidia.simulation."):
            raise
        message = "the simulation is not part of this image; it comes with `pip install pydra-nvidia`"
        raise SimulationMissing(message) from None


class Node(NamedTuple):
    """A machine to serve: its settings, its files, how NVML is loaded there, and whether it may be."""

    settings: Settings
    tree: Tree
    load: Callable[[], ModuleType]
    gate: Gate


def find_node(environ: Mapping[str, str], settings: Settings | None = None) -> Node:
    """The node that this runs on, or the scenario's. `settings` are those that the agent read, where it did.

    Raises SettingsError, ScenarioError, SimulationMissing.
    """
    settings = settings if settings is not None else parse_settings(environ)
    if settings.scenario:
        # Imported only here: a node with hardware has no use for one without.
        with needs_simulation():
            from pydra_nvidia.simulation.simulation import default_state, open_simulation  # noqa: PLC0415

        state = default_state() if settings.state == Settings().state else settings.state
        simulation = open_simulation(settings.scenario, state)
        own = {name: value for name, value in environ.items() if name != f"{PREFIX}STATE"}
        settings = replace(parse_settings(own, simulation.settings), **_differing(settings))
        return Node(settings, simulation.tree, simulation.load, Gate(settings.state))
    tree = Tree(Roots(host=settings.host_root, sys=settings.sys_root, proc=settings.proc_root))
    return Node(
        settings, tree, lambda: load_pynvml(find_driver_root(tree, settings).nvml_library), Gate(settings.state)
    )


def _differing(settings: Settings) -> Mapping[str, Any]:
    """What the settings file may have changed: where a simulated machine is, only that machine knows."""
    usual, places = Settings(), ("state", "host_root", "sys_root", "proc_root")
    return {
        name: value
        for name in Settings.__struct_fields__
        if name not in places and (value := getattr(settings, name)) != getattr(usual, name)
    }


@asynccontextmanager
async def open_backend(node: Node) -> AsyncIterator[NvidiaBackend]:
    """The backend, with a session to NVML that begins when it is first needed and ends with the block."""
    settings, tree, gate = node.settings, node.tree, node.gate
    session = NvmlSession(node.load, gate)
    telemetry = Telemetry(session, tree, settings=settings)
    held = HeldEntries()
    health = HealthMonitor(session, IncidentStore(os.path.join(settings.state, FILE)), settings=settings)

    def find_root() -> DriverRoot:
        return find_driver_root(tree, settings)

    daemons = MpsDaemons(settings, tree, find_root)
    start_mps = StartMpsApplier(session, settings, held, daemons, telemetry.reread)
    executor = StepExecutor(
        held,
        {
            MigModeOn: MigModeOnApplier(session, held),
            MigModeOff: MigModeOffApplier(session, held),
            CreateMig: CreateMigApplier(session, held),
            SetTimeSlice: SetTimeSliceApplier(session, held, find_root),
            StartMps: start_mps,
            BindVfio: BindVfioApplier(tree, settings, session),
        },
    )
    edits = DeviceEdits(tree, settings)
    await _say_hook(tree, settings)
    backend = NvidiaBackend(
        settings,
        session=session,
        gate=gate,
        telemetry=telemetry,
        held=held,
        prior_state=PriorState(session, tree, Persistenced(tree, find_root)),
        executor=executor,
        edits=edits,
        health=health,
        mps=MpsWatch(start_mps, settings, held),
        takeover=VendorTakeover(
            settings=settings,
            tree=tree,
            telemetry=telemetry,
            held=held,
            executor=executor,
            edits=edits,
        ),
    )
    try:
        work = {
            "maintenance": backend.follow_maintenance(),
            "MPS daemons": backend.supervise(),
            "what claims left": backend.settle(),
        }
        async with _beside(work):
            yield backend
    finally:
        if health.close():
            session.close()


@asynccontextmanager
async def _beside(work: Mapping[str, Coroutine[None, None, None]]) -> AsyncIterator[None]:
    """Work that goes on beside the block and ends with it. What the block raises leaves it as it is, not in a group."""
    alone: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine, name=name) for name, coroutine in work.items()]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as several:
        if len(several.exceptions) > 1:
            raise
        (alone,) = several.exceptions
    if alone is not None:
        raise alone


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
