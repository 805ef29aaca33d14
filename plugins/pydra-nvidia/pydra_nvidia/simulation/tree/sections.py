"""What of the tree depends on what of the machine: each section is made from a key, again when that changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from pydra_nvidia.host.pci import DRIVER
from pydra_nvidia.simulation.machine_state import GpuState, Process, View
from pydra_nvidia.simulation.scenario_gpus import Board
from pydra_nvidia.simulation.tree.gpu_files import gpu_files
from pydra_nvidia.simulation.tree.host_files import extra_files, host_files, self_link
from pydra_nvidia.simulation.tree.installation import (
    ARM,
    daemon_files,
    driver_programs,
    hook_path,
    hook_program,
    installed_files,
)
from pydra_nvidia.simulation.tree.kernel_driver_files import loaded_driver_files, majors_files, partition_files
from pydra_nvidia.simulation.tree.neighbours import has_switches, neighbour_files
from pydra_pci.simulation.files import Files, exact, link, text

Section: TypeAlias = tuple[str, object, Callable[[], Files]]
"""Its name, its key, and what makes its files."""

_PROGRAMS = "nvidia_"
"""What faults of programs begin with."""
_ATS = 2
_BLACKWELL = 10


def wanted_driver(view: View, uuid: str) -> str:
    """The kernel driver that the GPU has to have; empty for none, and for a GPU that is not there."""
    gpu = view.state.gpus[uuid]
    if not gpu.plugged or (gpu.driver == DRIVER and view.state.driver != "loaded"):
        return ""
    return gpu.driver


def find_architecture(view: View) -> str:
    """Of the node's processors: GPUs that address memory as ATS does are on Grace, which is ARM."""
    return ARM if any(board.model.addressing == _ATS for board in view.boards.values()) else "x86_64"


def installation_root(root: str, view: View) -> str:
    """Where the driver's installation is on this machine."""
    return (root + view.scenario.host.driver_root).rstrip("/")


def list_sections(root: str, view: View, location: str, state: str) -> Iterator[Section]:
    """All of the tree at `root`; `location` is the scenario's and `state` the machine's memory, for its programs.

    In the order of making; removing may be in any.
    """
    yield from _node_sections(root, view)
    yield from _driver_sections(root, view, location, state)
    for index, (uuid, board) in enumerate(view.boards.items()):
        yield from _gpu_sections(view, index, board, view.state.gpus[uuid])
    users = {board.minor: view.state.gpus[uuid].processes for uuid, board in view.boards.items()}
    key = [(minor, one.pid, one.name) for minor, processes in users.items() for one in processes]
    yield "processes", key, lambda: process_files(users)
    extra = view.scenario.host.files
    yield "extra", extra, lambda: extra_files(extra)


def _node_sections(root: str, view: View) -> Iterator[Section]:
    scenario, boot = view.scenario, view.state.boot
    loaded = view.state.driver == "loaded"
    host, boards = scenario.host, view.boards.values()
    yield (
        "host",
        (scenario, boot),
        lambda: self_link(root) | host_files(host, seed=scenario.seed, boot=boot),
    )
    if not host.only_gpus:
        yield "bus", (scenario, loaded), lambda: neighbour_files(boards, driver=loaded)
    yield (
        "majors",
        (scenario, loaded),
        lambda: majors_files(driver=loaded, imex=host.imex_channels > 0, vfio=host.iommu),
    )


def _driver_sections(root: str, view: View, location: str, state: str) -> Iterator[Section]:
    scenario, version = view.scenario, view.driver_version()
    loaded, absent = view.state.driver == "loaded", view.state.driver == "absent"
    host, boards = scenario.host, view.boards.values()
    architecture = find_architecture(view)

    def make_loaded() -> Files:
        newest = max((board.model.architecture for board in boards), default=0)
        return loaded_driver_files(
            version, architecture, open_module=newest >= _BLACKWELL, imex_channels=host.imex_channels
        )

    def make_installed() -> Files:
        facts = {
            "scenario": location,
            "state": state,
            "tree": root,
            "version": version,
            "faults": any(_PROGRAMS in one.op or "*" in one.op or "?" in one.op for one in scenario.faults),
        }
        programs = driver_programs(f"{host.driver_root.strip('/')}/usr/bin".lstrip("/"), facts)
        return installed_files(host.driver_root, version, architecture) | programs

    yield "driver", (scenario, loaded, version), lambda: make_loaded() if loaded else {}
    starts = view.state.fabric_starts
    yield (
        "daemons",
        (scenario, loaded, starts),
        lambda: daemon_files(fabric=has_switches(boards), starts=starts) if loaded else {},
    )
    yield "installation", (scenario, absent, version), lambda: {} if absent else make_installed()
    hook = hook_path(host.cdi_hook)
    yield "hook", hook, lambda: hook_program(hook)


def _gpu_sections(view: View, index: int, board: Board, gpu: GpuState) -> Iterator[Section]:
    scenario = view.scenario
    has = wanted_driver(view, board.uuid) == DRIVER
    version = view.driver_version() if has else ""
    yield (
        f"gpu/{board.uuid}",
        (scenario, gpu.plugged, version),
        lambda: gpu_files(board, index, version, iommu=scenario.host.iommu) if gpu.plugged else {},
    )
    instances = gpu.instances if has and gpu.mig else []
    key = (has and gpu.mig, [(one.id, [compute.id for compute in one.compute]) for one in instances])
    yield (
        f"partitions/{board.uuid}",
        (board.minor, key),
        lambda: partition_files(board.minor, instances) if has and gpu.mig else {},
    )


def process_files(users: Mapping[int, Iterable[Process]]) -> Files:
    """`users` are the processes of each GPU, by its minor number. A process may use several."""
    files: Files = {}
    for minor, processes in users.items():
        for process in processes:
            place = f"proc/{process.pid}"
            files[f"{place}/comm"] = text(process.name[:15])
            files[f"{place}/cmdline"] = exact(f"{process.name}\0")
            files[f"{place}/fd/0"] = link("/dev/null")
            files[f"{place}/fd/3"] = link("/dev/nvidiactl")
            files[f"{place}/fd/{10 + minor}"] = link(f"/dev/nvidia{minor}")
    return files
