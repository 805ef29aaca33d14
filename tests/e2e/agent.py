"""The agent as a process of this machine, with simulated hardware, on the real kubelet's directories."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from anyio import to_thread

from tests.e2e.cluster import KUBELET_ROOT, Cluster


class Agent:
    """The agent's process; what it logs is in `log` from byte `began` on. It serves so many drivers."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, began: int, *, drivers: int) -> None:
        self.process = process
        self.log = log
        self._began = began
        self._drivers = drivers

    async def wait_serving(self, cluster: Cluster) -> None:
        """Wait until its devices are published, not only an earlier agent's, and the kubelet knows it."""
        await self.wait_said(cluster, "is published", times=self._drivers)
        await self.wait_said(cluster, "the kubelet has registered", times=self._drivers)

    async def wait_said(self, cluster: Cluster, text: str, *, times: int = 1) -> None:
        """Wait until its log has the text so often."""
        await cluster.wait(f"{text!r} in {self.log}", lambda: self._has_said(text, times))

    async def _has_said(self, text: str, times: int) -> bool:
        return self.log.read_bytes()[self._began :].count(text.encode()) >= times

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(how)
        return self.process.wait(40)


@contextmanager
def run_agent(
    node: str,
    scratch: Path,
    *,
    backend: str = "sim",
    scenario: str = "",
    beside: Mapping[str, str] = {},
    pod_uid: str = "",
    flags: tuple[str, ...] = (),
) -> Iterator[Agent]:
    """The agent with simulated hardware, whose state is `scratch`/hardware, on the real kubelet's directories.

    `scenario` is a name, or the YAML text of a file. `beside` has the scenarios of further backends, by name.
    """
    prefix = f"PYDRA_{backend.upper().replace('-', '_')}_"
    environ = {**os.environ, f"{prefix}STATE": str(scratch / "hardware")}
    for name in [name for name in environ if name.startswith("PYDRA_E2E_")]:
        del environ[name]
    if ":" in scenario:
        (scratch / "scenario.yaml").write_text(scenario)
        environ[f"{prefix}SCENARIO"] = str(scratch / "scenario.yaml")
    elif scenario:
        environ[f"{prefix}SCENARIO"] = scenario
    for other, named in beside.items():
        environ |= {f"PYDRA_{other.upper()}_STATE": str(scratch / other), f"PYDRA_{other.upper()}_SCENARIO": named}
    more = [flag for other in beside for flag in ("--backend", other)]
    log = scratch / f"agent{pod_uid}.log"
    with log.open("ab") as output:
        began = output.tell()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pydra.cli.agent", "--backend", backend, "--node-name", node),
                *("--kubelet-root", str(KUBELET_ROOT), "--http-address", "", "--log-level", "debug"),
                *more,
                *(("--pod-uid", pod_uid) if pod_uid else ()),
                *flags,
            ],
            env=environ,
            stdout=output,
            stderr=output,
        )
    agent = Agent(process, log, began, drivers=1 + len(beside))
    try:
        yield agent
    finally:
        if process.poll() is None:
            agent.stop()


@asynccontextmanager
async def open_agent(cluster: Cluster, scratch: Path, **options: Any) -> AsyncIterator[Agent]:
    """An agent that serves; the test's pods go before it does."""
    with run_agent(cluster.node, scratch, **options) as agent:
        try:
            await agent.wait_serving(cluster)
            yield agent
            await cluster.clear()
            await cluster.wait_unprepared()
        finally:
            if agent.process.poll() is None:
                await to_thread.run_sync(agent.stop)
