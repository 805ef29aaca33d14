"""Sets a link's parameters, by a message of which pyroute2 lacks the parts. Source: linux/if_link.h."""

from __future__ import annotations

from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST, nla, nlmsg
from pyroute2.netlink.rtnl import RTM_SETLINK

from pydra_net.link_parameters import IPV4, SIZES


class _Values(nla):
    nla_map = tuple((number, name, "uint32") for name, number in IPV4.items())  # type: ignore[assignment]


class _Inet(nla):
    nla_map = ((1, "IFLA_INET_CONF", "numbers"),)  # type: ignore[assignment]
    numbers = _Values


class _Families(nla):
    nla_map = ((2, "AF_INET", "inet"),)  # type: ignore[assignment]
    inet = _Inet


class _LinkParameters(nlmsg):
    fields = (("family", "B"), ("__align", "x"), ("type", "H"), ("index", "i"), ("flags", "I"), ("change", "I"))  # type: ignore[assignment]
    nla_map = (  # type: ignore[assignment]
        *((number, name, "uint32") for name, number in SIZES.items()),
        (26, "IFLA_AF_SPEC", "families"),
    )
    families = _Families


def set_parameter(ip: Any, index: int, name: str, value: int) -> None:
    """Set it, and wait for the kernel's answer. Raises NetlinkError."""
    message = _LinkParameters()  # type: ignore[no-untyped-call]
    message["index"] = index
    if name in SIZES:
        message["attrs"] = [(name, value)]
    else:
        conf = {"attrs": [("IFLA_INET_CONF", {"attrs": [(name, value)]})]}
        message["attrs"] = [("IFLA_AF_SPEC", {"attrs": [("AF_INET", conf)]})]
    message["header"] = {"type": RTM_SETLINK, "flags": NLM_F_REQUEST | NLM_F_ACK}
    ip.nlm_request_batch([message])
