"""Makes the checks one after the other, and keeps what each has found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from pydra.errors import BackendError, PydraError, SettingsError
from pydra.testing.process_failures import BackendEvents
from pydra.testing.report import Check, fold_alike
from pydra.testing.rules import Rule
from pydra.testing.session import Session

Probe: TypeAlias = Callable[[], Awaitable[Sequence[str]]]
"""Looks for the problems of one rule."""

Progress: TypeAlias = Callable[[str, Check | None], None]
"""Called with the title of each check twice: before it is made, with None, and after it, with the Check."""


class NotChecked(Exception):
    """The check cannot be made; the message says why."""


class Recorder:
    """The checks of one run so far. `notes`, `lines` and `found` are those of the check that is being made."""

    def __init__(self, session: Session, events: BackendEvents, progress: Progress) -> None:
        self.checks: list[Check] = []
        self.notes: list[str] = []
        self.lines: list[str] = []
        self.found = ""
        self.device_names: Sequence[str] = ()
        """Texts that differ only in these are folded."""
        self._session = session
        self._events = events
        self._progress = progress

    async def make(self, rule: Rule, probe: Probe, of: str = "") -> None:
        """Make a check. Without hope, only that of restore has something to say."""
        title, skipped, problems = rule.sentence.format(of), "", tuple[str, ...]()
        self._progress(title, None)
        with self._events.until_hopeless() as scope:
            try:
                if self._events.hopeless and rule is not Rule.RESTORE:
                    raise NotChecked(self._events.hopeless)
                problems = tuple(await probe())
            except NotChecked as why:
                skipped = str(why)
            except BackendError as error:
                self._session.note_timeout(error)
                problems = (f"{error}\n{error.details}".strip(),)
            except SettingsError as error:
                problems = tuple(error.problems)
            except PydraError as error:
                problems = (f"{type(error).__name__}: {error}",)
        self._add(
            Check(
                rule=rule.value,
                title=title,
                problems=fold_alike(problems, self.device_names),
                skipped=self._events.hopeless if scope.cancelled_caught else skipped,
                notes=fold_alike(self.notes, self.device_names),
                found=self.found,
                lines=tuple(self.lines),
            )
        )
        self.notes, self.lines, self.found = [], [], ""

    def skip(self, rule: Rule, why: str) -> None:
        """Record a check that is not made."""
        self._add(Check(rule=rule.value, title=rule.sentence, skipped=why))

    def conclude(self, rule: Rule, problems: Iterable[str]) -> None:
        """Record what other checks have found for this rule."""
        self._add(Check(rule=rule.value, title=rule.sentence, problems=tuple(dict.fromkeys(problems))))

    def has_failed(self, rule: Rule) -> bool:
        """Whether the check of this rule has found problems."""
        return any(check.rule == rule.value and check.problems for check in self.checks)

    def _add(self, check: Check) -> None:
        self.checks.append(check)
        self._progress(check.title, check)
