"""Configs of the installed backends, right and wrong in every way, for everything that must validate them alike."""

from __future__ import annotations

from typing import Any, NamedTuple

SIM = {"apiVersion": "sim.pydra.dev/v1alpha1", "kind": "SimConfig"}
NVIDIA = "resource.nvidia.com/v1beta1"


class Case(NamedTuple):
    """Parameters for a backend.

    `rule`: all that is wrong is a rule in the backend's code, which only code can tell; `own_words`: what is wrong by
    type is reported by the backend's code, too, and first.
    """

    backend: str
    parameters: dict[str, Any]
    right: bool = False
    rule: bool = False
    own_words: bool = False


def sim(**fields: Any) -> dict[str, Any]:
    return {**SIM, **fields}


def gpu(kind: str = "GpuConfig", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": NVIDIA, "kind": kind, **fields}


def mps(**fields: Any) -> dict[str, Any]:
    return {"strategy": "MPS", "mpsConfig": fields}


CASES = (
    Case("sim", sim(), right=True),
    Case("sim", sim(sharing={"strategy": "TimeSliced", "interval": 10}, clockMHz=2000, env={"A_1": "x"}), right=True),
    Case("sim", sim(clockMHz=None), right=True),
    Case("sim", sim(sharing={"interval": 10}), rule=True),
    Case("sim", sim(sharing=None)),
    Case("sim", sim(sharing=[])),
    Case("sim", sim(sharing={"strategy": "timesliced"})),
    Case("sim", sim(sharing={"strategy": "TimeSliced", "interval": 0})),
    Case("sim", sim(sharing={"strategy": "TimeSliced", "interval": 1001})),
    Case("sim", sim(sharing={"strategy": "TimeSliced", "interval": 1.5})),
    Case("sim", sim(sharing={"strategy": 5, "interval": True, "more": 1})),
    Case("sim", sim(clockMHz="fast")),
    Case("sim", sim(clockMHz=199)),
    Case("sim", sim(clockMHz=1500.0)),
    Case("sim", sim(clockMHz=-1500.5)),
    Case("sim", sim(clockmhz=1200)),
    Case("sim", sim(**{"a b": 1, "é": 2})),
    Case("sim", sim(env={"A": 1, "B": "x"})),
    Case("sim", sim(env={"1": "x"})),
    Case("sim", sim(env={"A b": None})),
    Case("sim", sim(env={"A" * 257: "x"})),
    Case("sim", sim(env="A=b")),
    Case("sim", {"kind": "SimConfig"}),
    Case("cpu", {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "2-5"}}, right=True),
    Case("cpu", {"apiVersion": "v1alpha1", "kind": "CpuConfig"}),
    Case("cpu", {"apiVersion": "v1beta1", "cpuConfig": {"cpuset": "2-5"}}),
    Case("cpu", {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": ""}}),
    Case("cpu", {"apiVersion": "v1alpha1", "cpuset": "2-5"}),
    Case("cpu", {"cpuConfig": {"cpuset": "2-5"}}),
    Case("net", {}, right=True),
    Case("net", {"interface": {"name": "net1", "addresses": ["10.0.0.5/24", "fd00::5/64"], "mtu": 9000}}, right=True),
    Case("net", {"apiVersion": "net.pydra.dev/v1alpha1", "kind": "NetworkConfig", "rules": []}, right=True),
    Case("net", {"routes": [{"destination": "10.9.0.0/16", "gateway": "10.0.0.1"}]}, right=True),
    Case("net", {"kind": "NetworkConfig"}),
    Case("net", {"apiVersion": "dra.net/v1", "kind": "NetworkConfig"}),
    Case("net", {"interface": {"name": "a/b"}}),
    Case("net", {"interface": {"name": "sixteen-letters-x"}}),
    Case("net", {"interface": {"addresses": ["10.0.0.5"]}}),
    Case("net", {"interface": {"mtu": 60}}),
    Case("net", {"interface": {"hardwareAddress": "02:00:00:00:00:01"}}),
    Case("net", {"interface": {"hardwareAddr": "02-00-00-00-00-01"}}),
    Case("net", {"interface": {"dhcp": True}}, right=True),
    Case("net", {"interface": {"dhcp": "yes"}}),
    Case("net", {"interface": {"dhcp": True, "addresses": ["10.0.0.5/24"]}}, rule=True),
    Case("net", {"profile": "fast"}),
    Case("net", {"interfaces": {}}),
    Case("net", {"rules": [{"source": "10.0.0.0/8"}]}),
    Case("net", {"interface": {"addresses": ["10.0.0.500/24"]}}, rule=True),
    Case("net", {"interface": {"hardwareAddr": "03:00:00:00:00:01"}}, rule=True),
    Case("net", {"interface": {"arpIgnore": 8, "forwarding": True, "gsoIPv4MaxSize": 70000}}, right=True),
    Case("net", {"interface": {"arpIgnore": 4}}),
    Case("net", {"interface": {"arpAnnounce": 3}}),
    Case("net", {"interface": {"forwarding": "yes"}}),
    Case("net", {"interface": {"groIPv4MaxSize": 524281}}),
    Case("net", {"interface": {"gsoIpv4MaxSize": 70000}}),
    Case("net", {"interface": {"forwarding": True, "addresses": ["fd00::1/64"]}}, right=True),
    Case("net", {"interface": {"type": "IPVLAN", "addressing": "Unnumbered", "ipvlan": {"mode": "L2"}}}, right=True),
    Case("net", {"interface": {"addressing": "DHCP", "acceptRA": 0, "disableIPv6": False}}, right=True),
    Case("net", {"interface": {"addressing": "SLAAC", "type": "IPVLAN"}}, right=True),
    Case("net", {"interface": {"addressing": "slaac"}}),
    Case("net", {"interface": {"addressing": "SLAAC", "addresses": ["fd00::5/64"]}}, rule=True),
    Case("net", {"interface": {"addrGenMode": 2}}),
    Case("net", {"interface": {"routerSolicitationInterval": 0}}),
    Case("net", {"interface": {"addressing": "DHCP", "addresses": ["10.0.0.5/24"]}}, rule=True),
    Case("net", {"interface": {"addressing": "Static", "dhcp": True}}, rule=True),
    Case("net", {"interface": {"name": ".."}}, rule=True),
    Case("net", {"routes": [{"destination": "10.9.0.0/16"}]}, rule=True),
    Case("net", {"routes": [{"destination": "10.9.0.0/16", "gateway": "fd00::1"}]}, rule=True),
    Case("net", {"routes": [{"destination": "10.9.0.1/16", "gateway": "10.0.0.1"}]}, rule=True),
    Case("net", {"rules": [{"source": "10.0.0.0/8", "destination": "fd00::/8", "table": 5}]}, rule=True),
    Case("net", {"ethtool": {"features": {"tso": False, "rx-gro": True}, "privateFlags": {"a b": True}}}, right=True),
    Case("net", {"ethtool": {"features": {"tso": "off"}}}),
    Case("net", {"ethtool": {"features": ["tso"]}}),
    Case("net", {"ethtool": {"channels": {"rx": 4}}}),
    Case("net", {"ethtool": {}, "interface": {"type": "macvlan"}}, rule=True),
    Case("net", {"interface": {"disableEbpfPrograms": True, "vrf": {"name": "blue", "table": 10}}}, right=True),
    Case("net", {"interface": {"disableEbpfPrograms": 1}}),
    Case("net", {"interface": {"vrf": {"name": "blue", "table": 0}}}),
    Case("net", {"interface": {"vrf": {"table": 10}}}),
    Case("net", {"interface": {"vrf": {"name": "blue", "table": 254}}}, rule=True),
    Case("net", {"interface": {"name": "net1", "vrf": {"name": "net1"}}}, rule=True),
    Case("net", {"interface": {"vrf": {"name": "blue"}}, "rules": [{"source": "10.0.0.0/8", "table": 5}]}, rule=True),
    Case("net", {"neighbors": [{"destination": "10.0.0", "hardwareAddr": "02:00:00:00:00:01"}]}, rule=True),
    Case("sim", {"apiVersion": "sim.pydra.dev/v1alpha1"}),
    Case("sim", {}),
    Case("sim", {**SIM, "kind": "simconfig"}),
    Case("sim", {**SIM, "apiVersion": "sim.pydra.dev/v1"}),
    Case("sim", {**SIM, "kind": 7}),
    Case("nvidia", gpu(), right=True),
    Case("nvidia", gpu(sharing=None), right=True),
    Case("nvidia", gpu(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}), right=True),
    Case(
        "nvidia",
        gpu(
            sharing=mps(
                defaultActiveThreadPercentage=50,
                defaultPinnedDeviceMemoryLimit="10Gi",
                defaultPerDevicePinnedMemoryLimit={"0": "5Gi", "GPU-1": 1048576},
                multiUser=True,
            )
        ),
        right=True,
    ),
    Case("nvidia", gpu("MigDeviceConfig", sharing=mps(defaultActiveThreadPercentage=0)), right=True),
    Case("nvidia", gpu("VfioDeviceConfig", iommu={"backendPolicy": "PreferIommuFD"}), right=True),
    Case("nvidia", gpu(sharing={"strategy": "TimeSlicing", "mpsConfig": {}}), rule=True),
    Case("nvidia", gpu(sharing=mps(defaultPinnedDeviceMemoryLimit="1Ki")), rule=True),
    Case("nvidia", gpu(sharing=mps(defaultPinnedDeviceMemoryLimit="a lot")), own_words=True),
    Case("nvidia", gpu(sharing=mps(defaultPinnedDeviceMemoryLimit=1.5)), own_words=True),
    Case("nvidia", gpu(sharing=mps(defaultActiveThreadPercentage=101))),
    Case("nvidia", gpu(sharing=mps(multiUser="yes", thing=1))),
    Case("nvidia", gpu(sharing={})),
    Case("nvidia", gpu(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Tiny"}})),
    Case("nvidia", gpu(sharing={"strategy": "TimeSlicing", "timeslicingConfig": {}})),
    Case("nvidia", gpu("MigDeviceConfig", sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}})),
    Case("nvidia", gpu("VfioDeviceConfig", iommu={"backendPolicy": "Any", "enableAPIDevice": 1})),
    Case("nvidia", gpu("GPUConfig")),
    Case("nvidia", gpu("SimConfig", apiVersion="sim.pydra.dev/v1alpha1")),
)
"""Cases that are neither right nor break a rule are wrong by type: everything that judges configs refuses them."""
