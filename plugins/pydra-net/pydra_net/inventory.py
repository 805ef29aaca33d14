"""Builds what is published: devices with the names and attributes of DRANET, and more. No I/O.

Source: kubernetes-sigs/dranet, its attributes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from pydra import (
    AttributeValue,
    Capacity,
    CapacityRange,
    Device,
    Health,
    HealthStatus,
    HeldClaim,
    Inventory,
    RequestPolicy,
)
from pydra_net.hardware_types import Hardware, Node
from pydra_net.health import diagnose, diagnose_lost, diagnose_rdma
from pydra_net.interface_state import read_interface
from pydra_net.network_types import Interface, Link, Programs
from pydra_net.steps_of_held_claims import list_gives, list_rdma

MOST_BYTES = 64
"""Of a string attribute."""

_ENCAPSULATIONS = {
    1: "ether",
    32: "infiniband",
    512: "ppp",
    768: "tunnel",
    769: "tunnel6",
    772: "loopback",
    65534: "none",
}
_HARDWARE = "device"


def build_inventory(
    node: Node,
    held: Sequence[HeldClaim],
    read_hardware: Callable[[str], Hardware],
    find_pci_address: Callable[[Link], str],
    problem: str = "",
    *,
    selects: Callable[[Device], bool] = lambda _: True,
    lost: Mapping[str, str] = {},
    changes: Mapping[str, int] = {},
    in_pods: Mapping[str, Link] = {},
) -> Inventory:
    """Return the interfaces that claims can have, those that are in pods included, if the admin selects them.

    With a problem, none can be moved now. `lost` says by keys of steps which claims do not have theirs any more, and
    `changes` how often devices lost or got carrier; `in_pods` has the links of those that are in pods.
    """
    trouble = Health(status=HealthStatus.UNHEALTHY, reason="CannotMove", message=problem) if problem else None
    found: dict[str, Device] = {}
    for name, link in node.devices.items():
        offered, is_shared = node.rdma.get(name), name in node.shared
        rdma = offered.device if offered else None
        found[name] = _build_device(
            name,
            read_interface(node, name, link),
            _read(read_hardware, find_pci_address(link)),
            rdma.name if rdma else None,
            trouble or diagnose(link, rdma, is_shared=is_shared, changes=changes.get(name, 0)),
            is_shared=is_shared,
        )
    given = {one.device: one.name for one in list_rdma(held)}
    devices = {one.name: one for one in node.reading.rdma}
    for give in list_gives(held):
        if give.device not in found:
            moved, its_rdma = in_pods.get(give.key), given.get(give.device)
            found[give.device] = _build_device(
                give.device,
                replace(give.before, programs=Programs()),
                _read(read_hardware, give.pci_address),
                its_rdma,
                trouble or (diagnose(moved, devices.get(its_rdma or "")) if moved else Health()),
            )
        if message := lost.get(give.key):
            found[give.device] = replace(found[give.device], health=diagnose_lost(message))
    for name, one in node.rdma.items():
        if one.alone and name not in found:
            found[name] = _build_lone(name, one.device.name, read_hardware(one.pci_address), diagnose_rdma(one.device))
    for rdma_step in list_rdma(held):
        if rdma_step.alone and rdma_step.device not in found:
            hardware = read_hardware(rdma_step.pci_address)
            found[rdma_step.device] = _build_lone(rdma_step.device, rdma_step.name, hardware, Health())
    return Inventory(devices=tuple(device for _, device in sorted(found.items()) if selects(device)))


def _build_lone(name: str, rdma: str, hardware: Hardware, health: Health) -> Device:
    """An RDMA device without an interface."""
    attributes = {"rdma": True, "rdmaDevice": rdma, "virtual": False, **_list_hardware(hardware)}
    return Device(name=name, attributes=dict(_keep_valid(attributes)), health=health)


def _read(read_hardware: Callable[[str], Hardware], pci_address: str) -> Hardware | None:
    return read_hardware(pci_address) if pci_address else None


def _build_device(
    name: str,
    interface: Interface,
    hardware: Hardware | None,
    rdma: str | None,
    health: Health,
    *,
    is_shared: bool = False,
) -> Device:
    """The bandwidth is that of the link, if it is known: a claim has all, or with others a share that it asks for.

    It is counted, not enforced; who asks for none has what others leave.
    """
    attributes = {"shared": is_shared, "rdma": rdma is not None, "rdmaDevice": rdma}
    policy = RequestPolicy(default="0", valid_range=CapacityRange(min="0")) if is_shared else None
    return Device(
        name=name,
        attributes=dict(_keep_valid({**attributes, **dict(_list_attributes(interface, hardware))})),
        capacity={"bandwidth": Capacity(f"{interface.speed}M", policy)} if interface.speed else {},
        allow_multiple_allocations=is_shared,
        health=health,
    )


def _keep_valid(attributes: Mapping[str, AttributeValue | None]) -> Iterator[tuple[str, AttributeValue]]:
    """Those that have a value, cut to what the API takes."""
    for name, value in attributes.items():
        if value not in ("", None):
            yield name, cut(value) if isinstance(value, str) else value


def cut(text: str) -> str:
    """As much of a text as an attribute can have."""
    return text.encode()[:MOST_BYTES].decode(errors="ignore")


def _list_attributes(interface: Interface, hardware: Hardware | None) -> Iterator[tuple[str, AttributeValue | None]]:
    link, programs = interface.link, interface.programs
    yield "ifName", link.name
    yield "mac", link.mac
    yield "mtu", link.mtu
    yield "encapsulation", _ENCAPSULATIONS.get(link.hardware, "")
    yield "alias", link.alias
    yield "state", link.state
    yield "type", link.kind or _HARDWARE
    yield "ipv4", _join_addresses(interface, 4)
    yield "ipv6", _join_addresses(interface, 6)
    yield "virtual", hardware is None
    yield "carrier", link.carrier
    yield "ebpf", bool(link.has_xdp or programs.filters or programs.tcx)
    yield "tcFilterNames", ",".join(programs.filters)
    yield "tcxProgramNames", ",".join(programs.tcx)
    yield "linkSpeedMbps", interface.speed or None
    if hardware is not None:
        yield from _list_hardware(hardware).items()


def _list_hardware(hardware: Hardware) -> Mapping[str, AttributeValue | None]:
    return {
        "pciAddress": hardware.address,
        "pciVendor": hardware.vendor,
        "pciDevice": hardware.device,
        "pciSubsystem": hardware.subsystem,
        "driver": hardware.driver,
        "numaNode": hardware.numa,
        "resource.kubernetes.io/numaNode": hardware.numa,
        "resource.kubernetes.io/pcieRoot": hardware.root,
        "resource.kubernetes.io/pciBusID": hardware.address,
        "sriov": hardware.virtual_functions >= 0,
        "sriovVfs": hardware.virtual_functions if hardware.virtual_functions >= 0 else None,
        "sriovTotalVfs": hardware.most_virtual_functions or None,
        "isSriovVf": hardware.is_virtual_function or None,
    }


def _join_addresses(interface: Interface, family: int) -> str:
    """Those that others can reach, as many as fit whole."""
    joined = ""
    for one in interface.addresses:
        if one.family == family and not ipaddress.ip_interface(one.address).ip.is_link_local:
            longer = f"{joined},{one.address}" if joined else one.address
            if len(longer) > MOST_BYTES:
                break
            joined = longer
    return joined
