"""What is done to the node. Each fault says what it did, and ends with its cause; the agent recovers by itself."""

from __future__ import annotations

import errno
import os
import random
import shlex
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import anyio

from pydra.errors import KubeError
from pydra.kube.api_resources import RESOURCE_SLICES
from tests.soak.node import Node

Fault = Callable[[random.Random], Awaitable[str]]

RESTARTS = {"kubelet restart": "PYDRA_E2E_KUBELET_RESTART", "API server restart": "PYDRA_E2E_API_SERVER_RESTART"}
"""Commands of the person who runs the soak; each returns when what it restarts serves again."""

REPLACING = ("agent killed", "rolling update")
"""After these, the agent is another process, whose memory says nothing about growth."""


class Faults:
    """All faults by name, and why some cannot be had here. Disks fill where the records have one of their own."""

    def __init__(self, node: Node, *, is_own_disk: bool) -> None:
        self.skipped: dict[str, str] = {}
        self._node = node
        self.by_name: dict[str, Fault] = {
            "backend crash": self._crash_backend,
            "backend hang": self._hang_backend,
            "agent killed": self._kill_agent,
            "rolling update": self._roll,
            "API server unreachable": self._cut_off,
            "CA rotation": self._rotate,
            "device unhealthy": self._sicken,
            "device unplugged": self._unplug,
            "slice deleted": self._delete_slice,
        }
        if is_own_disk:
            self.by_name["disk full"] = self._fill_disk
        else:
            self.skipped["disk full"] = "no tmpfs can be mounted here, and the node's disks are everybody's"
        for name, variable in RESTARTS.items():
            if command := shlex.split(os.environ.get(variable, "")):
                self.by_name[name] = self._restart(command)
            else:
                self.skipped[name] = f"{variable} names no command"

    async def _crash_backend(self, chance: random.Random) -> str:
        how = chance.choice((signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL))
        return f"{how.name}, process {await self._end_backend(how)}"

    async def _hang_backend(self, _: random.Random) -> str:
        return f"process {await self._end_backend(signal.SIGSTOP)}"

    async def _end_backend(self, how: signal.Signals) -> int:
        backend = self._node.backend()
        if backend:
            os.kill(backend, how)

        async def is_another() -> bool:
            return self._node.backend() not in (0, backend)

        await self._node.cluster.wait(f"another process of the backend after {how.name}", is_another)
        return backend

    async def _kill_agent(self, _: random.Random) -> str:
        await self._node.kill()
        return "SIGKILL"

    async def _roll(self, _: random.Random) -> str:
        status = await self._node.replace()
        if status:
            raise TimeoutError(f"the agent that was asked to stop ended with status {status}")
        return "the next was started, then the last was asked to stop"

    async def _cut_off(self, chance: random.Random) -> str:
        seconds = chance.uniform(5, 20)
        self._node.relay.close()
        try:
            await anyio.sleep(seconds)
        finally:
            self._node.relay.open()
        return f"for {seconds:.0f} s"

    async def _rotate(self, _: random.Random) -> str:
        accepted = self._node.relay.accepted
        self._node.relay.rotate()

        async def is_trusted() -> bool:
            return self._node.relay.accepted > accepted

        await self._node.cluster.wait("the agent trusts the new authority", is_trusted)
        return "the agent has connected again"

    async def _sicken(self, chance: random.Random) -> str:
        device = f"accel-{chance.randrange(8)}"
        await self._mark("unhealthy", device, lambda devices: bool(devices.get(device)))
        return device

    async def _unplug(self, chance: random.Random) -> str:
        device = f"accel-{chance.randrange(8)}"
        await self._mark("unplugged", device, lambda devices: device not in devices)
        return device

    async def _mark(self, folder: str, device: str, is_seen: Callable[[Mapping[str, object]], bool]) -> None:
        mark = self._node.hardware / folder / device
        mark.write_text("of the soak")

        async def look() -> bool:
            return is_seen({one["name"]: one.get("taints") for one in await self._node.cluster.devices()})

        try:
            await self._node.cluster.wait(f"{device} is published as {folder}", look)
        finally:
            mark.unlink()

    async def _delete_slice(self, _: random.Random) -> str:
        with suppress(KubeError):
            for one in await self._node.cluster.slices():
                await self._node.cluster.client.delete(RESOURCE_SLICES, one["metadata"]["name"])
                return str(one["metadata"]["name"])
        return "there was none"

    async def _fill_disk(self, chance: random.Random) -> str:
        seconds = chance.uniform(5, 20)
        filler = self._node.records / "filler"
        try:
            fill(filler)
            await anyio.sleep(seconds)
        finally:
            filler.unlink(missing_ok=True)
        return f"for {seconds:.0f} s"

    def _restart(self, command: list[str]) -> Fault:
        said = self._node.hardware.parent / "restart.log"  # a pipe would stay open in what the command has started

        async def restart(_: random.Random) -> str:
            with said.open("wb") as output:
                status = (await anyio.run_process(command, stdout=output, stderr=output, check=False)).returncode
            if status:
                words = said.read_text(errors="replace").strip()
                raise ChildProcessError(f"{shlex.join(command)} ended with status {status}: {words}")
            return shlex.join(command)

        return restart


def fill(path: Path) -> None:
    """Write to the file until its disk is full."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 512, 1):
            with suppress_full():
                while True:
                    file.write(bytes(size))


class suppress_full:  # noqa: N801 - a context manager, named as contextlib's
    """Nothing but a full disk may end the block."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, OSError) and error.errno == errno.ENOSPC
