"""What every distribution of the repository states about itself, and what it is installed from."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import pydra
from tests.house.pages import PAGES, read
from tests.house.scripts import load

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]


def about(project: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((project / "pyproject.toml").read_text())
    return found


def canonical(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]).lower()


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name if path != ROOT else "core")
def test_every_distribution_is_under_the_apache_license(project: Path) -> None:
    metadata = about(project)["project"]
    assert (metadata["license"], metadata["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert metadata["authors"] == [{"name": "pydra authors"}]
    assert "urls" not in metadata
    assert (project / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name if path != ROOT else "core")
def test_what_a_distribution_needs_to_be_built_and_to_run_is_pinned_by_hash(project: Path) -> None:
    blocks = re.split(r"\n(?=\S)", (ROOT / "constraints.txt").read_text().strip())
    pinned = {canonical(block) for block in blocks if "--hash=sha256:" in block}
    ours = {canonical(about(one)["project"]["name"]) for one in PROJECTS}
    needed = [*about(project)["build-system"]["requires"], *about(project)["project"]["dependencies"]]
    for extra in about(project)["project"].get("optional-dependencies", {}).values():
        needed += extra
    assert {canonical(one) for one in needed} <= pinned | ours


INSTALLED = [
    pytest.param(*found, id=f"{page} {number}")
    for page in PAGES
    for number, found in enumerate(
        re.findall(r"^ *pip install ((?:\S+ )*\./plugins/[^#\n]*|pydra\S*.*).*\n *(.*)", read(page), re.MULTILINE)
    )
]


@pytest.mark.parametrize(("arguments", "after"), INSTALLED)
def test_what_a_page_installs_is_in_the_sources_with_all_that_it_needs(arguments: str, after: str) -> None:
    """No index has pydra's distributions before the first release."""
    given = [one for one in arguments.split() if one.startswith("./") or one == "."]
    assert not re.search(r"(^| )pydra", arguments), "it is taken from an index"
    projects = [about(ROOT / one)["project"] for one in given]
    needed = {canonical(name) for project in projects for name in project["dependencies"]}
    needed |= {"pydra-dev"} if after.startswith("pydra dev") else set()
    ours = {canonical(about(one)["project"]["name"]) for one in PROJECTS}
    assert needed & ours <= {canonical(project["name"]) for project in projects}


def test_what_running_needs_is_taken_from_the_pins_of_development() -> None:
    assert (ROOT / "constraints-run.txt").read_text() == load(ROOT / "hack" / "lock.py").chosen(), "stale: make lock"


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-run.txt"])
def test_pins_have_hashes_and_name_no_index(name: str) -> None:
    text = (ROOT / name).read_text().strip()
    assert [block for block in re.split(r"\n(?=\S)", text) if "==" not in block or "--hash=sha256:" not in block] == []
    assert not re.search(r"://|--(extra-)?index-url|--find-links", text)


def test_hooks_before_a_commit_come_from_the_repository() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {one["repo"] for one in config["repos"]} == {"local"}


def test_the_newest_section_of_the_changelog_is_of_the_version_that_is_built() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == pydra.__version__


def test_towncrier_makes_a_section_of_each_change_since_the_last_release() -> None:
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.9.9", "--dir", str(ROOT)]
    section = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    changes = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    assert [path.name for path in changes if " ".join(path.read_text().split()) not in " ".join(section.split())] == []
