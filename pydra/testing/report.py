"""Value types for the report of a conformance run."""

from __future__ import annotations

import msgspec


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check; `skipped` says why it was not made, `notes` are advice and not problems.

    `found` is a short description of what was found, `lines` a long one.
    """

    title: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: str = ""
    found: str = ""
    lines: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """The result in a word: `FAIL`, `skip`, `note` or `ok`."""
        return "FAIL" if self.problems else "skip" if self.skipped else "note" if self.notes else "ok"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Every check, in the order in which it was made."""

    backend: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether the agent accepts the backend."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that is wrong."""
        return tuple(f"{check.title}: {problem}" for check in self.checks for problem in check.problems)

    @property
    def text(self) -> str:
        """For a terminal: one line for each check, its problems indented below, the result at the end."""
        lines = []
        for check in self.checks:
            beside = check.skipped or check.found
            lines.append(f"{check.mark:<5} {check.title}" + (f" ({beside})" if beside else ""))
            for problem in (*check.problems, *check.notes, *check.lines):
                first, *more = problem.splitlines() or [""]
                lines += [f"      - {first}", *(f"        {line}" for line in more)]
        count = len(self.problems)
        verdict = "keeps the contract" if self.ok else f"has {count} problem{'s' if count != 1 else ''}"
        return "\n".join([*lines, f"backend {self.backend} {verdict}"])
