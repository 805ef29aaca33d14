"""Links that lose their carrier: on the node, again and again, or in a pod."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from pydra_net.health import CarrierHistory, diagnose
from pydra_net.network_types import Link
from pydra_net.simulation.machine import MACHINE_TYPES
from simulated_node import SimulatedNode


def link(changes: int) -> Link:
    return Link(index=2, name="eth1", up=True, carrier=True, carrier_changes=changes)


@pytest.mark.parametrize(
    ("looks", "changes"),
    [
        pytest.param([(0, 100), (10, 106)], 6, id="since-the-first-look"),
        pytest.param([(0, 100), (10, 106), (309, 106)], 6, id="within-five-minutes"),
        pytest.param([(0, 100), (10, 106), (311, 106)], 0, id="quiet-for-five-minutes"),
        pytest.param([(0, 0), (200, 4), (400, 8), (600, 12)], 8, id="slowly"),
        pytest.param([(0, 100), (10, 2)], 0, id="another-link"),
        pytest.param([(0, 100), (10, None), (20, 106)], 0, id="was-in-a-pod"),
    ],
)
def test_changes_of_the_carrier_are_counted_for_five_minutes(
    looks: list[tuple[float, int | None]], changes: int
) -> None:
    now = 0.0
    history = CarrierHistory(lambda: now)
    for now, count in looks:  # noqa: B007 - the clock
        found = history.note({} if count is None else {"eth1": link(count)})
    assert found == {"eth1": changes}


@pytest.mark.parametrize(("changes", "reason"), [(5, ""), (6, "LinkFlapping")])
def test_a_link_that_flaps_is_unhealthy(changes: int, reason: str) -> None:
    assert diagnose(link(0), changes=changes).reason == reason


async def test_an_interface_that_loses_its_carrier_in_a_pod_is_unhealthy(tmp_path: Path) -> None:
    node = SimulatedNode(MACHINE_TYPES["server"], tmp_path)
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("claim", "pci-0000-10-00-0", pod="trainer")
        await agent.start(sandbox)
        pod = node.kernel.namespaces[sandbox.network_namespace]
        links = tuple(replace(one, carrier=False) for one in pod.links)
        node.kernel.namespaces[sandbox.network_namespace] = replace(pod, links=links)
        ill = {one.name: one.health.reason for one in (await agent.backend.discover()).devices if one.health.reason}
        assert ill == {"pci-0000-10-00-0": "NoCarrier"}
