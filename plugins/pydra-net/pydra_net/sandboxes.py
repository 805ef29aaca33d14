"""The sandboxes of pods with interfaces: which network namespace each has, kept from ending as long as it is known."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager

from pydra_net.kernel import Kernel, Namespace
from pydra_net.steps import Step
from pydra_nri import PodSandbox


class Sandbox:
    """A pod's sandbox. `attached` are the devices that are in it, `left` those that may be, since something failed.

    `moving` is the task that moves them, and `uses` how many tasks work in its namespace.
    """

    def __init__(self, pod: PodSandbox, namespace: Namespace) -> None:
        self.id = pod.id
        self.pod_uid = pod.uid
        self.is_running = False
        self.name = f"{pod.namespace}/{pod.name}"
        self.namespace = namespace
        self.attached: set[str] = set()
        self.left: set[str] = set()
        self.moving: asyncio.Task[None] | None = None
        self.uses = 0

    def list_missing(self, steps: Sequence[Step]) -> list[Step]:
        """Those whose devices are not in it."""
        return [step for step in steps if step.key not in self.attached]

    def discard(self, device: str) -> None:
        """The device is not in it."""
        self.attached.discard(device)
        self.left.discard(device)


class Sandboxes:
    """Those that are known, by their ids."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._known: dict[str, Sandbox] = {}

    def open(self, pod: PodSandbox) -> Sandbox:
        """The pod's sandbox, whose namespace cannot end from now on. Raises NamespaceGone."""
        known = self._known.get(pod.id)
        if known is None:
            known = self._known[pod.id] = Sandbox(pod, self._kernel.open(pod.network_namespace))
        known.is_running = pod.pid > 0
        return known

    def find(self, sandbox_id: str) -> Sandbox | None:
        """The sandbox, if it is known."""
        return self._known.get(sandbox_id)

    def list_of_pod(self, uid: str) -> list[Sandbox]:
        """The pod's sandboxes; the one that runs, if there is one, comes first."""
        return sorted((one for one in self._known.values() if one.pod_uid == uid), key=lambda one: not one.is_running)

    def list_namespaces(self) -> list[Namespace]:
        """Those of all sandboxes."""
        return [one.namespace for one in self._known.values()]

    def list_attached(self) -> frozenset[str]:
        """The devices that are in a pod."""
        return frozenset(device for _, device in self.list_places())

    def list_places(self) -> frozenset[tuple[str, str]]:
        """The ids of sandboxes, each with a device that is in it."""
        return frozenset((one.id, device) for one in self._known.values() for device in one.attached)

    def forget_empty(self, sandbox: Sandbox) -> None:
        """Let the namespace end, unless a device is, or may be, in it."""
        if not (sandbox.attached or sandbox.left or sandbox.uses):
            self._forget(sandbox)

    @contextmanager
    def using(self, sandbox: Sandbox) -> Iterator[None]:
        """Keep the namespace from ending meanwhile."""
        sandbox.uses += 1
        try:
            yield
        finally:
            sandbox.uses -= 1
            self.forget_empty(sandbox)

    def forget_ended(self, held: Set[str]) -> None:
        """Keep no namespace for what may be in it, but of claims that have ended: it was found, or is nowhere."""
        for one in [one for one in self._known.values() if not one.left <= held]:
            one.left &= held
            self.forget_empty(one)

    def _forget(self, sandbox: Sandbox) -> None:
        if self._known.pop(sandbox.id, None) is not None:
            sandbox.namespace.close()

    def keep_only(self, ids: Sequence[str]) -> None:
        """Forget the others, unless an interface is in them; none of them runs."""
        for one in [one for one in self._known.values() if one.id not in ids]:
            one.is_running = False
            self.forget_empty(one)

    def close(self) -> None:
        """Forget all."""
        for one in list(self._known.values()):
            self._forget(one)
