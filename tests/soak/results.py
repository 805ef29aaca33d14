"""What a soak has seen, and its verdict: the same values as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from pydra.cli.output import Table, print_json, print_tables

ALLOWANCE = {"agent memory": 3.0, "backend memory": 3.0}
"""What may come on top, in MiB, since allocators keep what they had once at the same time. All else may not grow."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What happened: a fault with what was done, `seconds` after the start and for `lasted`, at this UTC time."""

    at: str
    seconds: float
    kind: str
    detail: str
    lasted: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A figure before and after the faults; memory in MiB."""

    name: str
    before: float
    after: float
    limit: float

    @property
    def is_met(self) -> bool:
        return self.after <= self.limit


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run. `findings` is empty when nothing is wrong."""

    seed: int
    minutes: float
    comparisons: Sequence[Comparison]
    faults: Sequence[Event]
    skipped: Mapping[str, str]
    samples: Sequence[Mapping[str, float]]
    pods: Mapping[str, float]
    findings: Sequence[str]


def compare(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[Comparison, ...]:
    """Each figure that was taken before, beside what it is now."""
    return tuple(
        Comparison(name=name, before=value, after=after[name], limit=value + ALLOWANCE.get(name, 0))
        for name, value in before.items()
    )


def judge(comparisons: Sequence[Comparison], findings: Sequence[str]) -> tuple[str, ...]:
    """The findings, and a sentence for each figure that grew."""
    grown = [one for one in comparisons if not one.is_met]
    return (*findings, *(f"{one.name} grew from {one.before:g} to {one.after:g}" for one in grown))


def print_results(results: Results, output: str) -> None:
    """Print them, as `json` or as a table."""
    if output == "json":
        print_json(results)
        return
    kinds = sorted({one.kind for one in results.faults})
    lasted = {kind: [one.lasted for one in results.faults if one.kind == kind] for kind in kinds}
    print_tables(
        Table(
            ("what is left", "before", "after", "limit", ""),
            [
                (one.name, *(f"{value:g}" for value in (one.before, one.after, one.limit)), _word(met=one.is_met))
                for one in results.comparisons
            ],
        ),
        Table(
            ("fault", "times", "longest, s"),
            [(kind, str(len(times)), f"{max(times):.1f}") for kind, times in lasted.items()],
            "Faults",
        ),
        Table(("fault", "skipped because"), sorted(results.skipped.items()), "Skipped"),
        Table(("pods", ""), [(name, f"{value:g}") for name, value in results.pods.items()], "Pods"),
        Table(("finding",), [(one,) for one in results.findings], "Findings"),
    )
    print(f"\n{results.minutes:g} minutes, seed {results.seed}: {len(results.findings)} findings")


def _word(*, met: bool) -> str:
    return "ok" if met else "GREW"
