"""Network namespaces of a test, with interfaces; nothing of the machine's own network is touched."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_LINKS = {
    "veth": "ip link add test0 type veth peer name test1",
    "dummy": "ip link add test0 type dummy",
    "bond": "ip link add test0 type bond; ip link add test1 type dummy",
    "macvlan": "ip link add nic0 type veth peer name nic1; ip link add link nic0 name test0 type macvlan mode bridge",
    "ipvlan": "ip link add nic0 type veth peer name nic1; ip link add link nic0 name test0 type ipvlan mode l2",
    "vlan": "ip link add nic0 type veth peer name nic1; ip link add link nic0 name test0 type vlan id 5",
    "vxlan": "ip link add test0 type vxlan id 5 dstport 4789",
    "vrf": "ip link add test0 type vrf table 9",
}


def find_problem(kind: str = "veth") -> str:
    """Why this machine cannot make network namespaces, or links of this kind; empty if it can."""
    if os.geteuid():
        return "needs root, for network namespaces"
    command = ["unshare", "--net", "sh", "-ec", _LINKS[kind]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "needs unshare and ip"
    return f"this machine cannot make a {kind} link: {done.stderr.strip()}" if done.returncode else ""


class TestNamespace:
    """A network namespace that is mounted at a path, as container runtimes do it."""

    __test__ = False

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        path.touch()
        subprocess.run(["unshare", f"--net={path}", "true"], check=True, capture_output=True)
        self.run("ip link set lo up")

    def run(self, commands: str) -> str:
        """The output of shell commands in the namespace."""
        done = subprocess.run(
            ["nsenter", f"--net={self.path}", "sh", "-ec", commands], capture_output=True, text=True, check=False
        )
        assert not done.returncode, f"{commands}: {done.stderr}"
        return done.stdout

    def links(self) -> list[str]:
        """The names of its links, without the loopback interface."""
        lines = self.run("ip -o link").splitlines()
        return sorted(name for line in lines if (name := line.split(": ")[1].partition("@")[0]) != "lo")

    def describe(self, link: str) -> str:
        """All that is configured on a link, in the words of iproute2, without what changes by itself."""
        return self.run(
            f"ip -o link show {link} | sed 's/^[0-9]*: //; s/ state [A-Z]* / /; s/NO-CARRIER,//; s/,LOWER_UP//; "
            "s/,M-DOWN//; s/link-netnsid [0-9]*//; s/@[^:]*:/:/; s/ qdisc [a-z_]* / /; s/ permaddr [0-9a-f:]*//';"
            f"ip -o -4 addr show dev {link} | sed 's/^[0-9]*: //';"
            f"ip -o -6 addr show dev {link} scope global | sed 's/^[0-9]*: //; s/ nodad//';"
            f"ip route show table all dev {link} | grep -v -e fe80 -e ff00 -e 'table local' | sort;"
            f"ip -6 route show table all dev {link} | grep -v -e fe80 -e ff00 -e 'table local' | sort;"
            f"ip neigh show nud permanent dev {link}"
        )

    def end(self) -> None:
        """Unmount it: it ends when nothing is in it and nobody has it open."""
        subprocess.run(["umount", "--lazy", self.path], check=False, capture_output=True)
        Path(self.path).unlink(missing_ok=True)


class TestNode:
    """A node's namespace with an uplink and the interface `nic0`, whose other end is `switch0` of another namespace."""

    __test__ = False

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: list[TestNamespace] = []
        self.pods = root / "netns"
        self.pods.mkdir()
        self.host = self._make(root / "host")
        self.switch = self._make(root / "switch")
        self.host.run(
            f"""
            ip link add up0 type veth peer name up1 netns {self.switch.path}
            ip link add nic0 type veth peer name switch0 netns {self.switch.path}
            ip link set up0 up
            ip addr add 192.0.2.10/24 dev up0
            ip route add default via 192.0.2.1
            ip link set nic0 mtu 1400 alias storage
            ip link set nic0 up
            ip addr add 10.0.0.1/24 dev nic0
            ip addr add fd00::1/64 dev nic0 nodad
            ip route add 10.5.0.0/16 via 10.0.0.9 metric 7 mtu 1300
            ip route add 10.6.0.0/16 via 10.0.0.9 table 100
            ip route add fd05::/32 via fd00::9
            ip rule add from 10.0.0.0/24 table 100 priority 500
            ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev nic0 nud permanent
            """
        )
        self.switch.run("ip link set switch0 up; ip link set up1 up")

    def _make(self, path: Path) -> TestNamespace:
        made = TestNamespace(path)
        self._made.append(made)
        return made

    def begin_pod(self, name: str) -> TestNamespace:
        """The namespace of a pod."""
        return self._make(self.pods / name)

    def close(self) -> None:
        for one in self._made:
            one.end()


@contextmanager
def make_node() -> Iterator[TestNode]:
    """A node in a directory of its own, whose path is short enough for sockets."""
    if problem := find_problem():
        pytest.skip(problem)
    with tempfile.TemporaryDirectory(prefix="net", dir="/tmp", ignore_cleanup_errors=True) as root:
        node = TestNode(Path(root))
        try:
            yield node
        finally:
            node.close()
