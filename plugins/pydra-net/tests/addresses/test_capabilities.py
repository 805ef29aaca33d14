"""What the agent's container may do in the chart is enough for all sockets that a pod's namespace needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from namespaces import find_problem, make_node

VALUES = Path(__file__).resolve().parents[4] / "charts" / "pydra" / "values.yaml"
OPENS = """
import sys
from pydra_net.netlink.kernel import NetlinkKernel
kernel = NetlinkKernel(())
pod = kernel.open(sys.argv[1])
link = kernel.read_links(pod).find_name("lo")
kernel.watch(pod)
kernel.open_packets(pod, link.index, "")
kernel.open_packets(pod, link.index, "10.0.0.5")
assert kernel.find_user(pod, link, "10.0.0.5") == ""
"""


def test_the_charts_capabilities_are_enough_for_dhcp() -> None:
    if problem := find_problem():
        pytest.skip(problem)
    names = yaml.safe_load(VALUES.read_text())["backends"]["net"]["capabilities"]
    only = ",".join(["-all", *(f"+{name.lower()}" for name in names)])
    with make_node() as node:
        command = ["setpriv", f"--bounding-set={only}", "--inh-caps=-all", sys.executable, "-c", OPENS]
        done = subprocess.run([*command, node.begin_pod("trainer").path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
