"""The house: its face says what it offers, its rooms keep their size, its front door is light."""

from __future__ import annotations

import ast
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
    assert set(pydra.__all__) == offered
    assert list(pydra.__all__) == sorted(pydra.__all__)


@pytest.mark.parametrize("module", ["pydra", "pydra.backends.child"])
def test_what_a_backends_process_imports_holds_nothing_of_kubernetes_or_grpc(module: str) -> None:
    heavy = ("grpclib", "betterproto2", "kubernetes_asyncio", "aiohttp", "prometheus_client", "yaml")
    code = f"import sys, {module}; print(*[name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == []


def test_help_needs_neither_kubernetes_nor_grpc_nor_a_backend() -> None:
    heavy = ("grpclib", "betterproto2", "kubernetes_asyncio", "aiohttp", "prometheus_client", "pydra_sim", "uvloop")
    code = (
        "import sys, pydra.cli.agent\n"
        "try: pydra.cli.agent.main(['--help'])\n"
        f"except SystemExit: print('HEAVY', *[name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.rstrip().splitlines()[-1] == "HEAVY"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_has_one_purpose_said_at_its_top_and_at_most_400_lines(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), "the file does not say what it is for"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_a_drawer_for_everything(path: Path) -> None:
    assert path.stem.lstrip("_") not in {"utils", "util", "helpers", "helper", "common", "base", "misc", "manager"}


def test_the_changelog_speaks_of_the_version_that_is_built() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert "## Unreleased" in text or f"## {pydra.__version__}" in text
