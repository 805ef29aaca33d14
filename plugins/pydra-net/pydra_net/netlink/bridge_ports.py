"""Finds what is set of the ports of bridges, which a bridge forgets when a port leaves.

Source: linux/if_bridge.h, linux/if_link.h; net/bridge/br_if.c has the defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyroute2.iproute.linux import IPRoute

_AF_BRIDGE = 7
_WITH_VLANS = 2
"""RTEXT_FILTER_BRVLAN."""
_PVID_UNTAGGED = 6
_DEFAULTS = {
    "priority": 32,
    "learning": 1,
    "unicast_flood": 1,
    "mcast_flood": 1,
    "bcast_flood": 1,
    "multicast_router": 1,
    **dict.fromkeys(("mode", "guard", "protect", "fast_leave", "mcast_to_ucast", "proxyarp", "proxyarp_wifi"), 0),
    **dict.fromkeys(("vlan_tunnel", "group_fwd_mask", "neigh_suppress", "isolated", "locked", "mab"), 0),
}
"""By the kernel's names, IFLA_BRPORT_ISOLATED; `mode` is hairpin."""


def read_port_settings() -> Mapping[int, tuple[str, ...]]:
    """What is not as the bridge's default, such as `isolated 1` and `VLANs 10, 20`, by the index of the port."""
    with IPRoute() as ip:  # type: ignore[no-untyped-call]
        found = ip.link("dump", family=_AF_BRIDGE, ext_mask=_WITH_VLANS)
        ports = [one for one in found if one.get_attr("IFLA_PROTINFO")]
        bridges = {one.get_attr("IFLA_MASTER") for one in ports}
        default_vlans = {index: _read_default_vlan(ip, index) for index in bridges - {None}}
    settings = {one["index"]: tuple(_list_settings(one, default_vlans)) for one in ports}
    return {index: those for index, those in settings.items() if those}


def _read_default_vlan(ip: Any, bridge: int) -> int:
    for message in ip.link("get", index=bridge):
        info = message.get_attr("IFLA_LINKINFO")
        data: Any = info.get_attr("IFLA_INFO_DATA") if info is not None else None
        return (data.get_attr("IFLA_BR_VLAN_DEFAULT_PVID") if data is not None else None) or 0
    return 0


def _list_settings(port: Any, default_vlans: Mapping[int, int]) -> Iterator[str]:
    settings = port.get_attr("IFLA_PROTINFO")
    for name, default in _DEFAULTS.items():
        if (value := settings.get_attr(f"IFLA_BRPORT_{name.upper()}")) not in (None, default):
            yield f"{name} {value}"
    spec = port.get_attr("IFLA_AF_SPEC")
    vlans = spec.get_attrs("IFLA_BRIDGE_VLAN_INFO") if spec is not None else []
    default = default_vlans.get(port.get_attr("IFLA_MASTER"), 0)
    if {(one["vid"], one["flags"]) for one in vlans} != ({(default, _PVID_UNTAGGED)} if default else set()):
        yield f"VLANs {', '.join(str(one['vid']) for one in vlans) or 'none'}"
