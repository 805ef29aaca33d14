"""The real agent as a process beside an embedded node, with any flags, and what it says."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio
from anyio.abc import Process

from pydra_dev.node import EmbeddedNode, free_port
from tests.forked import ForkedAgent

DEADLINE = 60.0
BACKENDS = Path(__file__).parent / "backends"


def list_records(directory: Path) -> list[str]:
    """The names of the files of records that are not empty, while the agent may remove them."""
    found = []
    for path in directory.glob("*"):
        with suppress(FileNotFoundError):
            if path.stat().st_size:
                found.append(path.name)
    return found


class Agent:
    """A running agent."""

    def __init__(self, process: Process | ForkedAgent, log: Path, port: int) -> None:
        self.process = process
        self.log = log
        self.port = port

    def lines(self) -> list[dict[str, Any]]:
        """What it logged, as JSON."""
        found = []
        for line in self.log.read_text().splitlines():
            assert line.startswith("{"), f"not a JSON line: {line}"
            found.append(json.loads(line))
        return found

    def messages(self) -> str:
        """All log messages, one to a line."""
        return "\n".join(str(line["message"]) for line in self.lines())

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of a GET on its HTTP endpoint; (0, "") while nothing listens."""
        timeout = aiohttp.ClientTimeout(total=5)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(f"http://127.0.0.1:{self.port}{path}") as response,
            ):
                return response.status, await response.text()
        except aiohttp.ClientError:
            return 0, ""

    async def wait_ready(self, status: int = 200) -> str:
        """What /readyz says once it answers with this status."""
        with anyio.fail_after(DEADLINE):
            while True:
                ended = self.process.returncode is not None
                found, text = await self.get("/readyz")
                if found == status:
                    return text
                assert not ended, self._end()
                await anyio.sleep(0.1)

    async def wait_log(self, said: Callable[[str], bool]) -> str:
        """The messages, once they satisfy `said`."""
        with anyio.fail_after(DEADLINE):
            while True:
                ended = self.process.returncode is not None
                if said(messages := self.messages()):
                    return messages
                assert not ended, self._end()
                await anyio.sleep(0.05)

    async def wait_metric(self, pattern: str) -> re.Match[str]:
        """What the pattern matches in /metrics, whose text may be a second old."""
        with anyio.fail_after(DEADLINE):
            while True:
                _, text = await self.get("/metrics")
                if found := re.search(pattern, text, re.MULTILINE):
                    return found
                await anyio.sleep(0.1)

    def _end(self) -> str:
        return f"the agent ended with {self.process.returncode}:\n{self.log.read_text()[-4000:]}"

    async def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.terminate()
        with anyio.fail_after(DEADLINE):
            return await self.process.wait()


@asynccontextmanager
async def run_agent(
    node: EmbeddedNode, *flags: str, environ: Mapping[str, str] = {}, name: str = "agent", forked: bool = True
) -> AsyncIterator[Agent]:
    """The agent with these flags on the node; killed at the end if it still runs.

    It is `forked` from a process that has imported the agent, or a new interpreter, for tests of how one starts.
    """
    log, port = Path(node.root, f"{name}.log"), free_port()
    arguments = [
        *("--node-name", node.settings.node_name, "--kubeconfig", str(node.server.kubeconfig)),
        *("--kubelet-root", node.settings.root, "--cdi-dir", node.cdi_directory, "--records-dir", f"{node.root}/run"),
        *("--http-address", f"127.0.0.1:{port}", "--log-format", "json", *flags),
    ]
    python_path = os.pathsep.join([str(BACKENDS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    surroundings = {
        **os.environ,
        "PYTHONPATH": python_path,
        **({"PYDRA_SIM_STATE": f"{node.root}/hardware"} if "sim" in flags else {}),
        **environ,
    }
    process: Process | ForkedAgent
    with log.open("wb") as output:
        if forked:
            process = ForkedAgent(arguments, surroundings, output.name)
        else:
            process = await anyio.open_process(
                [sys.executable, "-m", "pydra.cli.agent", *arguments],
                stdin=None,
                stdout=output,
                stderr=output,
                env=surroundings,
            )
    try:
        yield Agent(process, log, port)
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.wait()
