"""The kernel's numbers and structures that messages have in both directions, by the kernel's names.

Source: linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h, linux/neighbour.h, linux/fib_rules.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

from pyroute2.netlink.rtnl.rtmsg import rtmsg

IFINFOMSG = struct.Struct("=BxHiII")
IFF_UP = 1
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_MASTER, IFLA_LINKINFO, IFLA_IFALIAS = 1, 3, 4, 5, 10, 18, 20
IFLA_AF_SPEC, IFLA_PROP_LIST, IFLA_ALT_IFNAME = 26, 52, 53
IFLA_INFO_KIND, IFLA_INFO_DATA = 1, 2
IFLA_INET_CONF, IFLA_INET6_TOKEN = 1, 7

IFADDRMSG = struct.Struct("=BBBBi")
IFA_ADDRESS, IFA_LOCAL, IFA_LABEL, IFA_BROADCAST, IFA_CACHEINFO = 1, 2, 3, 4, 6
IFA_FLAGS, IFA_RT_PRIORITY, IFA_PROTO = 8, 9, 11

RTMSG = struct.Struct("=BBBBBBBBI")
"""Of rules, too, as fib_rule_hdr."""
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_METRICS = 1, 4, 5, 6, 7, 8
RTA_TABLE, RTA_VIA, RTA_PREF = 15, 18, 20
METRICS: Mapping[int, tuple[str, str]] = dict(enumerate(rtmsg.metrics.nla_map))
"""The names of RTAX_ attributes as pyroute2 has them, and the forms of their values."""

NDMSG = struct.Struct("=BxxxiHBB")
NDA_DST, NDA_LLADDR = 1, 2
NUD_PERMANENT = 0x80

FRA_DST, FRA_SRC, FRA_PRIORITY, FRA_TABLE = 1, 2, 6, 15
FR_ACT_TO_TBL = 1

VERSIONS: Mapping[int, int] = {socket.AF_INET: 4, socket.AF_INET6: 6}
"""The versions of IP by the kernel's families."""
