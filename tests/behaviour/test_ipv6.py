"""A cluster that has IPv6 only: everything that the agent listens on or connects to is an address of IPv6."""

from __future__ import annotations

from tests.behaviour.node import run_node
from tests.behaviour.waiting import wait_for


def test_an_agent_publishes_prepares_and_is_scraped_over_ipv6() -> None:
    with run_node(host="::1") as node:
        assert node.server.url.startswith("http://[::1]:")
        agent = node.serve()
        claim = node.api.create_claim("d0")
        node.kubelet.prepare_one(claim)
        wait_for(lambda: "d0" in node.api.devices(), "the devices are published")
        assert agent.metric("process_open_fds") > 0
        node.kubelet.release(claim)
        assert node.is_clean(claim)
        assert agent.stop() == 0
