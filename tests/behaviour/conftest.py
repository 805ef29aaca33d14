"""One node for tests that leave it as it was, or one for a test of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.behaviour.node import Agent, Node, run_node


@pytest.fixture
def node() -> Iterator[Node]:
    """A node without an agent, for one test."""
    with run_node() as found:
        yield found


@pytest.fixture(scope="module")
def _quiet_agent() -> Iterator[tuple[Node, Agent]]:
    with run_node() as found:
        yield found, found.serve()


@pytest.fixture
def quiet(_quiet_agent: tuple[Node, Agent]) -> Node:
    """A node with an agent at work, shared by a module's tests: each takes its own devices and ends no agent."""
    node, agent = _quiet_agent
    assert agent.process.poll() is None, "a test before this one has ended the agent"
    return node


@pytest.fixture
def quiet_agent(quiet: Node, _quiet_agent: tuple[Node, Agent]) -> Agent:
    """The agent of `quiet`."""
    return _quiet_agent[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        item.add_marker(pytest.mark.timeout(180))
