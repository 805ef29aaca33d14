"""Claims in the shapes that DRANET's documentation and tests have, as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pydra_net.claim_config import CONFIG_TYPES
from pydra_net.network_types import Ethtool, Feature
from pydra_net.simulation.machine import MACHINE_TYPES
from simulated_node import SimulatedNode

ETH1, ETH2 = "pci-0000-10-00-0", "pci-0000-20-00-0"
FEATURES = {
    "tx-tcp-segmentation": Feature(enabled=True),
    "rx-gro": Feature(enabled=True),
    "rx-lro": Feature(enabled=False, fixed=True),
}
SIZES = dict.fromkeys(("gsoMaxSize", "groMaxSize"), 32768)


def of_router(number: int) -> dict[str, Any]:
    address = f"10.10.{number}0.2/24"
    interface = {"name": f"net{number}", "addresses": [address], "forwarding": True, "vrf": {"name": "test-vrf"}}
    return {"interface": interface}


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        pytest.param({}, None, ["eth1"], id="none"),
        pytest.param(
            {
                "interface": {
                    "name": "dranet0",
                    "addresses": ["169.254.169.14/24"],
                    "mtu": 4321,
                    "hardwareAddr": "00:11:22:33:44:55",
                },
                "ethtool": {
                    "features": {
                        "tcp-segmentation-offload": False,
                        "generic-receive-offload": False,
                        "large-receive-offload": False,
                    }
                },
            },
            None,
            ["dranet0"],
            id="hardware",
        ),
        pytest.param(
            {
                "interface": {"name": "net1", "addresses": ["192.168.100.10/24"]},
                "rules": [
                    {"source": "192.168.100.0/24", "table": 100, "priority": 32000},
                    {"destination": "192.168.200.0/24", "table": 100, "priority": 32000},
                ],
                "routes": [{"destination": "0.0.0.0/0", "table": 100, "gateway": "192.168.100.2"}],
            },
            None,
            ["net1"],
            id="rules",
        ),
        pytest.param(
            {
                "interface": {"type": "IPVLAN", "name": "net1", "addresses": ["169.254.201.10/24"]},
                "routes": [
                    {"destination": "169.254.201.1/32", "scope": 253, "table": 150},
                    {"destination": "169.254.202.0/24", "gateway": "169.254.201.1", "table": 150},
                ],
                "rules": [{"source": "169.254.201.10/32", "table": 150, "priority": 32000}],
            },
            None,
            ["net1"],
            id="ipvlan",
        ),
        pytest.param(
            {
                "interface": {
                    "type": "IPVLAN",
                    "addresses": ["169.254.200.10/24"],
                    "mtu": 1400,
                    **SIZES,
                    "arpIgnore": 1,
                    "arpAnnounce": 2,
                    "acceptRA": 0,
                }
            },
            None,
            ["eth1"],
            id="ipvlan-sizes",
        ),
        pytest.param({"interface": {"disableEbpfPrograms": True}}, None, ["eth1"], id="programs"),
        pytest.param(of_router(1), of_router(2), ["net1", "net2", "test-vrf"], id="vrf"),
        pytest.param(
            {
                "interface": {"name": "net1", "addresses": ["10.10.10.1/24"], "vrf": {"name": "test-vrf"}},
                "routes": [{"destination": "0.0.0.0/0", "gateway": "10.10.10.2", "table": 7}],
            },
            None,
            ["net1", "test-vrf"],
            id="vrf-default-route",
        ),
        pytest.param(
            {
                "interface": {"name": "net1", "addresses": ["169.254.169.13/32"]},
                "routes": [
                    {"destination": "169.254.169.0/24", "gateway": "169.254.169.1"},
                    {"destination": "169.254.169.1/32", "scope": 253},
                ],
            },
            None,
            ["net1"],
            id="routes",
        ),
    ],
)
async def test_a_claim_of_dranet_gives_the_pod_what_it_says(
    first: dict[str, Any], second: dict[str, Any] | None, names: list[str], tmp_path: Path
) -> None:
    node = SimulatedNode(MACHINE_TYPES["server"], tmp_path)
    node.kernel.ethtool["02:00:00:00:00:03"] = Ethtool(features=FEATURES)
    configs = tuple((msgspec.convert(one, CONFIG_TYPES[""]),) for one in (first, second) if one is not None)
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("claim", *(ETH1, ETH2)[: len(configs)], pod="trainer", configs_by_device=configs)
        await agent.start(sandbox)
        assert node.names_in(sandbox) == names
        found = node.kernel.namespaces[sandbox.network_namespace]
        routes = {one.destination for each in found.routes.values() for one in each}
        assert {one["destination"] for one in first.get("routes", ())} <= routes
        await agent.unprepare("claim")
    assert node.is_as_before()
    assert node.kernel.ethtool["02:00:00:00:00:03"].features == FEATURES
