"""One node for tests that leave it as it was, or one for a test of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.behaviour.node import DEVICES, Agent, Node, run_node
from tests.behaviour.waiting import wait_for


@pytest.fixture
def node() -> Iterator[Node]:
    """A node without an agent, for one test."""
    with run_node() as found:
        yield found


@pytest.fixture(scope="module")
def _quiet_agent() -> Iterator[tuple[Node, Agent]]:
    with run_node() as found:
        yield found, found.serve("--healthy-after", "0.1")


@pytest.fixture
def quiet(_quiet_agent: tuple[Node, Agent]) -> Node:
    """A node with an agent at work, shared by a module's tests: each takes its own devices and ends no agent."""
    node, agent = _quiet_agent
    assert not agent.has_ended(), "a test before this one has ended the agent"
    return node


@pytest.fixture
def quiet_agent(quiet: Node, _quiet_agent: tuple[Node, Agent]) -> Agent:
    """The agent of `quiet`."""
    return _quiet_agent[1]


@pytest.fixture
def changing(quiet: Node) -> Iterator[Node]:
    """`quiet` for a test that changes what devices there are; afterwards they are as before."""
    yield quiet
    quiet.board.restore_devices()
    wait_for(lambda: quiet.api.devices().keys() == set(DEVICES), "the devices from before are published")
    wait_for(lambda: not quiet.api.taints(), "none of them is tainted")
