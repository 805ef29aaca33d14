"""Which interfaces are in which pods: moves them into pods and back, and remembers the pods' sandboxes meanwhile.

Where an interface is, the kernel knows. Sandboxes are remembered so that their namespaces do not end with an interface
in them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pydra import Claim, ClaimError, HeldClaim
from pydra_net.device_status import PodState
from pydra_net.find_interface import locate
from pydra_net.kernel import Kernel
from pydra_net.leases import Leases
from pydra_net.network_types import Link
from pydra_net.sandboxes import Sandbox, Sandboxes
from pydra_net.step_appliers import AttachFailed, StepApplier
from pydra_net.steps import GiveInterface, Step, is_given_addresses
from pydra_net.steps_of_held_claims import list_of_pod

T = TypeVar("T")
_log = logging.getLogger(__name__)


class PodInterfaces:
    """Those of one node, with the `appliers` of each type of step.

    `held` returns the node's claims; `changed` is set whenever an interface was moved, or not.
    """

    def __init__(
        self, kernel: Kernel, appliers: Mapping[type, StepApplier[Any]], held: Callable[[], Sequence[HeldClaim]]
    ) -> None:
        self._kernel = kernel
        self._appliers = appliers
        self._held = held
        self.sandboxes = Sandboxes(kernel)
        self.changed = asyncio.Event()
        self.leases = Leases(kernel, self.changed.set)
        self._problems: dict[str, str] = {}
        self._ended: set[str] = set()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """End what is in work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.leases.close()
        self.sandboxes.close()

    async def mark(self, step: Step) -> None:
        """Let the interface be found again wherever it is. Raises ClaimError, LeftBehind."""
        async with self._locks[step.key]:
            self._ended.discard(step.key)
            self._problems.pop(step.key, None)  # of an earlier claim
            await _finish(self._appliers[type(step)].mark, step, self.sandboxes.list_namespaces())

    async def release(self, step: Step, claim: Claim) -> None:
        """Put the interface back as it was. Raises UndoLater."""
        async with self._locks[step.key]:
            self._ended.add(step.key)  # who waits for the lock must not give it again
            await self.leases.end(step, release=True)
            try:
                await _finish(self._appliers[type(step)].take_back, step, self.sandboxes.list_namespaces())
                await _finish(self._appliers[type(step)].unmark, step)
            finally:
                for sandbox in self.sandboxes.list_of_pod(claim.pod.uid) if claim.pod else ():
                    await self._note_gone(sandbox, step)
                    self.sandboxes.forget_empty(sandbox)  # the pod has ended, and nobody may tell
            self._problems.pop(step.key, None)

    def begin(self, sandbox: Sandbox, steps: Sequence[Step]) -> asyncio.Task[None]:
        """Begin to move those into the sandbox that are not there, all or none, unless that has begun."""
        if sandbox.moving is None or sandbox.moving.done():
            sandbox.moving = self._begin(self._attach_all(sandbox, sandbox.list_missing(steps)))
        return sandbox.moving

    async def attach(self, sandbox: Sandbox, steps: Sequence[Step], limit: float) -> None:
        """Wait until all of them are in the sandbox. What cannot be done within a limit of seconds goes on afterwards.

        Raises AttachFailed.
        """
        try:
            async with asyncio.timeout(limit):
                while sandbox.list_missing(steps):
                    await asyncio.shield(self.begin(sandbox, steps))
        except TimeoutError as error:
            names = ", ".join(step.name for step in steps)
            raise self._note_failed(
                steps,
                f"{names} could not be given to the pod within {limit:g} s, since the kernel was busy; the "
                "kubelet tries again",
            ) from error

    def begin_repair(self, sandbox: Sandbox) -> None:
        """Begin to move what a pod does not have that began, or was moved to, while this process did not run."""
        self._begin(self._repair(sandbox))

    async def detach(self, sandbox: Sandbox, steps: Sequence[Step]) -> None:
        """Move back those that are in this sandbox, and let its namespace end if all of them are."""
        with self.sandboxes.using(sandbox):
            for step in steps:
                async with self._locks[step.key]:
                    sandbox.attached.discard(step.key)
                    sandbox.left.add(step.key)
                    try:
                        await self.leases.end(step, release=True, pod=sandbox.namespace)
                        if await _finish(self._appliers[type(step)].is_in, step, sandbox.namespace):
                            await _finish(self._appliers[type(step)].take_back, step, (sandbox.namespace,))
                    except ClaimError as error:
                        _log.warning("%s", error)
                    await self._note_gone(sandbox, step)
                    self.changed.set()

    async def locate(self, gives: Sequence[GiveInterface]) -> tuple[Mapping[str, Link], frozenset[str]]:
        """The links of interfaces that are in pods, by the keys of steps, and which of the keys nobody moves now."""
        before = self._list_settled()
        in_pods = await asyncio.to_thread(locate, self._kernel, gives, self.sandboxes.list_namespaces())
        return in_pods, frozenset(key for _, key in before & self._list_settled())

    def read_state(self, problems: Mapping[str, str]) -> PodState:
        """What claims say of their interfaces, with more problems."""
        attached = self.sandboxes.list_attached()
        return PodState(attached=attached, problems={**self._problems, **problems}, leases=self.leases.known)

    def forget_ended(self) -> None:
        """Keep nothing of steps whose claims have ended: each share has a name that never comes again."""
        held = {one.step.key for claim in self._held() for one in claim.claim.steps}
        self._ended &= held
        self.sandboxes.forget_ended(held)
        self._problems = {key: text for key, text in self._problems.items() if key in held}
        for key in [key for key, lock in self._locks.items() if key not in held and not lock.locked()]:
            del self._locks[key]

    async def _attach_all(self, sandbox: Sandbox, steps: Sequence[Step]) -> None:
        try:
            for step in steps:
                await self._give(sandbox, step)
        except BaseException as error:
            await self.detach(sandbox, steps)
            if isinstance(error, ClaimError):
                raise self._note_failed(steps, str(error)) from error
            raise

    async def _repair(self, sandbox: Sandbox) -> None:
        for step in list_of_pod(self._held(), sandbox.pod_uid):
            try:
                await self._give(sandbox, step)
            except Exception as error:  # noqa: BLE001 - nobody waits for this, so the claim tells it
                text = f"pod {sandbox.name} runs without {step.name}: {error}"
                _log.error("%s", text)
                self._note_failed((step,), text)

    async def _give(self, sandbox: Sandbox, step: Step) -> None:
        with self.sandboxes.using(sandbox):
            async with self._locks[step.key]:
                if step.key in self._ended or step not in list_of_pod(self._held(), sandbox.pod_uid):
                    raise AttachFailed(f"the claim of {step.name} ({step.device}) has ended")
                others = [one for one in self.sandboxes.list_of_pod(sandbox.pod_uid) if one is not sandbox]
                sandbox.left.add(step.key)
                earlier = [one.namespace for one in others]
                await _finish(self._appliers[type(step)].give, step, sandbox.namespace, earlier)
                for other in others:
                    other.discard(step.key)
                    self.sandboxes.forget_empty(other)
                if is_given_addresses(step):
                    await self.leases.begin(step, sandbox.namespace)
                sandbox.left.discard(step.key)
                sandbox.attached.add(step.key)
                self._problems.pop(step.key, None)
                self.changed.set()

    async def _note_gone(self, sandbox: Sandbox, step: Step) -> None:
        """Do not keep the sandbox's namespace from ending for an interface that is not in it any more."""
        with suppress(ClaimError):
            if not await _finish(self._appliers[type(step)].is_in, step, sandbox.namespace):
                sandbox.discard(step.key)

    def _note_failed(self, steps: Sequence[Step], text: str) -> AttachFailed:
        self._problems |= dict.fromkeys((step.key for step in steps), text)
        self.changed.set()
        return AttachFailed(text)

    def _list_settled(self) -> set[tuple[str, str]]:
        """What is in a sandbox, and is not just being moved."""
        return {(place, key) for place, key in self.sandboxes.list_places() if not self._locks[key].locked()}

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # who waits for it raises it


async def _finish(work: Callable[..., T], *arguments: Any) -> T:
    """The result of work in a thread, which also a cancelled call waits for: it has the lock as long as it works."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(task)
    finally:
        await asyncio.wait((task,))
