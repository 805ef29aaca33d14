"""The house: its face says what it offers, its rooms keep their size, its front door is light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pydra

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path
    for folder in ("pydra", "plugins", "tests", "benchmarks", "hack")
    for path in (ROOT / folder).rglob("*.py")
    if "pb" not in path.parts and ".venv" not in path.parts
)


def test_the_face_lists_what_it_offers_sorted() -> None:
    offered = {
        name
        for name, value in vars(pydra).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("pydra.")
    }
    assert set(pydra.__all__) - offered == {"AttributeValue", "Quantity"}, "which are aliases of types, not classes"
    assert offered <= set(pydra.__all__)
    assert list(pydra.__all__) == sorted(pydra.__all__)


def test_examples_import_only_the_public_api() -> None:  # of plugins, import-linter checks it
    imported: set[str] = set()
    for path in (ROOT / "examples").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
            elif isinstance(node, ast.Import):
                imported.update(one.name for one in node.names)
    assert {name for name in imported if name.partition(".")[0] == "pydra"} == {"pydra", "pydra.testing"}


@pytest.mark.parametrize("module", ["pydra", "pydra.backends.child.main"])
def test_what_a_backends_process_imports_holds_nothing_of_kubernetes_or_grpc(module: str) -> None:
    heavy = (
        *("grpclib", "h2", "betterproto2", "kubernetes_asyncio", "aiohttp", "prometheus_client", "yaml"),
        *("anyio", "uvloop", "importlib.metadata"),
    )
    code = f"import sys, {module}; print(*[name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_help_needs_neither_kubernetes_nor_grpc_nor_a_backend() -> None:
    heavy = (
        "grpclib",
        "betterproto2",
        "kubernetes_asyncio",
        "aiohttp",
        "prometheus_client",
        "pydra_sim",
        "uvloop",
        "rich",
    )
    code = (
        "import sys, pydra.cli.agent\n"
        "try: pydra.cli.agent.main(['--help'])\n"
        f"except SystemExit: print('HEAVY', *[name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.rstrip().splitlines()[-1] == "HEAVY"


def test_every_file_says_what_it_is_for_and_has_at_most_700_lines() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in SOURCES}
    assert [name for name, text in texts.items() if len(text.splitlines()) > 700] == []
    docstring = re.compile(r'(#.*\n|\s)*r?"""')
    assert [name for name, text in texts.items() if text.strip() and not docstring.match(text)] == []


def test_no_file_has_a_name_that_says_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "base", "misc", "manager"}
    assert [str(path) for path in SOURCES if path.stem.lstrip("_") in vague] == []


def test_nothing_is_raised_inside_except_star_which_wraps_it_in_a_group_on_some_releases_of_python() -> None:
    texts = {path: path.read_text() for path in SOURCES}
    found = [
        f"{path}:{line.lineno}"
        for path, text in texts.items()
        if "except*" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.TryStar)
        for handler in node.handlers
        for line in ast.walk(handler)
        if isinstance(line, ast.Raise)
    ]
    assert found == []
