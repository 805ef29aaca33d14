"""How long claims take, alone and together, on an empty node and on a full one, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.report import Report
from benchmarks.stats import Timing, cpu_seconds, memory_of
from benchmarks.world import Calls, World, open_world
from pydra.kubelet.pb import Claim

DEVICES = 1200
HELD = (0, 100, 1000)
TOGETHER = 32


def measure_claims(report: Report, *, rounds: int, soak: int) -> None:
    """Print the figures with 0, 100 and 1000 claims prepared, then a soak of prepare and unprepare."""
    with open_world() as world:
        claims = world.create_claims(range(DEVICES))
        world.start_agent(DEVICES)
        world.wait_slices(DEVICES)
        with world.kubelet() as calls:
            held: list[Claim] = []
            free = claims[HELD[-1] :]
            for count in HELD:
                for batch in _batches(claims[len(held) : count], 20):
                    calls.prepare(batch)
                    held += batch
                _measure_at(report, world, calls, free, count=count, rounds=rounds)
            _measure_restart(report, world)
        with world.kubelet() as calls:
            for batch in _batches(held, 20):
                calls.unprepare(batch)
            _measure_soak(report, world, calls, free, soak)


def measure_in_turn(
    report: Report, kinds: Mapping[str, tuple[Calls, list[Claim]]], rounds: int
) -> Mapping[str, Timing]:
    """Prepare and unprepare the claims of each kind, a kind after the other in each round; return what prepare took."""
    prepare: dict[str, list[float]] = {name: [] for name in kinds}
    unprepare: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, (calls, claims) in kinds.items():
            begin = time.perf_counter()
            calls.prepare(claims)
            middle = time.perf_counter()
            calls.unprepare(claims)
            prepare[name].append(middle - begin)
            unprepare[name].append(time.perf_counter() - middle)
    timings = {name: Timing(name=f"prepare, {name}", seconds=prepare[name]) for name in kinds}
    for name, timing in timings.items():
        report.multiple(timing)
        report.multiple(Timing(name=f"unprepare, {name}", seconds=unprepare[name]))
    return timings


def _measure_at(report: Report, world: World, calls: Calls, free: Sequence[Claim], *, count: int, rounds: int) -> None:
    assert world.agent is not None
    processes = (world.agent.pid, world.child)
    single, again, undone = [], [], []
    before = cpu_seconds(*processes)
    for number in range(rounds):
        claim = [free[number % len(free)]]
        single.append(_timed(lambda: calls.prepare(claim)))  # noqa: B023 - called at once
        again.append(_timed(lambda: calls.prepare(claim)))  # noqa: B023
        undone.append(_timed(lambda: calls.unprepare(claim)))  # noqa: B023
    spent = cpu_seconds(*processes) - before
    report.multiple(Timing(name=f"prepare, {count} held", seconds=single), "1.8 x")
    report.multiple(Timing(name=f"prepare again, {count} held", seconds=again))
    report.multiple(Timing(name=f"unprepare, {count} held", seconds=undone))
    report.figure(f"CPU of prepare, repeat and unprepare, {count} held", spent / rounds * 1000, "ms")
    sixteen = []
    for _ in range(max(5, rounds // 16)):
        sixteen.append(_timed(lambda: calls.prepare(free[:16])))
        calls.unprepare(free[:16])
    report.multiple(Timing(name=f"16 claims in a call, {count} held", seconds=sixteen), "8 x")
    for together, aim in ((8, ""), (TOGETHER, "300/s")):
        _measure_together(report, calls, free, processes, together=together, count=count, aim=aim)
    report.figure(f"agent RSS, {count} held", memory_of(processes[0]).rss, "MiB", "55")
    report.figure(f"agent PSS, {count} held", memory_of(processes[0]).pss, "MiB")
    report.figure(f"child RSS, {count} held", memory_of(processes[1]).rss, "MiB", "30")


def _measure_together(
    report: Report,
    calls: Calls,
    free: Sequence[Claim],
    processes: tuple[int, ...],
    *,
    together: int,
    count: int,
    aim: str,
) -> None:
    with ThreadPoolExecutor(together) as pool:
        before, begin = cpu_seconds(*processes), time.perf_counter()
        seconds = list(pool.map(lambda claim: _timed(lambda: calls.prepare([claim])), free))
        elapsed, spent = time.perf_counter() - begin, cpu_seconds(*processes) - before
        list(pool.map(lambda claim: calls.unprepare([claim]), free))
    report.multiple(Timing(name=f"prepare, {together} in flight, {count} held", seconds=seconds))
    report.figure(f"claims per second, {together} in flight, {count} held", len(free) / elapsed, "/s", aim)
    report.figure(f"CPU per prepare, {together} in flight, {count} held", spent / len(free) * 1000, "ms", "4 ms")


def _measure_restart(report: Report, world: World) -> None:
    world.stop_agent()
    world.start_agent(DEVICES)
    report.figure("start to registered with 1000 held", world.wait_registered(), "s")


def _measure_soak(report: Report, world: World, calls: Calls, free: Sequence[Claim], claims: int) -> None:
    assert world.agent is not None
    for batch in _batches(free, 16):
        calls.prepare(batch)
        calls.unprepare(batch)
    before = memory_of(world.agent.pid).rss, memory_of(world.child).rss
    spent = cpu_seconds(world.agent.pid, world.child)
    done = 0
    while done < claims:
        for batch in _batches(free, 16):
            calls.prepare(batch)
            calls.unprepare(batch)
            done += len(batch)
    spent = cpu_seconds(world.agent.pid, world.child) - spent
    report.figure(f"CPU seconds per 1000 claims prepared and unprepared, over {done}", spent / done * 1000, "s")
    report.figure(f"agent RSS growth over {done} claims", memory_of(world.agent.pid).rss - before[0], "MiB", "0")
    report.figure(f"child RSS growth over {done} claims", memory_of(world.child).rss - before[1], "MiB", "0")


def _timed(call: Callable[[], None]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _batches(claims: Sequence[Claim], size: int) -> Iterator[list[Claim]]:
    for first in range(0, len(claims), size):
        yield list(claims[first : first + size])
