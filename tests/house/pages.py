"""What the tests of pages read in them: blocks, tables, words in code, and the words that the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import pydra
from tests.house.scripts import load

ROOT = Path(__file__).resolve().parents[2]
PAGES = [str(path.relative_to(ROOT)) for path in load(ROOT / "hack" / "site_pages.py").find_pages()]
FOLLOWED = ["docs/tutorial.md", *(page for page in PAGES if page.startswith("docs/howto/"))]
"""Those of which a test does what they say, with backends that only they have."""


def read(page: str) -> str:
    """The page's text."""
    return (ROOT / page).read_text()


def find_yaml(page: str) -> Iterator[Any]:
    """Every document of every block of YAML."""
    for block in re.findall(r"^ *```yaml[^\n]*\n(.*?)```", read(page), flags=re.DOTALL | re.MULTILINE):
        yield from yaml.load_all(block, yaml.CSafeLoader)


def find_rows(page: str, header: str) -> list[list[str]]:
    """The cells of all tables whose first column is called so."""
    found: list[list[str]] = []
    inside = False
    for line in read(page).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == header:
            inside = True
        elif inside and not set(line) <= set("|- "):
            found.append(cells)
    return found


def find_code(text: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", text)


@cache
def read_words() -> str:
    """All texts in pydra's code and in the chart's templates, with a line break in the place of what is filled in."""
    found = [path.read_text() for path in (ROOT / "charts").rglob("*.tpl")]
    for path in Path(pydra.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(one.value) if isinstance(one, ast.Constant) else "\n" for one in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\0".join(found)
