"""The simulated processes in /proc, as far as somebody looks who wants to know who uses a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydra_nvidia.simulation.state import Process
from pydra_nvidia.simulation.tree.files import Files, exact, link, text


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
