"""The reference pages say what the code does, and the README's backend is one that works."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from pydra.cli.tool import build_parser

ROOT = Path(__file__).resolve().parents[2]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_pages_follow_from_the_code() -> None:
    for path, text in load(ROOT / "hack" / "generate_docs.py").pages().items():
        assert path.read_text() == text, f"{path.name} is stale: make docs"


@pytest.mark.parametrize(
    "page", ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").glob("*.md")))]
)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize(
    "page", ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").glob("*.md")))]
)
def test_commands_in_the_pages_exist(page: str) -> None:
    known = {"dev", "check", "backends"}
    parser_help = build_parser().format_help()
    assert all(name in parser_help for name in known)
    for command in re.findall(r"^ +pydra ([a-z]+)", (ROOT / page).read_text(), flags=re.MULTILINE):
        assert command in known, f"{page}: pydra {command}"


def test_the_python_in_the_readme_is_a_backend_of_25_lines() -> None:
    from pydra.backends.check import find_object_violations  # noqa: PLC0415 - this test alone needs it

    source = next(iter(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)))
    code = [line for line in source.splitlines() if line.strip() and not line.strip().startswith('"""')]
    assert len(code) <= 25
    ast.parse(source)
    module = ModuleType("my_fpga")
    exec(compile(source, "README.md", "exec"), module.__dict__)
    assert find_object_violations(module) == ()


@pytest.mark.parametrize("page", ["README.md", "docs/backend.md"])
def test_the_python_in_the_pages_runs(page: str) -> None:
    for source in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL):
        body = ast.parse(source).body
        if not any(isinstance(statement, ast.Raise) for statement in body):  # those are shown inside prepare
            exec(compile(source, page, "exec"), {"__name__": "page"})
