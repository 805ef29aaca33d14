"""Value types for the report of a conformance run."""

from __future__ import annotations

import msgspec


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check; `skipped` says why it was not made, `notes` are advice and not problems.

    `rule` is the id of a rule in docs/conformance.md, which the text shows of a failed check. `found` is a short
    description of what was found, `lines` a long one.
    """

    rule: str
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

    @property
    def text(self) -> str:
        """One line for a terminal, and its problems indented below."""
        beside = self.skipped or (f"rule {self.rule}" if self.problems else self.found)
        lines = [f"{self.mark:<5} {self.title}" + (f" ({beside})" if beside else "")]
        for problem in (*self.problems, *self.notes, *self.lines):
            first, *more = problem.splitlines() or [""]
            lines += [f"      - {first}", *(f"        {line}" for line in more)]
        return "\n".join(lines)


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
    def verdict(self) -> str:
        """The result in one line."""
        count = len(self.problems)
        result = "keeps the contract" if self.ok else f"has {count} problem{'s' if count != 1 else ''}"
        return f"backend {self.backend} {result}"

    @property
    def text(self) -> str:
        """For a terminal: each check, the result at the end."""
        return "\n".join([*(check.text for check in self.checks), self.verdict])
