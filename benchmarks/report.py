"""Prints figures as they come, each beside its aim."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.floor import Floor
from benchmarks.stats import Timing


class Report:
    """The figures so far, printed and kept."""

    def __init__(self, floor: Floor, machine: str) -> None:
        self.floor = floor
        self.figures: dict[str, float] = {"floor_ms": floor.total * 1000}
        parts = f"GET {floor.get * 1000:.2f} + write {floor.write * 1000:.2f} + call {floor.call * 1000:.2f}"
        print(f"{machine}\nfloor: {floor.total * 1000:.2f} ms = {parts} ms", flush=True)

    def section(self, title: str) -> None:
        """A heading."""
        print(f"\n{title}", flush=True)

    def multiple(self, timing: Timing, aim: str = "") -> None:
        """A timing as a multiple of the floor."""
        times = timing.p50 / self.floor.total
        self.figures[timing.name] = times
        shown = f"{times:6.2f} x floor   {timing.p50 * 1000:8.2f} ms (p95 {timing.p95 * 1000:.2f})"
        self._line(timing.name, shown, aim)

    def parts(self, name: str, timings: Sequence[Timing], note: str, aim: str = "") -> None:
        """What a call took and what of it took the time, in milliseconds: medians, and the p99 of first and last."""
        self.figures |= {f"{name}, {one.name}": one.p50 * 1000 for one in timings}
        first, last = timings[0], timings[-1]
        shown = "  ".join(f"{one.name} {one.p50 * 1000:.2f}" for one in timings)
        tail = f"p99 {first.p99 * 1000:.2f}, {last.name} {last.p99 * 1000:.2f}"
        self._line(name, f"{shown} ms ({tail}; {note})", aim)

    def figure(self, name: str, value: float, unit: str, aim: str = "") -> None:
        """A plain number."""
        self.figures[name] = value
        self._line(name, f"{value:8.2f} {unit}", aim)

    def median(self, name: str, seconds: Sequence[float], aim: str = "") -> None:
        """Durations of one kind of call, in milliseconds."""
        timing = Timing(name=name, seconds=seconds)
        self.figure(name, timing.p50 * 1000, f"ms (p95 {timing.p95 * 1000:.2f})", aim)

    def note(self, text: str) -> None:
        """What a figure is made of."""
        print(f"    {text}", flush=True)

    def _line(self, name: str, shown: str, aim: str) -> None:
        print(f"  {name:<52} {shown:<48} {f'aim: {aim}' if aim else ''}".rstrip(), flush=True)
