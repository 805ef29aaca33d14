"""The agent's part of claims, for tests of the backend in their own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from namespaces import TestNode
from pydra import (
    AllocatedDevice,
    Claim,
    ClaimError,
    DeviceInUse,
    HeldClaim,
    PodRef,
    PreparedDevice,
    StepStage,
    describe_step,
)
from pydra.claims.steps import changed_nothing
from pydra_net.backend import NetBackend
from pydra_net.composition import open_backend
from pydra_net.kernel import Kernel
from pydra_net.settings import Settings
from pydra_nri import Container, LinuxNamespace, LinuxPodSandbox, PodSandbox
from pydra_nri.simulation.runtime import FakeRuntime
from pydra_pci import Tree


class NetAgent:
    """Its records are `held`, by uid; the container runtime is `runtime`. Both outlive the backend."""

    backend: NetBackend

    def __init__(
        self, settings: Settings, kernel: Kernel | None = None, tree: Tree | None = None, *, fake: bool = True
    ) -> None:
        self.settings = settings
        self.kernel = kernel
        self.tree = tree
        self.held: dict[str, HeldClaim] = {}
        self.runtime = FakeRuntime(request_timeout=100.0)
        self.fake = fake
        self._starts = 0

    @asynccontextmanager
    async def run(self) -> AsyncIterator[NetBackend]:
        """Start the backend, and wait until the runtime calls it; killed at the end."""
        async with open_backend(
            self.settings, lambda: tuple(self.held.values()), self.kernel, self.tree
        ) as self.backend:
            await self.backend.restore(tuple(self.held.values()))
            await self.backend.runtime.wait_synchronized()
            self._starts += 1
            if self.fake:
                await self.runtime.wait_logged("registered dra.net", times=self._starts)
            yield self.backend

    async def start(self, pod: PodSandbox) -> None:
        """The pod begins, with a container."""
        await self.runtime.run_pod(pod)
        await self.runtime.create_container(build_container(pod))

    async def prepare(
        self,
        uid: str,
        *devices: str,
        pod: str = "",
        configs: tuple[Any, ...] = (),
        configs_by_device: tuple[tuple[Any, ...], ...] = (),
    ) -> list[PreparedDevice]:
        """Plan and prepare a claim of the pod for these devices, or shares, as `DEVICE/SHARE`.

        All have these configurations, or each those of its own.
        """
        allocated = tuple(
            AllocatedDevice(
                request=f"r{index}",
                pool="node",
                device=name.partition("/")[0],
                share_id=name.partition("/")[2] or None,
                configs=configs_by_device[index] if configs_by_device else configs,
            )
            for index, name in enumerate(devices)
        )
        for other in self.held.values():
            for one in allocated:
                for theirs in other.claim.devices:
                    is_other_share = one.share_id and theirs.share_id and one.share_id != theirs.share_id
                    if one.device == theirs.device and not is_other_share:
                        raise DeviceInUse(one.device, other.claim.name)
        reference = PodRef(uid=f"uid-{pod or uid}", namespace="team", name=pod or uid)
        claim = Claim(uid=uid, namespace="team", name=uid, devices=allocated, pod=reference)
        plan = await self.backend.plan(claim, tuple(self.held.values()))
        claim = replace(claim, plan=plan.data, steps=tuple(map(describe_step, plan.steps)))
        self.held[uid] = HeldClaim(claim=claim, completed=False)
        for place in range(len(claim.steps)):
            self._set_stage(uid, place, StepStage.BEGUN)
            try:
                result = await self.backend.apply(claim.steps[place].step, None, claim)
            except ClaimError as error:
                if changed_nothing(error):
                    self._set_stage(uid, place, StepStage.PLANNED)
                await self.unprepare(uid)
                raise
            self._set_stage(uid, place, StepStage.DONE, result)
        prepared = await self.backend.prepare(self.held[uid].claim)
        self.held[uid] = replace(self.held[uid], completed=True, prepared=tuple(prepared))
        return prepared

    async def unprepare(self, uid: str) -> None:
        """Undo the steps, in reverse order."""
        claim = self.held[uid].claim
        for place in reversed(range(len(claim.steps))):
            one = claim.steps[place]
            if one.stage is not StepStage.PLANNED:
                await self.backend.undo(one.step, one.result, claim)
        del self.held[uid]

    def _set_stage(self, uid: str, place: int, stage: StepStage, result: Any = None) -> None:
        claim = self.held[uid].claim
        steps = list(claim.steps)
        steps[place] = replace(steps[place], stage=stage, result=result)
        self.held[uid] = replace(self.held[uid], claim=replace(claim, steps=tuple(steps)))


def build_settings(node: TestNode, **fields: Any) -> Settings:
    """Those of a backend on a node of namespaces, which offers `nic0` and hears of changes by events only."""
    root = node.pods.parent
    named = {"exclude_types": "", "poll_period": 1000.0, **fields}
    return Settings(
        network_namespace=node.host.path, pod_namespaces=str(node.pods), nri_socket=f"{root}/nri.sock", **named
    )


def build_sandbox(pod: str, path: str, *, number: int = 1, uid: str = "") -> PodSandbox:
    """The sandbox of a pod, as the runtime describes it; without a path it is on the node's network."""
    namespaces = (LinuxNamespace(type="network", path=path),) if path else ()
    return PodSandbox(
        id=f"{pod}-{number}",
        name=pod,
        uid=uid or f"uid-{pod}",
        namespace="team",
        pid=4711,
        linux=LinuxPodSandbox(namespaces=namespaces),
    )


def build_container(sandbox: PodSandbox) -> Container:
    """The pod's only container."""
    return Container(id=f"{sandbox.id}-main", name="main", pod_sandbox_id=sandbox.id)
