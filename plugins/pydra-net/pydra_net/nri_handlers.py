"""The container runtime's calls: pods get their interfaces when they begin, and the node has them back afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pydra import ClaimError, HeldClaim
from pydra_net.kernel import NamespaceGone
from pydra_net.move_pod_interfaces import PodInterfaces
from pydra_net.sandboxes import Sandbox
from pydra_net.step_appliers import AttachFailed
from pydra_net.steps import Step, is_given_addresses
from pydra_net.steps_of_held_claims import list_of_pod
from pydra_nri import Container, ContainerUpdate, CreateContainerResponse, Handlers, PodSandbox

_HOOK_PART = 0.6
"""Of the time, 2 s by default, after which a runtime goes on without this plugin; the rest is for other plugins."""


class PodHandlers:
    """The calls of one runtime. `request_timeout` returns the seconds after which it goes on without an answer."""

    def __init__(
        self,
        interfaces: PodInterfaces,
        held: Callable[[], Sequence[HeldClaim]],
        claims_known: asyncio.Event,
        request_timeout: Callable[[], float],
    ) -> None:
        self._interfaces = interfaces
        self._held = held
        self._claims_known = claims_known
        self._request_timeout = request_timeout

    def build(self) -> Handlers:
        """The handlers, for the connection to the runtime."""
        return Handlers(
            synchronize=self.synchronize,
            keep=lambda _: Container(),
            run_pod_sandbox=self.run_pod_sandbox,
            stop_pod_sandbox=self.stop_pod_sandbox,
            remove_pod_sandbox=self.stop_pod_sandbox,
            create_container=self.create_container,
        )

    async def synchronize(self, pods: Sequence[PodSandbox], _containers: Sequence[Container]) -> list[ContainerUpdate]:
        """Learn which pods there are; those that began without their interfaces get them afterwards."""
        # Claims are not known before, and the runtime may be faster than the agent.
        await self._claims_known.wait()
        for pod in pods:
            if pod.network_namespace and list_of_pod(self._held(), pod.uid):
                with suppress(NamespaceGone):
                    self._interfaces.sandboxes.open(pod)
        self._interfaces.sandboxes.keep_only([pod.id for pod in pods])
        for uid in sorted({pod.uid for pod in pods}):
            for sandbox in self._interfaces.sandboxes.list_of_pod(uid)[:1]:
                self._interfaces.begin_repair(sandbox)
        return []

    async def run_pod_sandbox(self, pod: PodSandbox) -> None:
        """Begin to move the pod's interfaces into it; its first container waits until they are there, or is refused.

        A sandbox is never refused: containerd 2 before 2.2.6 and 2.3.3 keeps it, and with two of one pod it does not
        start again. With DHCP, the address is waited for here too, since a server may take longer than one call.
        """
        if steps := list_of_pod(self._held(), pod.uid):
            with suppress(ClaimError):
                sandbox = self._open(pod)
                self._interfaces.begin(sandbox, steps)
                if any(map(is_given_addresses, steps)):
                    await self._wait(sandbox, steps)

    async def create_container(self, pod: PodSandbox, _container: Container) -> CreateContainerResponse:
        """Wait until the pod has its interfaces, or move them now: nothing else called when the pod began.

        Raises AttachFailed.
        """
        steps = list_of_pod(self._held(), pod.uid)
        if steps and (late := await self._wait(self._open(pod), steps)):
            raise AttachFailed(f"no address, by DHCP or SLAAC, for {'; '.join(late)}; the kubelet tries again")
        return CreateContainerResponse()

    async def stop_pod_sandbox(self, pod: PodSandbox) -> None:
        """Move the interfaces back before the pod's namespace ends. What fails is done again when the claim ends.

        That it was removed means the same, if its end was missed.
        """
        sandbox = self._interfaces.sandboxes.find(pod.id)
        steps = list_of_pod(self._held(), pod.uid)
        if sandbox is None and steps and pod.network_namespace:
            with suppress(NamespaceGone):
                sandbox = self._interfaces.sandboxes.open(pod)
        if sandbox is not None:
            await self._interfaces.detach(sandbox, steps)

    async def _wait(self, sandbox: Sandbox, steps: Sequence[Step]) -> list[str]:
        """Wait until the pod has them; in words, those that have no address yet. Raises AttachFailed."""
        began, limit = time.monotonic(), self._request_timeout() * _HOOK_PART
        await self._interfaces.attach(sandbox, steps, limit)
        return await self._interfaces.leases.wait(steps, limit - (time.monotonic() - began))

    def _open(self, pod: PodSandbox) -> Sandbox:
        if not pod.network_namespace:
            raise AttachFailed(
                f"pod {pod.namespace}/{pod.name} uses the node's own network (hostNetwork), so it cannot have "
                "interfaces of its own; remove the claim, or hostNetwork"
            )
        return self._interfaces.sandboxes.open(pod)
