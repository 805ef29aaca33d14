"""The weight: how many lines there are of what runs on a node, of simulators and tools, and of tests."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("pydra", "plugins", "tests", "benchmarks", "hack", "examples", "charts")
TOOLS = {"benchmarks", "hack", "examples", "charts", "pydra-dev", "pydra-sim", "simulation", "testing"}
ROW = re.compile(r"^\| (run on a node|simulators and tools|tests) \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)


def _measure() -> Counter[str]:
    """Lines of Python, generated ones and blank ones too, as `wc -l` counts them."""
    lines: Counter[str] = Counter()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).parts
            if ".venv" in parts:
                continue
            tool = not TOOLS.isdisjoint(parts) or path.name == "pytest_plugin.py"
            part = "tests" if "tests" in parts else "simulators and tools" if tool else "run on a node"
            lines[part] += path.read_bytes().count(b"\n")
    return lines


def test_no_part_has_more_lines_than_its_ceiling() -> None:
    design = (ROOT / "docs" / "design.md").read_text()
    ceilings = {part: int(ceiling.replace(",", "")) for part, _, ceiling in ROW.findall(design)}
    measured = _measure()
    assert set(ceilings) == set(measured)
    print(*(f"{lines:>8,} {part}" for part, lines in measured.items()), sep="\n")  # noqa: T201 - shown by pytest -s
    above = {part: lines for part, lines in measured.items() if lines > ceilings[part]}
    assert above == {}, "delete what is not needed, or raise the ceiling in docs/design.md and say there why"
