"""A backend that pins containers, and one call of the fake runtime after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pydra_nri import (
    Container,
    ContainerAdjustment,
    ContainerUpdate,
    CreateContainerResponse,
    Handlers,
    LinuxResources,
    Pauses,
    PodSandbox,
    Updates,
    cpuset,
)

FAST = Pauses(first=0.005, not_lasting=0.01, lasting=0.0)

POD = PodSandbox(id="sandbox-1", name="trainer", uid="uid-1", namespace="ml")


def make_container(name: str, **fields: tuple[str, ...]) -> Container:
    """A container of that pod."""
    return Container(id=f"id-{name}", name=name, pod_sandbox_id=POD.id, **fields)  # type: ignore[arg-type]


async def nothing(*_arguments: object) -> None:
    """Nothing to do."""


class Pinning:
    """Gives new containers CPUs, and remembers what it was called for. `before` runs at the begin of each call."""

    def __init__(self, cpus: str = "4-7", *, before: Callable[..., Awaitable[object]] = nothing) -> None:
        self.cpus = cpus
        self.calls: list[str] = []
        self.known: list[str] = []
        self.corrections: Updates = ()
        self.neighbours: Updates = ()
        self._before = before
        self._changed = asyncio.Condition()

    @property
    def handlers(self) -> Handlers:
        """All that it does."""
        return Handlers(
            synchronize=self.synchronize,
            run_pod_sandbox=self.run_pod,
            stop_pod_sandbox=self.stop_pod,
            create_container=self.create,
            update_container=self.update,
            stop_container=self.stop,
            remove_container=self.remove,
        )

    async def _called(self, call: str) -> None:
        async with self._changed:
            self.calls.append(call)
            self._changed.notify_all()
        await self._before(call)

    async def wait_called(self, call: str, *, times: int) -> None:
        """Wait until it was called so often."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.calls.count(call) >= times)

    async def synchronize(self, pods: Sequence[PodSandbox], containers: Sequence[Container]) -> Updates:
        self.known = [one.name for one in (*pods, *containers)]
        await self._called("synchronize")
        return self.corrections

    async def run_pod(self, pod: PodSandbox) -> None:
        await self._called(f"run {pod.name}")

    async def stop_pod(self, pod: PodSandbox) -> None:
        await self._called(f"stop {pod.name}")

    async def create(self, _pod: PodSandbox, container: Container) -> CreateContainerResponse:
        await self._called(f"create {container.name}")
        adjust = ContainerAdjustment.of(cpuset(self.cpus, "0"))
        return CreateContainerResponse(adjust=adjust, update=tuple(self.neighbours))

    async def update(self, _pod: PodSandbox, container: Container, _resources: LinuxResources) -> Updates:
        await self._called(f"update {container.name}")
        return [ContainerUpdate.of(container.id, cpuset(self.cpus))]

    async def stop(self, _pod: PodSandbox, container: Container) -> Updates:
        await self._called(f"stop {container.name}")
        return self.neighbours

    async def remove(self, _pod: PodSandbox, container: Container) -> None:
        await self._called(f"remove {container.name}")
