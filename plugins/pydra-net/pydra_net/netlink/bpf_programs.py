"""The eBPF programs of links: tc filters, tcx and XDP. Source: tc-bpf(8), linux/if_link.h."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pyroute2.iproute.linux import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from pydra_net.kernel import KernelRefused
from pydra_net.netlink import bpf_syscall
from pydra_net.network_change_types import DetachPrograms
from pydra_net.network_types import Programs

_PLACES = (bpf_syscall.TCX_INGRESS, bpf_syscall.TCX_EGRESS)
_PARENTS = (0xFFFFFFF2, 0xFFFFFFF3)
"""Ingress and egress of the qdisc `clsact`."""
_UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ENODEV)
"""What a kernel without tcx answers, one that does not let this process ask, and one whose link has just gone."""


def read_programs(indexes: Sequence[int]) -> Mapping[int, Programs]:
    """The names of programs by the index of the link, of those that have some."""
    found = {}
    with IPRoute() as ip:  # type: ignore[no-untyped-call]
        with_qdisc = {one["index"] for one in ip.get_qdiscs() if one.get_attr("TCA_KIND") in ("clsact", "ingress")}
        for index in indexes:
            filters = [_name_filter(one) for one in _list_filters(ip, index)] if index in with_qdisc else ()
            programs = Programs(filters=tuple(dict.fromkeys(filters)), tcx=tuple(dict.fromkeys(_list_tcx_names(index))))
            if programs != Programs():
                found[index] = programs
    return found


def detach_programs(operation: DetachPrograms) -> None:
    """Detach those of a link. Raises KernelRefused, NetlinkError, OSError."""
    index = operation.index
    with IPRoute() as ip:  # type: ignore[no-untyped-call]
        for one in {one["parent"]: one for one in _list_filters(ip, index)}.values():
            ip.tc("del-filter", index=index, parent=one["parent"])
        for place in _PLACES:
            for program, link in _query(index, place):
                with suppress(FileNotFoundError):  # detached meanwhile
                    if bpf_syscall.read_name(program) not in operation.kept:
                        bpf_syscall.detach(index, place, program, link)
        if not operation.keeps_xdp:
            _detach_xdp(ip, index)


def _detach_xdp(ip: Any, index: int) -> None:
    (message,) = ip.get_links(index)
    xdp = message.get_attr("IFLA_XDP")
    if xdp is None or not xdp.get_attr("IFLA_XDP_ATTACHED"):
        return
    program = xdp.get_attr("IFLA_XDP_PROG_ID") or 0
    try:
        ip.link("set", index=index, xdp_fd=-1)
    except NetlinkError as error:
        if error.code != errno.EBUSY:
            raise
        if not bpf_syscall.detach_xdp_link(index, program):
            raise KernelRefused(f"a bpf link holds the XDP program {program}; end the process that made it") from error


def _list_filters(ip: Any, index: int) -> Iterator[Any]:
    for parent in _PARENTS:
        with suppress(NetlinkError):  # there is no such qdisc
            for one in ip.get_filters(index=index, parent=parent):
                if one.get_attr("TCA_KIND") == "bpf" and one.get_attr("TCA_OPTIONS") is not None:
                    yield one


def _name_filter(message: Any) -> str:
    options = message.get_attr("TCA_OPTIONS")
    name = options.get_attr("TCA_BPF_NAME") if hasattr(options, "get_attr") else None
    return str(name or "bpf").rstrip("\0")


def _list_tcx_names(index: int) -> Iterator[str]:
    for place in _PLACES:
        for program, _ in _query(index, place):
            with suppress(OSError):
                yield bpf_syscall.read_name(program) or str(program)


def _query(index: int, place: int) -> list[tuple[int, int]]:
    try:
        return bpf_syscall.query(index, place)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        return []
