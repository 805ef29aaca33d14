"""Prints errors and what the tools find out: JSON, tables, findings; with rich on a terminal, where it is installed.

Texts are from anywhere, such as Events that a tenant wrote: what a terminal takes for a command is escaped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from pydra.diagnosis import Finding, Level
from pydra.message_text import escape

_STYLES = {Level.OK: "green", Level.NOTE: "cyan", Level.PROBLEM: "bold red", Level.UNKNOWN: "yellow"}
_MARKS = {"ok": "green", "note": "cyan", "FAIL": "bold red", "skip": "yellow"}
_GAP = "  "


class Table(NamedTuple):
    """Rows of texts below headings. Empty tables are not printed."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


def print_json(value: Any) -> None:
    """Print the value, of Structs, indented."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_tables(*tables: Table) -> None:
    """Print the tables; one with a title comes after an empty line."""
    for given in tables:
        if not given.rows:
            continue
        table = given._replace(rows=[tuple(map(escape, row)) for row in given.rows])
        if table.title:
            print(f"\n{table.title}")
        if _is_rich():
            _print_rich(table)
        else:
            _print_plain(table)


def print_findings(findings: Iterable[Finding]) -> None:
    """Print each finding on a line, and its advice below."""
    found = tuple(findings)
    width = max((len(finding.subject) for finding in found), default=0)
    for finding in found:
        level = _paint(f"{finding.level.value:<7}", _STYLES[finding.level])
        print(f"{level}{_GAP}{finding.subject:<{width}}{_GAP}{escape(finding.found)}")
        if finding.advice:
            print(f"{'':<7}{_GAP}{'':<{width}}{_GAP}-> {escape(finding.advice)}")


def hide_tracebacks(program: str) -> None:
    """Print one line for an exception that nobody expected; its traceback is for people who debug this program."""

    def print_error(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        text = f"internal error: {type(error).__name__}: {error}; `{program} --debug ...` shows the traceback"
        print_errors(program, [text], code=1)

    sys.excepthook = print_error


def print_errors(program: str, problems: Sequence[str], *, code: int) -> int:
    """Print one line for each problem to stderr; return the exit code."""
    for problem in problems:
        print(escape(f"{program}: {problem}", keep="\n"), file=sys.stderr)
    if code == 2:
        print(f"{program}: see {program} --help", file=sys.stderr)
    return code


def print_marked(text: str, mark: str) -> None:
    """Print a check's text, which begins with its mark; in its colour on a terminal."""
    print(_paint(mark, _MARKS[mark]) + text.removeprefix(mark), flush=True)


def _paint(text: str, style: str) -> str:
    if not _is_rich():
        return text
    from rich.console import Console  # noqa: PLC0415 - rich belongs to pydra-dev, and no node has it
    from rich.style import Style  # noqa: PLC0415

    return text if Console().no_color else Style.parse(style).render(text)


def _print_plain(table: Table) -> None:
    lines = [tuple(one.upper() for one in table.columns), *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print(_GAP.join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


def _print_rich(table: Table) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415 - a text may have brackets, which are markup elsewhere

    made = RichTable(*table.columns, box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for row in table.rows:
        made.add_row(*(Text(text, overflow="fold") for text in row))
    Console().print(made)


def _is_rich() -> bool:
    return sys.stdout.isatty() and find_spec("rich") is not None
