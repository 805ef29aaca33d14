"""What an examination of a backend found. Values only."""

from __future__ import annotations

import msgspec


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at; `skipped` says why it was not."""

    title: str
    problems: tuple[str, ...] = ()
    skipped: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Every check, in the order in which it was made."""

    backend: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether the agent will take the backend as it is."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that is wrong."""
        return tuple(f"{check.title}: {problem}" for check in self.checks for problem in check.problems)

    @property
    def text(self) -> str:
        """For a terminal: one line a check, its problems indented below, the sum at the end."""
        lines = []
        for check in self.checks:
            mark = "FAIL" if check.problems else "skip" if check.skipped else "ok"
            lines.append(f"{mark:<5} {check.title}" + (f" ({check.skipped})" if check.skipped else ""))
            for problem in check.problems:
                first, *more = problem.splitlines() or [""]
                lines += [f"      - {first}", *(f"        {line}" for line in more)]
        count = len(self.problems)
        verdict = "keeps the contract" if self.ok else f"has {count} problem{'s' if count != 1 else ''}"
        return "\n".join([*lines, f"backend {self.backend} {verdict}"])
