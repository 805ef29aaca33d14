"""The coroutines that pydra and the container runtime call: read, decide, act.

What a claim has is in the agent's records only. Where an interface is, the kernel knows; what is remembered here are
the sandboxes of pods, so that their namespaces do not end with an interface in them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from pydra import (
    AllocatedDevice,
    Claim,
    ClaimError,
    ContainerEdits,
    Device,
    HeldClaim,
    Inventory,
    Plan,
    PreparedDevice,
)
from pydra_net.apply_interface import AttachFailed
from pydra_net.cdi import edits
from pydra_net.claim_plan import check_offered, list_with_ethtool, list_with_functions, plan_claim
from pydra_net.device_status import PodState, build_status, build_statuses
from pydra_net.devices import DRIVER
from pydra_net.hardware_reader import HardwareReader
from pydra_net.hardware_types import Node
from pydra_net.health import CarrierHistory, find_lost
from pydra_net.held_claims import list_gives, list_of_device, list_of_pod
from pydra_net.inventory import build_inventory
from pydra_net.kernel import Kernel, Namespace, NamespaceGone
from pydra_net.leases import Leases
from pydra_net.sandboxes import Sandbox, Sandboxes
from pydra_net.settings import Settings, list_counts
from pydra_net.step_appliers import StepAppliers
from pydra_net.steps import ConfigureFunction, GiveInterface, GiveRdma, ShareInterface, Step
from pydra_net.virtual_functions import FunctionMaker
from pydra_nri import Container, ContainerUpdate, CreateContainerResponse, Plugin, PodSandbox
from pydra_pci import Tree

_PATIENCE = 2.0
"""Seconds that a claim waits for a connection to the runtime that is just being made."""
_HOOK_PART = 0.6
"""Of the time, 2 s by default, after which a runtime goes on without this plugin; the rest is for other plugins."""
_QUIET = 0.5
"""Seconds in which events are collected."""

_log = logging.getLogger(__name__)


class NetBackend:
    """One node's interfaces. `runtime` is the connection to the container runtime; `held` returns the node's claims."""

    runtime: Plugin

    def __init__(
        self,
        settings: Settings,
        tree: Tree,
        kernel: Kernel,
        host: Namespace,
        held: Callable[[], Sequence[HeldClaim]],
    ) -> None:
        self._held = held
        self._settings = settings
        self._selects = _build_filter(settings.filter)
        self._tree = tree
        self._reader = HardwareReader(tree, kernel, host, settings)
        self._appliers = StepAppliers(kernel, host, self._reader.has_function, tree)
        self._sandboxes = Sandboxes(kernel)
        self._carrier = CarrierHistory(time.monotonic)
        self._maker = FunctionMaker(tree, list_counts(settings.virtual_functions))
        self._events = kernel.watch(host)
        self._inventory = Inventory()
        self._restored = asyncio.Event()
        self._moved = asyncio.Event()
        self._problems: dict[str, str] = {}
        self._leases = Leases(kernel, self._moved.set)
        self._ended: set[str] = set()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """End what is in work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._leases.close()
        self._events.close()
        self._sandboxes.close()

    # The agent's calls

    async def discover(self) -> Inventory:
        """All interfaces that the node does not need itself, those in pods included."""
        self._inventory = await self._read_inventory()
        return self._inventory

    async def wait_changed(self) -> None:
        """Return when interfaces, addresses or the runtime have come or gone since `discover`."""
        while True:
            await self._wait_hint()
            if await self._read_inventory() != self._inventory:
                return
            await asyncio.sleep(_QUIET)

    async def restore(self, held: Sequence[HeldClaim], /) -> None:
        """Let the runtime's pods be compared with the claims, which are known from now on."""
        self._restored.set()

    async def plan(self, claim: Claim, held: Sequence[HeldClaim], /) -> Plan:
        """The interfaces, with all that is configured on them now."""
        await self._check_runtime()
        node = await asyncio.to_thread(self._reader.read, list_with_ethtool(claim), list_with_functions(claim))
        return plan_claim(claim, held, node, self._reader.find_pci_address)

    async def apply(self, step: Step, _result: Any, _claim: Claim, /) -> None:
        """Check that the node can do without the interface, and let it be found again wherever it is.

        What is shared is made in the pod only.
        """
        check_offered(step, await self._read())
        async with self._locks[step.key]:
            self._ended.discard(step.key)
            self._problems.pop(step.key, None)  # of an earlier claim
            await asyncio.to_thread(self._appliers.mark, step, self._sandboxes.list_namespaces())

    async def undo(self, step: Step, _result: Any, claim: Claim, /) -> None:
        """Put the interface back as it was."""
        async with self._locks[step.key]:
            self._ended.add(step.key)  # who waits for the lock must not give it again
            await self._leases.end(step, release=True)
            await asyncio.to_thread(self._appliers.take_back, step, self._sandboxes.list_namespaces())
            await asyncio.to_thread(self._appliers.unmark, step)
            self._problems.pop(step.key, None)
        for sandbox in self._sandboxes.list_of_pod(claim.pod.uid) if claim.pod else ():
            sandbox.attached.discard(step.key)
            if not sandbox.attached:  # the pod has ended, and nobody may tell
                self._sandboxes.forget(sandbox)

    async def prepare(self, claim: Claim, /) -> list[PreparedDevice]:
        """Nothing but a check: what is moved, is when the pod has a network namespace."""
        await self._check_runtime()
        return [self._prepare_device(claim, device) for device in claim.devices]

    def _prepare_device(self, claim: Claim, device: AllocatedDevice) -> PreparedDevice:
        nodes, attributes = ContainerEdits(), {}
        for step in list_of_device(claim, device):
            if isinstance(step, GiveRdma):
                nodes = edits(step, self._tree)
                attributes["rdmaDevice"] = step.name
            elif not isinstance(step, ConfigureFunction):
                attributes["ifName"] = step.target.name
        return device.prepared(nodes, attributes=attributes, status=build_status(claim, device, PodState()))

    # The container runtime's calls

    async def synchronize(self, pods: Sequence[PodSandbox], _containers: Sequence[Container]) -> list[ContainerUpdate]:
        """Learn which pods there are; those that began without their interfaces get them afterwards."""
        # Claims are not known before, and the runtime may be faster than the agent.
        await self._restored.wait()
        for pod in pods:
            if pod.network_namespace and list_of_pod(self._held(), pod.uid):
                with suppress(NamespaceGone):
                    self._sandboxes.open(pod)
        self._sandboxes.keep_only([pod.id for pod in pods])
        for uid in sorted({pod.uid for pod in pods}):
            for sandbox in self._sandboxes.list_of_pod(uid)[:1]:
                self._begin(self._repair(sandbox))
        return []

    async def run_pod_sandbox(self, pod: PodSandbox) -> None:
        """Move the pod's interfaces into it. Raises AttachFailed; none of them is in the pod then."""
        if steps := list_of_pod(self._held(), pod.uid):
            began = time.monotonic()
            await self._attach_in_time(self._open(pod), steps)
            await self._leases.wait(steps, self._limit() - (time.monotonic() - began))

    async def create_container(self, pod: PodSandbox, _container: Container) -> CreateContainerResponse:
        """Check that the pod has its interfaces, or move them now: nothing else called when the pod began.

        A DHCP server may take longer than the runtime waits when the pod begins, so its address is waited for here.

        Raises AttachFailed.
        """
        if steps := list_of_pod(self._held(), pod.uid):
            began = time.monotonic()
            sandbox = self._open(pod)
            if missing := [step for step in steps if step.key not in sandbox.attached]:
                await self._attach_in_time(sandbox, missing)
            if late := await self._leases.wait(steps, self._limit() - (time.monotonic() - began)):
                raise AttachFailed(f"no address, by DHCP or SLAAC, for {'; '.join(late)}; the kubelet tries again")
        return CreateContainerResponse()

    async def stop_pod_sandbox(self, pod: PodSandbox) -> None:
        """Move the interfaces back before the pod's namespace ends. What fails is done again when the claim ends."""
        sandbox = self._sandboxes.find(pod.id)
        steps = list_of_pod(self._held(), pod.uid)
        if sandbox is None and steps and pod.network_namespace:
            with suppress(NamespaceGone):
                sandbox = self._sandboxes.open(pod)
        if sandbox is not None:
            await self._detach(sandbox, steps)

    async def remove_pod_sandbox(self, pod: PodSandbox) -> None:
        """The same, if its end was missed."""
        await self.stop_pod_sandbox(pod)

    # Shared

    async def _wait_hint(self) -> None:
        """Return when the kernel reports a change, an interface was moved or not, or after the period."""
        hints = [asyncio.ensure_future(self._events.wait()), asyncio.ensure_future(self._moved.wait())]
        try:
            await asyncio.wait(hints, timeout=self._settings.poll_period, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for hint in hints:
                hint.cancel()
            await asyncio.gather(*hints, return_exceptions=True)
        self._moved.clear()

    def _open(self, pod: PodSandbox) -> Sandbox:
        if not pod.network_namespace:
            raise AttachFailed(
                f"pod {pod.namespace}/{pod.name} uses the node's own network (hostNetwork), so it cannot have "
                "interfaces of its own; remove the claim, or hostNetwork"
            )
        return self._sandboxes.open(pod)

    async def _attach_in_time(self, sandbox: Sandbox, steps: Sequence[Step]) -> None:
        """Attach, or have failed before the runtime goes on without it. What comes later is undone."""
        sandbox.is_abandoned = False
        task = self._begin(self._attach(sandbox, steps))
        limit = self._limit()
        done: set[asyncio.Task[None]] = set()
        try:
            done, _ = await asyncio.wait((task,), timeout=limit)
        finally:
            sandbox.is_abandoned = not done
        if not done:
            names = ", ".join(step.name for step in steps)
            raise self._note_failed(
                steps,
                f"{names} could not be given to the pod within {limit:g} s, since the kernel was busy; the "
                "kubelet tries again",
            )
        try:
            task.result()
        except ClaimError as error:
            raise self._note_failed(steps, str(error)) from error

    def _limit(self) -> float:
        """The seconds that a call of the runtime may take."""
        return self.runtime.request_timeout * _HOOK_PART

    def _note_failed(self, steps: Sequence[Step], text: str) -> AttachFailed:
        self._problems |= dict.fromkeys((step.key for step in steps), text)
        self._moved.set()
        return AttachFailed(text)

    async def _attach(self, sandbox: Sandbox, steps: Sequence[Step]) -> None:
        """Move all of them, or none."""
        try:
            for step in steps:
                await self._give(sandbox, step)
                if sandbox.is_abandoned:
                    raise AttachFailed("the runtime did not wait")
        except BaseException:
            await self._detach(sandbox, steps)
            raise

    async def _repair(self, sandbox: Sandbox) -> None:
        """Move what the pod does not have: it began, or was moved to, while this process did not run."""
        for step in list_of_pod(self._held(), sandbox.pod_uid):
            try:
                await self._give(sandbox, step)
            except Exception as error:  # noqa: BLE001 - nobody waits for this, so the claim tells it
                text = f"pod {sandbox.name} runs without {step.name}: {error}"
                _log.error("%s", text)
                self._note_failed((step,), text)

    async def _give(self, sandbox: Sandbox, step: Step) -> None:
        async with self._locks[step.key]:
            if step.key in self._ended or step not in list_of_pod(self._held(), sandbox.pod_uid):
                raise AttachFailed(f"the claim of {step.name} ({step.device}) has ended")
            earlier = [one.namespace for one in self._sandboxes.list_of_pod(sandbox.pod_uid) if one is not sandbox]
            await asyncio.to_thread(self._appliers.give, step, sandbox.namespace, earlier)
            for other in self._sandboxes.list_of_pod(sandbox.pod_uid):
                other.attached.discard(step.key)
            if isinstance(step, GiveInterface | ShareInterface) and step.target.is_given_addresses:
                await self._leases.begin(step, sandbox.namespace)
            sandbox.attached.add(step.key)
            self._problems.pop(step.key, None)
            self._moved.set()

    async def _detach(self, sandbox: Sandbox, steps: Sequence[Step]) -> None:
        """Move back those that are in this sandbox, and let its namespace end if all of them are."""
        for step in steps:
            try:
                async with self._locks[step.key]:
                    await self._leases.end(step, release=True, pod=sandbox.namespace)
                    if await asyncio.to_thread(self._appliers.is_in, step, sandbox.namespace):
                        sandbox.attached.add(step.key)
                        await asyncio.to_thread(self._appliers.take_back, step, (sandbox.namespace,))
                    sandbox.attached.discard(step.key)
                    self._moved.set()
            except ClaimError as error:
                _log.warning("%s", error)
        if not sandbox.attached:
            self._sandboxes.forget(sandbox)

    def _begin(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # who waits for it raises it

    async def _read(self) -> Node:
        return await asyncio.to_thread(self._reader.read)

    def _forget_ended(self) -> None:
        """Keep nothing of steps whose claims have ended: each share has a name that never comes again."""
        held = {one.step.key for claim in self._held() for one in claim.claim.steps}
        self._ended &= held
        self._problems = {key: text for key, text in self._problems.items() if key in held}
        for key in [key for key, lock in self._locks.items() if key not in held and not lock.locked()]:
            del self._locks[key]

    def _list_settled(self) -> set[tuple[str, str]]:
        """What is in a sandbox, and is not just being moved."""
        return {(place, key) for place, key in self._sandboxes.list_places() if not self._locks[key].locked()}

    async def _read_inventory(self) -> Inventory:
        self._forget_ended()
        problem = ""
        try:
            await self._check_runtime()
        except ClaimError as error:
            problem = str(error)
        node = await self._read()
        if await asyncio.to_thread(self._maker.make, node.reading.links, node.needed):
            node = await self._read()
        gives = list_gives([one for one in self._held() if not one.left_over])
        before = self._list_settled()
        in_pods = await asyncio.to_thread(self._appliers.locate, gives, self._sandboxes.list_namespaces())
        settled = {key for _, key in before & self._list_settled()}
        attached = self._sandboxes.list_attached()
        lost = await asyncio.to_thread(find_lost, gives, in_pods, settled, self._reader.read_hardware)
        inventory = await asyncio.to_thread(
            build_inventory,
            node,
            self._held(),
            self._reader.read_hardware,
            self._reader.find_pci_address,
            problem,
            selects=self._selects,
            lost=lost,
            changes=self._carrier.note(node.devices),
            in_pods=in_pods,
        )
        state = PodState(attached=attached, problems={**self._problems, **lost}, leases=self._leases.known)
        return replace(
            inventory,
            claim_statuses=build_statuses(self._held(), state),
            unreadable=tuple(self._maker.list_problems(node.reading.links, node.needed)),
        )

    async def _check_runtime(self) -> None:
        """Raise RuntimeUnavailable if pods begin without their interfaces now."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self.runtime.wait_synchronized()
        self.runtime.require_synchronized()


def _build_filter(expression: str) -> Callable[[Device], bool]:
    if not expression:
        return lambda _: True
    from pydra_net.device_filter import DeviceFilter  # noqa: PLC0415 - see the settings

    compiled = DeviceFilter(expression)
    return lambda device: compiled.selects(DRIVER, device)
