"""What is published of a node's interfaces."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from pydra import Device, HealthStatus
from pydra_net.cel_filter import DeviceFilter
from pydra_net.device_names import DRIVER, name_device
from pydra_net.hardware_reader import HardwareReader
from pydra_net.inventory import build_inventory
from pydra_net.network_types import Address, Link, Reading
from pydra_net.settings import Settings
from pydra_net.simulation.kernel import HOST, SimulatedKernel
from pydra_net.simulation.machine import MACHINE_TYPES
from pydra_pci import Roots, Tree

MACHINE = MACHINE_TYPES["server"]


def publish(root: Path, reading: Reading | None = None, **settings: str) -> dict[str, Device]:
    if not (root / "sys").exists():
        MACHINE.write(root)
    kernel = SimulatedKernel({HOST: reading or MACHINE.build()})
    reader = HardwareReader(Tree(Roots(sys=f"{root}/sys")), kernel, kernel.open(HOST), Settings(**settings))
    chosen = DeviceFilter(settings.get("filter", "true"))
    inventory = build_inventory(
        reader.read(),
        (),
        reader.read_hardware,
        reader.find_pci_address,
        selects=lambda device: chosen.selects(DRIVER, device),
    )
    return {device.name: device for device in inventory.devices}


def test_devices_have_the_names_and_attributes_of_dranet(tmp_path: Path) -> None:
    devices = publish(tmp_path)
    assert sorted(devices) == ["dummy0", *(f"pci-0000-{number}0-00-0" for number in range(1, 5))]
    assert devices["pci-0000-30-00-0"].attributes == {
        "ifName": "eth3",
        "mac": "02:00:00:00:00:05",
        "mtu": 9000,
        "encapsulation": "ether",
        "state": "up",
        "type": "device",
        "ipv4": "10.0.5.1/24",
        "virtual": False,
        "carrier": True,
        "ebpf": False,
        "rdma": True,
        "rdmaDevice": "mlx5_3",
        "pciAddress": "0000:30:00.0",
        "pciVendor": "0x15b3",
        "pciDevice": "0x101d",
        "pciSubsystem": "15b3:0016",
        "driver": "mlx5_core",
        "numaNode": 1,
        "sriov": False,
        "shared": False,
        "resource.kubernetes.io/numaNode": 1,
        "resource.kubernetes.io/pcieRoot": "pci0000:01",
        "resource.kubernetes.io/pciBusID": "0000:30:00.0",
    }
    assert devices["dummy0"].attributes["virtual"] is True


@pytest.mark.parametrize(
    ("settings", "offered"),
    [
        ({"interfaces": "eth1,eth2"}, {"eth1", "eth2"}),
        ({"exclude": "eth*"}, {"dummy0"}),
        ({"exclude_types": "device"}, {"dummy0"}),
        ({"exclude_types": "dummy", "interfaces": "eth[34]"}, {"eth3", "eth4"}),
        ({"filter": 'device.attributes["dra.net"].type != "dummy"', "exclude": "eth[234]"}, {"eth1"}),
        ({"filter": 'cel.bind(net, device.attributes["dra.net"], net.type == "dummy")'}, {"dummy0"}),
        ({"filter": 'device.attributes["dra.net"].rdmaDevice.matches("_[12]$")'}, {"eth1", "eth2"}),
        (
            {"filter": 'device.attributes["resource.kubernetes.io"].?numaNode.orValue(9) > 0'},
            {"dummy0", "eth3", "eth4"},
        ),
        ({"node_addresses": "10.0.3.1, 10.0.4.1", "exclude_types": "dummy"}, {"eth3", "eth4"}),
    ],
)
def test_the_admin_chooses_what_is_offered(settings: dict[str, str], offered: set[str], tmp_path: Path) -> None:
    assert {device.attributes["ifName"] for device in publish(tmp_path, **settings).values()} == offered


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("device.attributes[", "filter: cannot be compiled: <input>:1:19: Syntax error"),
        ("nic == 'eth1'", "filter: cannot be compiled: <input>:1:1: undeclared reference to 'nic'"),
        ("device.attributes['dra.net'].size()", "filter: found an expression of type int; it must be a bool"),
    ],
)
def test_an_expression_that_cannot_select_is_refused_with_the_settings(expression: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Settings(filter=expression)


def test_what_stands_for_a_function_in_the_switch_of_a_card_is_not_offered(tmp_path: Path) -> None:
    machine = MACHINE.build()
    card = machine.links[-2]
    links = tuple(
        replace(card, index=90 + number, name=f"{card.name}_{number}", port=port, permanent_mac="")
        for number, port in enumerate(("pf0vf0", "pf0sf7", "c1pf0vf1"))
    )
    reading = replace(machine, links=(*machine.links, *links))
    for settings in ({}, {"shared": "*"}):
        assert publish(tmp_path, reading, **settings).keys() == publish(tmp_path, **settings).keys()


@pytest.mark.parametrize(
    ("settings", "shared"),
    [
        ({"shared": "eth2"}, {"eth2"}),
        ({"shared": "*", "exclude": "eth4"}, {"eth1", "eth2", "eth3", "dummy0"}),
        ({"shared": "*,eth0", "interfaces": "eth1"}, {"eth0", "eth1"}),
        ({"shared": "lo"}, set()),
    ],
)
def test_the_admin_chooses_what_is_shared_and_the_nodes_own_only_by_its_name(
    settings: dict[str, str], shared: set[str], tmp_path: Path
) -> None:
    devices = publish(tmp_path, **settings).values()
    found = {one.attributes["ifName"] for one in devices if one.allow_multiple_allocations}
    assert found == {one.attributes["ifName"] for one in devices if one.attributes["shared"]} == shared


def test_shares_of_an_interface_are_counted_by_the_bandwidth_that_they_ask_for(tmp_path: Path) -> None:
    MACHINE.write(tmp_path)
    (tmp_path / "sys/class/net/eth2").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth2/speed").write_text("25000\n")
    capacity = publish(tmp_path, shared="eth2,eth3")["pci-0000-20-00-0"].capacity["bandwidth"]
    assert capacity == replace(publish(tmp_path)["pci-0000-20-00-0"].capacity["bandwidth"], policy=capacity.policy)
    assert capacity.value == "25000M"
    assert capacity.policy is not None
    assert capacity.policy.default == "0", "who asks for none can still have a share"


def test_an_interface_that_is_switched_off_is_not_scheduled_in_shares(tmp_path: Path) -> None:
    devices = publish(tmp_path, shared="dummy0").values()
    ill = [one.health.message for one in devices if one.health.status is HealthStatus.UNHEALTHY]
    assert ill == ["dummy0 is down, so interfaces on it have no network; run: ip link set dummy0 up"]


def test_a_member_of_a_bond_is_not_shared(tmp_path: Path) -> None:
    reading = MACHINE.build()
    links = tuple(replace(one, master=9) if one.name == "eth2" else one for one in reading.links)
    assert not publish(tmp_path, replace(reading, links=links), shared="eth2")["pci-0000-20-00-0"].attributes["shared"]


def test_no_text_is_longer_than_the_api_allows(tmp_path: Path) -> None:
    """One such text would make the API server refuse the whole slice."""
    reading = MACHINE.build()
    addresses = tuple(Address(address=f"2001:db8:aaaa:bbbb:cccc:dddd:eeee:{number}/64") for number in range(1, 9))
    links = tuple(replace(one, alias="ä" * 100) if one.name == "eth1" else one for one in reading.links)
    reading = replace(reading, links=links, addresses={**reading.addresses, 3: addresses})
    found = publish(tmp_path, reading)["pci-0000-10-00-0"].attributes
    assert found["alias"] == "ä" * 32
    assert found["ipv6"] == "2001:db8:aaaa:bbbb:cccc:dddd:eeee:8/64", "only whole addresses, the oldest first"


def test_interfaces_at_one_usb_controller_are_devices_of_their_own(tmp_path: Path) -> None:
    reading, folder = MACHINE.build(), tmp_path / "sys/bus/usb/devices"
    links = [Link(index=20 + number, name=f"usb{number}", parent=f"usb/2-{number}:1.0") for number in (1, 2)]
    MACHINE.write(tmp_path)
    folder.mkdir(parents=True)
    for number in (1, 2):
        (folder / f"2-{number}:1.0").symlink_to(
            f"../../../devices/pci0000:00/0000:00:14.0/usb2/2-{number}/2-{number}:1.0"
        )
    found = publish(tmp_path, replace(reading, links=(*reading.links, *links)))
    assert found["pci-0000-00-14-0-2-1-1-0"].attributes["ifName"] == "usb1"
    assert found["pci-0000-00-14-0-2-2-1-0"].attributes["ifName"] == "usb2"


def test_an_interface_without_carrier_is_unhealthy(tmp_path: Path) -> None:
    reading = MACHINE.build()
    links = tuple(replace(one, carrier=False) if one.name == "eth2" else one for one in reading.links)
    devices = publish(tmp_path, replace(reading, links=links))
    ill = {name: one.health.message for name, one in devices.items() if one.health.status is HealthStatus.UNHEALTHY}
    assert ill == {"pci-0000-20-00-0": "eth2 has no carrier; check its cable and the switch"}


@pytest.mark.parametrize(
    ("link", "address", "port", "name"),
    [
        (Link(index=2, name="eth1"), "0000:8a:00.0", 0, "pci-0000-8a-00-0"),
        (Link(index=2, name="eth1"), "10000:8a:00.1", 1, "pci-10000-8a-00-1-port1"),
        (Link(index=2, name="eth1_0", port="pf0vf3"), "0000:8a:00.0", 0, "pci-0000-8a-00-0-pf0vf3"),
        (Link(index=2, name="eth1", port="p0"), "0000:8a:00.0", 0, "pci-0000-8a-00-0"),
        (Link(index=2, name="eth1", parent="virtio/virtio3"), "0000:8a:00.0", 0, "pci-0000-8a-00-0"),
        (Link(index=2, name="eth1", parent="usb/2-1.4:1.0"), "0000:00:14.0", 0, "pci-0000-00-14-0-2-1-4-1-0"),
        (
            Link(index=2, name="sf4", parent="auxiliary/mlx5_core.sf.4"),
            "0000:8a:00.0",
            0,
            "pci-0000-8a-00-0-mlx5-core-sf-4",
        ),
        (Link(index=2, name="ib0.8001", kind="ipoib", lower=3), "0000:8a:00.0", 0, "net-nfrdalrygaydc"),
        (Link(index=2, name="dummy0"), "", 0, "dummy0"),
        (Link(index=2, name="bond0.100"), "", 0, "net-mjxw4zbqfyytama"),
    ],
)
def test_devices_are_named_by_their_place(link: Link, address: str, port: int, name: str) -> None:
    assert name_device(link, address, port) == name
