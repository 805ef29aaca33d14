"""Value types for the report of a conformance run."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check."""

    rule: str
    """The id of a rule in docs/conformance.md."""
    title: str
    """What was checked, as a statement that holds if there are no problems."""
    problems: tuple[str, ...] = ()
    """What is wrong."""
    notes: tuple[str, ...] = ()
    """Advice."""
    skipped: str = ""
    """Why the check was not made; empty if it was."""
    found: str = ""
    """What was found, in a few words."""
    lines: tuple[str, ...] = ()
    """What was found, at length."""

    @property
    def mark(self) -> str:
        """The result in a word: `FAIL`, `skip`, `note` or `ok`."""
        return "FAIL" if self.problems else "skip" if self.skipped else "note" if self.notes else "ok"

    @property
    def is_folded(self) -> bool:
        """Whether it was skipped and has nothing else to say: `Report.skipped` counts it."""
        return self.mark == "skip" and not self.notes

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
    """The backend's name."""
    checks: tuple[Check, ...]
    """Everything that was checked."""

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
        """The result in one line, with the rules that are broken."""
        if self.ok:
            unprepared = next((check.skipped for check in self.checks if check.rule == "prepare" and check.skipped), "")
            limit = f" as far as it was checked: nothing was prepared ({unprepared})" if unprepared else ""
            return f"backend {self.backend} keeps the contract{limit}"
        count = len(self.problems)
        rules = ", ".join(check.rule for check in self.checks if check.problems)
        return f"backend {self.backend} has {count} problem{'s' if count != 1 else ''}: {rules}"

    @property
    def skipped(self) -> tuple[str, ...]:
        """The checks that were not made, one line for each reason."""
        alike: dict[str, list[Check]] = {}
        for check in self.checks:
            if check.is_folded:
                alike.setdefault(check.skipped, []).append(check)
        return tuple(
            one.text if not rest else f"skip  {1 + len(rest)} checks ({why})" for why, (one, *rest) in alike.items()
        )

    @property
    def text(self) -> str:
        """For a terminal: each check that was made, then those that were not, the result at the end."""
        made = (check.text for check in self.checks if not check.is_folded)
        return "\n".join([*made, *self.skipped, self.verdict])


def fold_alike(texts: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """Make one text of those that differ only in the names of devices and in words with digits."""
    known = "|".join(re.escape(one) for one in sorted(names, key=len, reverse=True))
    words = re.compile(rf"(?<![\w.-])(?:{known})(?![\w-])|[\w.-]*\d[\w.-]*" if known else r"[\w.-]*\d[\w.-]*")
    alike: dict[str, list[str]] = {}
    for text in texts:
        alike.setdefault(words.sub("#", text), []).append(text)
    return tuple(one if not rest else _fold(one, rest, words) for one, *rest in alike.values())


def _fold(one: str, rest: list[str], words: re.Pattern[str]) -> str:
    """Append for what else it holds, by the first word in which the texts differ."""
    columns = zip(*(words.findall(text) for text in (one, *rest)), strict=True)
    differing = next((column for column in columns if len(set(column)) > 1), ())
    others = list(dict.fromkeys(differing[1:]))
    shown = ", ".join(others[:2]) + (f" ... {others[-1]}" if len(others) > 2 else "")
    first, newline, details = one.partition("\n")
    return f"{first} (and {len(rest)} more like this: {shown}){newline}{details}"
