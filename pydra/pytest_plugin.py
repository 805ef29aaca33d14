"""Runs the conformance checks as tests: `pytest --pydra-backend NAME`.

Each rule of docs/conformance.md is a test, `NAME::RULE`; a rule that does not concern the backend, and a check that
could not be made, is skipped with the reason. All checks are made once, before the first of these tests. The option can
be given several times, and takes what `pydra check` takes. Loaded by pytest wherever pydra is installed, so it imports
nothing of pydra before it has something to do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pydra.testing.report import Report
    from pydra.testing.rules import Rule


class RuleBroken(Exception):
    """The backend breaks the rule; the message has each problem."""


class BackendRules(pytest.Collector):
    """The rules, for one backend."""

    def collect(self) -> Iterator[RuleItem]:
        """Yield a test for each rule."""
        from pydra.testing.rules import Rule  # noqa: PLC0415

        return (RuleItem.from_parent(self, name=rule.value, rule=rule) for rule in Rule)

    @cached_property
    def report(self) -> Report:
        """The report of all checks, which are made now. Raises SettingsError."""
        from pydra.backends.discovery import locate_file  # noqa: PLC0415
        from pydra.testing.run import check_backend  # noqa: PLC0415

        target, directory = locate_file(self.name)
        if directory:
            sys.path.insert(0, directory)
        return check_backend(target)


class RuleItem(pytest.Item):
    """One rule."""

    def __init__(self, *, rule: Rule, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._rule = rule

    def runtest(self) -> None:
        """Look the rule up in the backend's report."""
        assert isinstance(self.parent, BackendRules)
        checks = [check for check in self.parent.report.checks if check.rule == self._rule.value]
        problems = [f"{check.title}: {problem}" for check in checks for problem in check.problems]
        if problems:
            raise RuleBroken("\n".join([*problems, f"why: {self._rule.reason}"]))
        if not checks:
            pytest.skip("it does not concern this backend")
        if all(check.skipped for check in checks):
            pytest.skip(checks[0].skipped)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *arguments: Any) -> Any:
        """Return the problems without the traceback of this plugin."""
        from pydra.errors import PydraError  # noqa: PLC0415

        if isinstance(excinfo.value, RuleBroken | PydraError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *arguments)

    def reportinfo(self) -> tuple[str, None, str]:
        """Return the backend and the rule, for the summary."""
        assert self.parent is not None
        return self.parent.name, None, f"{self.parent.name}: {self._rule.value}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--pydra-backend`."""
    group = parser.getgroup("pydra", "conformance of pydra backends")
    text = "check an installed backend, a file, or module:attribute, against the conformance rules"
    group.addoption("--pydra-backend", action="append", default=[], metavar="NAME", help=text)


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Append the rules of each backend that was named."""
    for name in config.getoption("--pydra-backend"):
        items += BackendRules.from_parent(session, name=name, nodeid=name.rstrip(":")).collect()
