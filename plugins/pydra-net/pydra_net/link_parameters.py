"""The sizes of GSO and GRO, the sysctls and what else a link has as numbers: their names and order. No I/O.

Names are those of iproute2 and of /proc/sys/net.
Source: linux/if_link.h, linux/ip.h.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

SIZES = {"gso_max_size": 41, "gro_max_size": 58, "gso_ipv4_max_size": 63, "gro_ipv4_max_size": 64}
"""Attributes of a link, which it keeps when it is moved."""
KEPT = {"txqlen": 13, "group": 27}
"""The length of its queue and its group, which it keeps, too, as it keeps its `flags`."""
ATTRIBUTES = {**SIZES, **KEPT}
FLAGS = 0x1380
"""IFF_NOARP, IFF_PROMISC, IFF_ALLMULTI and IFF_MULTICAST; the others follow from what is set elsewhere."""
IPV4 = {"forwarding": 1, "proxy_arp": 3, "rp_filter": 8, "arp_announce": 18, "arp_ignore": 19}
"""What the kernel resets to the defaults of the namespace whenever a link is moved."""
IPV6 = (
    "disable_ipv6",
    "addr_gen_mode",
    "accept_ra",
    "dad_transmits",
    "router_solicitation_delay",
    "router_solicitation_interval",
)
"""Of net/ipv6/conf, for which the kernel has no messages; in the order in which they are set."""

DISABLE_IPV6 = "ipv6/conf/disable_ipv6"
FOR_TOKENS = {"ipv6/conf/accept_ra": 2, "ipv6/conf/router_solicitations": 1}
"""With others, the kernel refuses a token: for a link that takes no advertisements of routers, or asks for none."""


def list_changes(wanted: Mapping[str, int], present: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield what is to be set, in order.

    A small `gso_max_size` sets that of IPv4, too: so if one size is set, all are, the one of IPv4 afterwards.
    """
    sizes = {name: wanted[name] for name in SIZES if name in wanted}
    if any(present.get(name) != value for name, value in sizes.items()):
        yield from sizes.items()
    for name in (*KEPT, "flags", *IPV4):
        if name in wanted and wanted[name] != present.get(name):
            yield name, wanted[name]
