"""A node goes back by two versions: an older agent serves what this one has prepared, from the same records.

The older version, from the history of this repository, is the first whose records have one line. Twice since then they
got fields: `metadata`, and `own_container` of a prepared device.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.behaviour.node import Node

REPOSITORY = os.environ.get("TEST_REPOSITORY", str(Path(__file__).parents[2]))
"""The tests of the wheels run in a copy without the history."""
OLDER = "6ddf4aff44a7"
VERSION = "0.0.1"


@pytest.fixture
def older(tmp_path: Path) -> str:
    """The directory with the older version of the package."""
    command = ["git", "-C", REPOSITORY, "archive", OLDER, "pydra"]
    try:
        archive = subprocess.run(command, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"no git history with {OLDER}, the version to go back to")
    subprocess.run(["tar", "-x", "-C", str(tmp_path)], input=archive, check=True)
    with (tmp_path / "pydra" / "__init__.py").open("a") as module:
        module.write(f'__version__ = "{VERSION}"\n')
    return str(tmp_path)


def test_an_agent_of_two_versions_ago_answers_and_ends_what_was_prepared(older: str, node: Node) -> None:
    agent = node.serve()
    claims = [node.api.create_claim(f"d{number}") for number in range(2)]
    answered = [node.kubelet.prepare_one(claim) for claim in claims]
    files = [path.read_bytes() for claim in claims for path in node.cdi_files(claim)]
    assert agent.stop() == 0
    path = os.pathsep.join([older, str(Path(__file__).parent / "backends")])
    agent = node.serve(forked=False, PYTHONPATH=path, PYTHONSAFEPATH="1")
    assert f"pydra {VERSION} serves board" in agent.messages()
    assert [node.kubelet.prepare_one(claim) for claim in claims] == answered
    assert [path.read_bytes() for claim in claims for path in node.cdi_files(claim)] == files
    node.kubelet.release(claims[0])
    assert node.is_clean(claims[0])
    assert node.board.steps(claims[1]) == ["prepare", "prepared"]
    assert agent.stop() == 0
    node.serve()
    assert node.kubelet.prepare_one(claims[1]) == answered[1]
    node.kubelet.release(claims[1])
    assert node.is_clean(claims[1])
