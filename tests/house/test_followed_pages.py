"""Whoever follows a page in an empty directory, writing its files and running its commands, sees what it shows.

A block with a title is a file; Python that is added to a file replaces what has the same name there. A block of sh
without a title is run. The block of text after it shows lines that it prints, in order; dots stand for anything. What
is indented instead of fenced needs a cluster, an index, a terminal or root, and is not run.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.house.pages import FOLLOWED, read

PROGRAMS = ("pip", "pydra", "pydra-agent", "pytest")


@pytest.mark.parametrize("page", FOLLOWED)
def test_following_the_page_gives_what_it_shows(page: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    said = ""
    for block in find_blocks(read(page)):
        if block.title:
            reader.write(block)
        elif block.language == "sh":
            said = reader.run(block.text)
        elif block.language == "text":
            assert_prints(said, block.text)


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    title: str
    text: str


def find_blocks(page: str) -> Iterator[Block]:
    """The fenced blocks in their order."""
    for found in re.finditer(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', page, flags=re.DOTALL | re.MULTILINE):
        yield Block(found[1], found[2] or "", found[3])


class Reader:
    """Somebody at a terminal: where he is and what he exported last from block to block."""

    def __init__(self, directory: Path) -> None:
        self._home = directory / "home"
        self._home.mkdir()
        self._state = directory / "state.sh"
        self._state.write_text(f"cd {self._home}\n")
        self._environment = make_environment(directory / "venv")

    def write(self, block: Block) -> None:
        """Save a file, or add to one."""
        path = Path(self.run("pwd").strip(), block.title)
        if block.language == "python" and path.exists() and not block.text.startswith('"""'):
            path.write_text(merge(path.read_text(), block.text))
        else:
            path.write_text(block.text)

    def run(self, commands: str) -> str:
        """What they print, errors included; the last must succeed, as must each before it."""
        script = f". {self._state}\nset -e\ntrap '{{ export -p; echo cd $PWD; }} >{self._state}' EXIT\n{commands}"
        programs = self._environment / "bin"
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYDRA_"))},
            "PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin",
            # What pip would fetch is in the environment already.
            **{f"PIP_{name}": "1" for name in ("NO_INDEX", "NO_DEPS", "DISABLE_PIP_VERSION_CHECK")},
            "PIP_NO_BUILD_ISOLATION": "0",  # which is pip's way to say that it is on
        }
        done = subprocess.run(
            ["bash", "-c", script],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{commands}ended with {done.returncode}:\n{done.stdout}"
        return done.stdout


def make_environment(path: Path) -> Path:
    """A virtual environment with all that is installed here, into which more can be installed."""
    venv.create(path)
    site = next(path.glob("lib/python*/site-packages"))
    site.joinpath("here.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    for name in PROGRAMS:
        program = Path(sys.executable).with_name(name).read_text()
        copy = path / "bin" / name
        copy.write_text(f"#!{path}/bin/python\n{program.partition(chr(10))[2]}")
        copy.chmod(0o755)
    (path / "bin" / "ruff").symlink_to(Path(sys.executable).with_name("ruff"))  # no script of Python
    return path


def merge(source: str, added: str) -> str:
    """The source with each statement added, in the place of that which gave its name a value before."""
    lines, new_lines = source.splitlines(), added.splitlines()
    old, new = ast.parse(source).body, ast.parse(added).body
    names = {name_of(node) for node in new} - {""}
    imports = ["\n".join(new_lines[slice(*span(node))]) for node in new if is_import(node)]
    others = ["\n".join(new_lines[slice(*span(node))]) for node in new if not is_import(node)]
    for node in reversed(old):
        if name_of(node) in names:
            del lines[slice(*span(node))]
    last_import = max(span(node)[1] for node in old if is_import(node))
    lines[last_import:last_import] = imports
    return "\n".join([*lines, *("\n\n" + text for text in others)]) + "\n"


def span(node: ast.stmt) -> tuple[int, int]:
    """The statement's first line, its decorators included, and the line after it; from 0."""
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    return first - 1, node.end_lineno or first


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def name_of(node: ast.stmt) -> str:
    """The name that a statement gives a value, imports aside."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


def assert_prints(said: str, expected: str) -> None:
    """Lines of the page are lines of the output in the same order; before and after dots they may come in any."""
    for part in re.split(r"^ *\.\.\.\n", expected, flags=re.MULTILINE):
        lines = iter(said.splitlines())
        for line in part.splitlines():
            pattern = ".*".join(map(re.escape, line.strip().split("...")))
            assert any(re.search(pattern, one) for one in lines), f"not printed: {line}\nprinted:\n{said}"
