"""How long the way of one call is: the functions and files of pydra that it enters, and all Python calls.

Counted on the agent's main thread, for one warm call of the kubelet and for one discover that changes nothing; for the
NVIDIA backend in its own process, in all threads, pydra's functions and its own without the simulated library. Of
several calls the one with the fewest Python calls is shown: what happens by period, such as a backend's sign of life,
falls into some of them. A comprehension is part of its function: only Python 3.11 makes a function of it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_paths

from benchmarks.nvidia_agent import start_nvidia
from benchmarks.nvidia_calls import SMALL
from benchmarks.report import Report
from benchmarks.world import SETTLED, World, open_world

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "minimal"
PROFILER = Path(__file__).resolve().parent / "profiler"
WARM = 10
ROUNDS = 5
SECONDS = 10.0
DISCOVER_SECONDS = 2.5
"""The simulated backend looks once a second whether its scenario was written."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """At most so many."""

    functions: int
    files: int
    calls: int


CALL = Limit(functions=100, files=20, calls=1100)
DISCOVER = Limit(functions=40, files=8, calls=200)
NVIDIA = Limit(functions=200, files=40, calls=2000)

Place = tuple[str, str]
"""A function: its file and its name."""

_COMPREHENSION = re.compile(r"\.<locals>\.<(list|dict|set)comp>$")


def measure_path(report: Report) -> bool:
    """Print the figures by package; whether all are within their limits."""
    within = True
    with open_world() as world:
        claims = world.create_claims(range(WARM + ROUNDS))
        world.start_agent(len(claims), **_load_profiler(world))
        world.wait_slices(len(claims))
        assert world.agent is not None
        agent = world.agent.pid
        with world.kubelet() as calls:
            for claim in claims[:WARM]:
                calls.prepare([claim])
                calls.prepare([claim])
                calls.unprepare([claim])
            free = claims[WARM:]
            prepare = [_count(world, agent, lambda: calls.prepare([claim])) for claim in free]  # noqa: B023
            repeat = [_count(world, agent, lambda: calls.prepare([claim])) for claim in free]  # noqa: B023
            unprepare = [_count(world, agent, lambda: calls.unprepare([claim])) for claim in free]  # noqa: B023
        within &= _tell(report, "prepare, with a plan", _fewest(prepare), CALL)
        within &= _tell(report, "repeat", _fewest(repeat), CALL)
        within &= _tell(report, "unprepare", _fewest(unprepare), CALL)
        within &= _tell(report, "discover", _fewest(_count_discovers(world, agent)), DISCOVER)
    within &= _tell(report, "prepare", _fewest(_count_plain_prepares()), CALL)
    with open_world() as world:
        start_nvidia(world, **_load_profiler(world))
        time.sleep(SETTLED)
        held = world.create_claim("path", [SMALL])
        counted = []
        with world.kubelet() as calls:
            for _ in range(ROUNDS):
                found = _count(world, world.child, lambda: calls.prepare(held))  # noqa: B023
                counted.append(Counter({place: calls for place, calls in found.items() if _is_backend(place[0])}))
                calls.unprepare(held)
        within &= _tell(report, "NVIDIA prepare", _fewest(counted), NVIDIA)
    return within


def _count_plain_prepares() -> list[Counter[Place]]:
    """What prepares of the backend in examples/minimal take, which does not plan."""
    with open_world() as world:
        world.driver = "fpga.example.com"
        settings = _load_profiler(world)
        settings["PYTHONPATH"] += f"{os.pathsep}{EXAMPLE}"
        world.start_agent_of("my_fpga:", settings)
        world.wait_slices(2)
        assert world.agent is not None
        agent = world.agent.pid
        claim = world.create_claim("path", ["fpga-0"])
        counted = []
        with world.kubelet() as calls:
            for _ in range(WARM):
                calls.prepare(claim)
                calls.unprepare(claim)
            for _ in range(ROUNDS):
                counted.append(_count(world, agent, lambda: calls.prepare(claim)))
                calls.unprepare(claim)
        return counted


def _load_profiler(world: World) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(PROFILER), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "PATH_CALLS": f"{world.root}/calls"}


def _count_discovers(world: World, agent: int) -> list[Counter[Place]]:
    """What discovers take, less what the agent does in as long a time without one."""
    scenario = world.root / "scenario.yaml"

    def discover() -> None:
        with scenario.open("a") as file:
            file.write("\n")  # which the backend notices, and which changes no device
        time.sleep(DISCOVER_SECONDS)

    counted = []
    for _ in range(ROUNDS):
        idle = _count(world, agent, lambda: time.sleep(DISCOVER_SECONDS))
        both = _count(world, agent, discover)
        counted.append(both - idle)
    return counted


def _count(world: World, pid: int, work: Callable[[], object]) -> Counter[Place]:
    """The calls of each function in this process while the work is done."""
    path = Path(f"{world.root}/calls.{pid}")
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    _wait(path.exists)
    work()
    os.kill(pid, signal.SIGUSR2)
    _wait(lambda: path.stat().st_size > 0)
    counted: Counter[Place] = Counter()
    for line in path.read_text().splitlines():
        calls, file, name = line.split("\t")
        counted[file, _COMPREHENSION.sub("", name)] += int(calls)
    return counted


def _wait(done: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < end, "the profiler does not answer"
        time.sleep(0.005)


def _fewest(counted: Iterable[Counter[Place]]) -> Counter[Place]:
    return min(counted, key=lambda one: one.total())


def _tell(report: Report, name: str, counted: Counter[Place], limit: Limit) -> bool:
    assert counted, f"{name} was not seen"
    files: dict[str, list[str]] = {}
    by_file: Counter[str] = Counter()
    by_package: Counter[str] = Counter()
    for (path, function), calls in counted.items():
        package = _package(path)
        by_package[package] += calls
        if package.startswith("pydra"):
            files.setdefault(_file(path), []).append(function)
            by_file[_file(path)] += calls
    figures = (
        ("functions of pydra", sum(map(len, files.values())), limit.functions),
        ("files of pydra", len(files), limit.files),
        ("Python calls", counted.total(), limit.calls),
    )
    for what, value, most in figures:
        report.figure(f"{name}: {what}", value, "", f"at most {most}")
    report.note("calls: " + ", ".join(f"{package} {calls}" for package, calls in by_package.most_common()))
    for file, functions in sorted(files.items()):
        report.note(f"{file}: {by_file[file]} calls, {len(functions)} functions: {', '.join(sorted(functions))}")
    return all(value <= most for _, value, most in figures)


def _is_backend(path: str) -> bool:
    """Whether a file is part of the backend's process as it is on a node, without the simulated library."""
    return _package(path).startswith("pydra") and "/simulation/" not in path


def _file(path: str) -> str:
    """The path of a file of this repository without what is the same for all."""
    return re.sub(r"^plugins/[^/]+/", "", path.removeprefix(f"{ROOT}/"))


def _package(path: str) -> str:
    """What a file belongs to: a distribution's package, pydra, or the standard library's module."""
    _, installed, inside = path.partition("/site-packages/")
    if not installed:
        own = _file(path)
        if own != path:
            return own.partition("/")[0]
        standard = get_paths()["stdlib"]
        if not path.startswith(standard):
            return "generated code"
        inside = path.removeprefix(f"{standard}/")
    return inside.partition("/")[0].removesuffix(".py")
