"""RDMA of the kernel: a device that software makes on a link, where the kernel has such software."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from namespaces import TestNode, make_node
from net_agent import NetAgent, build_sandbox
from pydra_net.kernel import KernelRefused
from pydra_net.netlink.kernel import NetlinkKernel
from pydra_net.settings import Settings


@pytest.fixture
def node() -> Iterator[TestNode]:
    """A node whose `nic0` has the RDMA device `rxe9`."""
    with make_node() as node:
        making = ["nsenter", f"--net={node.host.path}", "rdma", "link", "add", "rxe9", "type", "rxe", "netdev", "nic0"]
        try:
            made = subprocess.run(making, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("needs the program rdma")
        if made.returncode:
            pytest.skip(f"this machine cannot make an RDMA device: {made.stderr.strip()}")
        yield node


@pytest.fixture
def _nodes_of_rdma() -> None:
    with suppress(FileNotFoundError):  # a machine without modules
        subprocess.run(["modprobe", "--all", "ib_uverbs", "ib_umad", "rdma_ucm"], check=False)


@pytest.mark.usefixtures("_nodes_of_rdma")
async def test_shares_of_an_interface_have_the_device_nodes_of_its_rdma_device(node: TestNode) -> None:
    settings = Settings(
        network_namespace=node.host.path,
        pod_namespaces=str(node.pods),
        nri_socket=str(node.pods.parent / "nri.sock"),
        shared="nic0",
        poll_period=1000.0,
    )
    agent = NetAgent(settings)
    async with agent.runtime.serve(settings.nri_socket), agent.run():
        (device,) = (await agent.backend.discover()).devices
        assert (device.attributes["rdma"], device.attributes["rdmaDevice"]) == (True, "rxe9")
        (prepared,) = await agent.prepare("claim", "nic0/1", pod="trainer")
        nodes = [Path(one.path) for one in prepared.edits.device_nodes]
        # `issm` on older kernels only: that is for the manager of an InfiniBand subnet
        assert {one.name.rstrip("0123456789") for one in nodes} - {"issm"} == {"rdma_cm", "umad", "uverbs"}
        assert all(one.is_char_device() for one in nodes)
        await agent.start(build_sandbox("trainer", node.begin_pod("trainer").path))
        await agent.unprepare("claim")
    node.switch.run("ip link set switch0 down")
    kernel = NetlinkKernel((str(node.pods),))
    host, pod = kernel.open(node.host.path), kernel.open(node.begin_pod("other").path)
    (rdma,) = kernel.read(host).rdma
    assert (rdma.name, rdma.active) == ("rxe9", False)
    with pytest.raises(KernelRefused, match="not supported"):  # in shared mode, and by this driver
        kernel.move_rdma(host, rdma.index, pod)
    host.close()
    pod.close()
