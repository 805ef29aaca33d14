"""An hour in the life of a node: pods come and go while all that can fail does, and nothing may be left of it.

    KUBECONFIG=... make soak ARGS="--minutes 60"

as root on the cluster's node, with the variables of tests/e2e/README.md. The agent runs as a process beside the
kubelet, and reaches the API server through a relay of its own. In the first third of the time agents are replaced
as well; the one that serves then is measured while nothing is prepared, lives through the rest, and is measured again.

Exit status: 0 when nothing was found, 1 when something was, 2 when it cannot begin.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio

from pydra.errors import KubeError
from pydra.kube.api_resources import DEVICE_CLASSES
from pydra.kube.credentials import load_credentials
from tests.e2e.cluster import missing, open_cluster
from tests.soak.faults import REPLACING, Faults
from tests.soak.node import DRIVER, Node, PatientCluster, Pods
from tests.soak.relay import Relay
from tests.soak.results import Event, Results, compare, judge, print_results
from tests.soak.schedule import Planned, plan_faults

WORKERS = 2
SETTLE = 120.0
"""Connections of an idle client and threads of a pool end by themselves within this."""


def main() -> int:
    """Run it, print what was seen, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60, help="how long faults strike (60)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same faults in the same order (1)")
    parser.add_argument("--every", type=float, default=30, metavar="SECONDS", help="a fault about so often (30)")
    parser.add_argument("--pause", type=float, default=10, metavar="SECONDS", help="of each of two pods (10)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    if reason := missing():
        print(f"soak: {reason}; tests/e2e/README.md says what it needs", file=sys.stderr)
        return 2
    scratch = Path(tempfile.mkdtemp(prefix="pydra-soak-"))
    with mount_disk(scratch / "records") as is_own_disk:
        results = asyncio.run(soak(arguments, scratch, is_own_disk=is_own_disk))
    print_results(results, arguments.output)
    if results.findings:
        print(f"soak: the agents' logs are in {scratch}", file=sys.stderr)
        return 1
    shutil.rmtree(scratch)
    return 0


@contextmanager
def mount_disk(path: Path) -> Iterator[bool]:
    """A small disk of its own at the path; or a directory, if nothing can be mounted."""
    path.mkdir()
    mounted = subprocess.run(("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path), check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(("umount", "--lazy", path), check=False)


async def soak(arguments: argparse.Namespace, scratch: Path, *, is_own_disk: bool) -> Results:
    """Two parts, each followed by a measurement with nothing prepared."""
    seconds = arguments.minutes * 60
    findings: list[str] = []
    async with open_cluster(DRIVER) as found:
        cluster = PatientCluster(found.client, found.namespace, found.node, DRIVER)
        relay = Relay(await load_credentials(environ=os.environ), scratch)
        node, pods = Node(cluster, relay, scratch), Pods(cluster, findings)
        faults = Faults(node, is_own_disk=is_own_disk)
        run = Run(node, pods, faults, findings, arguments)
        async with relay.serve():
            try:
                async with node.serve():
                    await pods.prepare()
                    third, kinds = seconds / 3, sorted(faults.by_name)
                    lasting = [one for one in kinds if one not in REPLACING]
                    first = plan_faults(arguments.seed, kinds, begin=0, end=third, period=arguments.every)
                    second = plan_faults(arguments.seed + 1, lasting, begin=third, end=seconds, period=arguments.every)
                    await run.go(first, third, "a")
                    before = await run.settle()
                    await run.go(second, seconds, "b")
                    after = await run.settle(before)
            finally:
                await clean(cluster)
    findings += node.find_tracebacks()
    comparisons = compare(before, after)
    return Results(
        seed=arguments.seed,
        minutes=arguments.minutes,
        comparisons=comparisons,
        faults=run.events,
        skipped=faults.skipped,
        samples=run.samples,
        pods=summarize(pods),
        findings=judge(comparisons, findings),
    )


class Run:
    """Pods and faults at the same time."""

    def __init__(
        self, node: Node, pods: Pods, faults: Faults, findings: list[str], options: argparse.Namespace
    ) -> None:
        self.events: list[Event] = []
        self.samples: list[dict[str, float]] = []
        self._node = node
        self._pods = pods
        self._faults = faults
        self._findings = findings
        self._pause: float = options.pause
        self._seed: int = options.seed
        self._began = time.monotonic()
        self._settling = 0.0

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began - self._settling

    async def go(self, planned: Sequence[Planned], until: float, part: str) -> None:
        """Let the faults strike, one after the other, until this second; pods come and go meanwhile."""
        ending = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for worker in range(WORKERS):
                name = f"{part}{worker}"
                chance = random.Random(f"{self._seed} {name}")
                tasks.start_soon(self._pods.come_and_go, name, chance, self._pause, ending)
            tasks.start_soon(self._sample, ending)
            for one in planned:
                await anyio.sleep(max(0, one.seconds - self._now))
                if self._now > until:
                    break
                await self._strike(one)
            await anyio.sleep(max(0, until - self._now))
            ending.set()

    async def _strike(self, planned: Planned) -> None:
        seconds, at = self._now, datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        try:
            detail = await self._faults.by_name[planned.kind](random.Random(planned.number))
            await self._node.wait_serving()
        except (OSError, KubeError) as error:
            detail = f"{type(error).__name__}: {error}"
            self._findings.append(f"{at} after {planned.kind}: {detail}")
        event = Event(at=at, seconds=seconds, kind=planned.kind, detail=detail, lasted=self._now - seconds)
        self.events.append(event)
        print(f"{at} {seconds:6.0f} s  {planned.kind}: {detail}; {event.lasted:.1f} s", file=sys.stderr, flush=True)

    async def _sample(self, ending: anyio.Event) -> None:
        while not ending.is_set():
            with suppress(KubeError, OSError):
                self.samples.append({"seconds": round(self._now), **await self._node.measure()})
            with anyio.move_on_after(60):
                await ending.wait()

    async def settle(self, limits: dict[str, float] | None = None) -> dict[str, float]:
        """The figures once nothing is prepared; the first that are within the limits, or the last."""
        began = time.monotonic()
        try:
            await self._node.wait_serving()
            await self._node.wait_unused()
        except TimeoutError as error:
            self._findings.append(str(error))
        while True:
            figures = await self._node.measure()
            waited = time.monotonic() - began
            within = limits is not None and all(one.is_met for one in compare(limits, figures))
            if waited > SETTLE or within:
                break
            await anyio.sleep(2)
        self._settling += time.monotonic() - began
        print(f"settled: {figures}", file=sys.stderr, flush=True)
        return figures


async def clean(cluster: PatientCluster) -> None:
    """Remove what is not in the namespace."""
    with suppress(KubeError):
        await cluster.client.delete(DEVICE_CLASSES, DRIVER)


def summarize(pods: Pods) -> dict[str, float]:
    """How many pods, and how long they took to start, in seconds."""
    starts = sorted(pods.starts) or [0.0]
    return {
        "started": len(pods.starts),
        "removed by force": pods.forced,
        "start, median s": round(statistics.median(starts), 2),
        "start, longest s": round(starts[-1], 2),
    }


if __name__ == "__main__":
    sys.exit(main())
