"""The agent's part of claims, for tests of the backend in their own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from pydra import AllocatedDevice, Claim, HeldClaim, PreparedDevice
from pydra_cpu.backend import CpuBackend
from pydra_cpu.composition import open_backend
from pydra_cpu.settings import Settings


class Agent:
    """Its records are `held`, by uid. Claims are of one namespace and one device."""

    backend: CpuBackend

    def __init__(self, *, namespace: str) -> None:
        self.namespace = namespace
        self.held: dict[str, HeldClaim] = {}

    @asynccontextmanager
    async def connect(self, settings: Settings) -> AsyncIterator[None]:
        """Start the backend, and wait until the runtime calls it."""
        async with open_backend(settings, lambda: tuple(self.held.values())) as self.backend:
            await self.backend.restore(tuple(self.held.values()))
            await self.backend.runtime.wait_synchronized()
            yield

    async def prepare(self, uid: str, cpus: int, device: str = "cpudevnuma000") -> PreparedDevice:
        """Plan and prepare a claim for so many CPUs of the device."""
        allocated = AllocatedDevice(
            request="r", pool="node", device=device, share_id="s", consumed_capacity={"dra.cpu/cpu": str(cpus)}
        )
        claim = Claim(uid=uid, namespace=self.namespace, name=uid, devices=(allocated,))
        shares = await self.backend.plan(claim, tuple(self.held.values()))
        claim = msgspec.structs.replace(claim, plan=msgspec.to_builtins(shares))
        self.held[uid] = HeldClaim(claim=claim, completed=True)
        (prepared,) = await self.backend.prepare(claim)
        return prepared

    async def unprepare(self, uid: str) -> None:
        """End the claim."""
        await self.backend.unprepare(self.held[uid].claim, ())
        del self.held[uid]
