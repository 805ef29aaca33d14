"""A process without a free descriptor can open no namespace, and no socket."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pydra_net.kernel import KernelRefused, NamespaceGone
from pydra_net.netlink.kernel import NetlinkKernel


def test_a_namespace_that_cannot_be_opened_now_is_not_taken_for_one_that_has_ended(tmp_path: Path) -> None:
    kernel, path = NetlinkKernel(()), tmp_path / "netns"
    with pytest.raises(NamespaceGone, match="No such file"):
        kernel.open(str(path))
    path.touch()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(KernelRefused, match="Too many open files"):
            kernel.open(str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


WITHOUT_SOCKETS = """
import os, resource
from pydra_net.netlink.kernel import NetlinkKernel
from pydra_net.network_change_types import SetFunction
from pydra_net.network_types import VirtualFunctionState as State

host, free = NetlinkKernel(()).open("/proc/self/ns/net"), os.dup(0)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
states = State(vlan=0), State(trust=False)
operations = [SetFunction(index=99999, number=0, state=one) for one in states]
print(*((str(one), one.passes) for one in NetlinkKernel(()).apply(host, operations)))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to enter a network namespace")
def test_what_needs_a_socket_that_cannot_be_opened_is_told_beside_what_was_done() -> None:
    """Else a virtual function's configuration of which a part was done would count as not begun, and stay."""
    command = [sys.executable, "-c", WITHOUT_SOCKETS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = ("set vlan 0: Too many open files", True), ("set trust False: Too many open files", True)
    assert done.stdout == f"{expected[0]} {expected[1]}\n"
