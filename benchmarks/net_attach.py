"""What a pod waits for its interface, in network namespaces of this kernel: the sandbox, the container. Needs root.

Also the move by itself, without the runtime: what is beside the CPU time is the kernel's, which waits for all CPUs.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.report import Report
from benchmarks.stats import time_call
from pydra import AllocatedDevice, Claim, HeldClaim, PodRef, StepStage, describe_step
from pydra_net.apply_interface import Mover
from pydra_net.apply_share import Sharer
from pydra_net.claim_config import NetworkConfig
from pydra_net.composition import open_backend
from pydra_net.netlink.kernel import NetlinkKernel
from pydra_net.network_types import Interface
from pydra_net.plan_share import plan_share
from pydra_net.settings import Settings
from pydra_net.steps import GiveInterface
from pydra_net.wanted_state_in_pod import find_state_in_pod
from pydra_nri import Container, LinuxNamespace, LinuxPodSandbox, PodSandbox
from pydra_nri.simulation.runtime import FakeRuntime

MAC = "02:00:00:00:00:55"
ADDRESSES = {"addresses": ["10.1.0.5/24", "fd01::5/64"]}
NINE = {
    "interface": {**ADDRESSES, "mtu": 1300, "hardwareAddr": MAC, "arpIgnore": 1, "forwarding": True},
    "routes": [{"destination": f"10.{net}.0.0/16", "gateway": "10.1.0.1"} for net in (8, 9)],
    "neighbors": [{"destination": "10.1.0.9", "hardwareAddr": MAC}],
}
POD = PodRef(uid="pod", namespace="default", name="pod")
DEVICE = AllocatedDevice(request="nic", pool="node", device="nic0")


def measure_net_attach(report: Report, *, rounds: int) -> None:
    """A whole interface and a share, with nothing and nine things configured: the median and the fastest tenth."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        host, pod = Path(root, "host"), Path(root, "pod")
        for path in (host, pod):
            path.touch()
            subprocess.run(["unshare", f"--net={path}", "true"], check=True)
        make = "ip link add nic0 type veth peer name nic1; ip link set nic0 up; ip link set nic1 up"
        subprocess.run(["nsenter", f"--net={host}", "sh", "-ec", make], check=True)
        try:
            _measure(report, str(host), str(pod), rounds)
            asyncio.run(_measure_pods(report, root, rounds))
        finally:
            subprocess.run(["umount", "--lazy", host, pod], check=True)


async def _measure_pods(report: Report, root: str, rounds: int) -> None:
    settings = Settings(network_namespace=f"{root}/host", nri_socket=f"{root}/nri.sock", exclude_types="")
    sandbox = PodSandbox(
        id="sandbox",
        uid=POD.uid,
        pid=1,
        linux=LinuxPodSandbox(namespaces=(LinuxNamespace(type="network", path=f"{root}/pod"),)),
    )
    held: list[HeldClaim] = []
    runtime = FakeRuntime()
    timings: dict[str, list[float]] = {"sandbox": [], "container": []}
    async with runtime.serve(settings.nri_socket), open_backend(settings, lambda: tuple(held)) as backend:
        await backend.restore(())
        await backend.runtime.wait_synchronized()
        claim = Claim(uid="claim", namespace="default", name="claim", devices=(DEVICE,), pod=POD)
        (step,) = (await backend.plan(claim, ())).steps
        await backend.apply(step, None, claim)
        done = msgspec.structs.replace(describe_step(step), stage=StepStage.DONE)
        held.append(HeldClaim(claim=msgspec.structs.replace(claim, steps=(done,)), completed=True))
        for number in range(rounds):
            timings["sandbox"].append(await time_call(runtime.run_pod(sandbox)))
            container = Container(id=f"container-{number}", pod_sandbox_id=sandbox.id)
            timings["container"].append(await time_call(runtime.create_container(container)))
            await runtime.stop_pod(sandbox)
        await backend.undo(step, None, claim)
    report.median("RunPodSandbox, with the simulated runtime's part", timings["sandbox"], "20 ms")
    report.median("its first container, at once afterwards", timings["container"])


def _measure(report: Report, host_path: str, pod_path: str, rounds: int) -> None:
    kernel = NetlinkKernel(())
    host, pod = kernel.open(host_path), kernel.open(pod_path)
    (interface,) = [Interface(link=one) for one in kernel.read_links(host).links if one.name == "nic0"]
    for what, settings in (("nothing", {}), ("9 things", NINE)):
        config = msgspec.convert(settings, NetworkConfig)
        give = GiveInterface(device="nic0", before=interface, target=find_state_in_pod(interface, config))
        cases: list[tuple[str, Any, Any]] = [
            ("a whole interface", Mover(kernel, host, lambda _: True), give),
            ("a macvlan share", Sharer(kernel, host), plan_share("uid", DEVICE, config, interface.link)),
        ]
        for name, applier, step in cases:
            applier.mark(step, ())
            times = []
            for _ in range(rounds):
                begin, used = time.perf_counter(), time.process_time()
                applier.give(step, pod)
                times.append((time.perf_counter() - begin, time.process_time() - used))
                applier.take_back(step, (pod,))
            applier.unmark(step)
            full, cpu = (sorted(1000 * one for one in column) for column in zip(*times, strict=True))
            unit = f"ms (fastest tenth {full[rounds // 10]:.1f}; CPU {cpu[rounds // 2]:.1f})"
            report.figure(f"{name} with {what}", full[rounds // 2], unit)
