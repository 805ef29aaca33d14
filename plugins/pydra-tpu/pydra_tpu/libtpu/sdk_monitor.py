"""Asks Google's library for links, throttling and cores, in a process of its own.

These metrics come from an agent of Google's on the host, whose messages are not public. The library asks it with the
interpreter's lock held, loads 124 MB, and waits for minutes where nobody answers: so it has a process that is killed at
a deadline, and is asked only where libtpu is installed and the agent's port is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence

import msgspec

from pydra_tpu.libtpu.sdk_metrics import SdkMetrics
from pydra_tpu.runtime_metrics.find_runtimes import LOOPBACK, is_listening

DEADLINE = 10.0
"""Seconds that the library has for all its answers."""
ENVIRONMENT = {"TPU_SKIP_MDS_QUERY": "1", "TPU_SDK_GRPC_TIMEOUT_SEC": "5"}
"""Without the first, the library asks the metadata server for minutes where there is none."""


def find_library() -> Sequence[str]:
    """The command that prints SdkMetrics as JSON; empty where libtpu is not installed."""
    installed = importlib.util.find_spec("libtpu") is not None
    return (sys.executable, "-m", "pydra_tpu.libtpu.print_metrics") if installed else ()


class SdkMonitor:
    """`metrics` is the last answer. It stays while the library hangs or fails, and goes when the port closes."""

    def __init__(self, command: Sequence[str], port: int, period: float, deadline: float = DEADLINE) -> None:
        self._command = command
        self._port = port
        self._period = period
        self._deadline = deadline
        self.metrics = SdkMetrics()

    async def run(self) -> None:
        """Look again and again; never returns where there is something to ask."""
        while self._command:
            await self.look()
            await asyncio.sleep(self._period)

    async def look(self) -> None:
        """Query the library, if its port is open, and keep the answer."""
        if not await is_listening(LOOPBACK, self._port, self._deadline):
            self.metrics = SdkMetrics()
            return
        with contextlib.suppress(OSError, TimeoutError, msgspec.MsgspecError):
            self.metrics = msgspec.json.decode(await self._ask(), type=SdkMetrics)

    async def _ask(self) -> bytes:
        """What the command prints. Raises OSError, TimeoutError after it was killed."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env={**os.environ, **ENVIRONMENT},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(self._deadline):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()  # as long as it cannot end, none is started beside it
        return output.splitlines()[-1] if output.strip() else b""
