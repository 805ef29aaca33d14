"""How the machine that is served is reached: settings, files, and how NVML is loaded. The node, or a scenario's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from msgspec.structs import replace

from pydra_nvidia.host.driver_root import find_driver_root
from pydra_nvidia.nvfm import load_nvfm
from pydra_nvidia.nvml.maintenance_gate import Gate
from pydra_nvidia.nvml.pynvml_library import load_pynvml
from pydra_nvidia.settings import PREFIX, Settings, list_changed, parse_settings
from pydra_pci import Roots, Tree, needs_simulation

_PLACES = ("state", "host_root", "sys_root", "proc_root")


class MachineAccess(NamedTuple):
    """A machine to serve: its settings and files, how libraries are loaded there, and whether NVML may be."""

    settings: Settings
    tree: Tree
    load: Callable[[], ModuleType]
    load_fabric: Callable[[], Any]
    gate: Gate


def find_machine(environ: Mapping[str, str], settings: Settings | None = None) -> MachineAccess:
    """The node that this runs on, or the scenario's. `settings` are those that the agent read, where it did.

    Raises SettingsError, ScenarioError, SimulationMissing.
    """
    settings = settings if settings is not None else parse_settings(environ)
    if settings.scenario:
        # Imported only here: a node with hardware has no use for one without.
        with needs_simulation("pydra_nvidia"):
            from pydra_nvidia.simulation.simulation import default_state, open_simulation  # noqa: PLC0415

        state = default_state() if settings.state == Settings().state else settings.state
        simulation = open_simulation(settings.scenario, state)
        own = {name: value for name, value in environ.items() if name != f"{PREFIX}STATE"}
        # What the settings file may have changed: where a simulated machine is, only that machine knows.
        changed = {name: value for name, value in list_changed(settings).items() if name not in _PLACES}
        settings = replace(parse_settings(own, simulation.settings), **changed)
        return MachineAccess(settings, simulation.tree, simulation.load, simulation.load_fabric, Gate(settings.state))
    tree = Tree(Roots(host=settings.host_root, sys=settings.sys_root, proc=settings.proc_root))
    return MachineAccess(
        settings,
        tree,
        lambda: load_pynvml(find_driver_root(tree, settings).nvml_library),
        lambda: load_nvfm(find_driver_root(tree, settings)),
        Gate(settings.state),
    )
