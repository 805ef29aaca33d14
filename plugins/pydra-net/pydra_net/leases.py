"""The addresses that interfaces in pods are given, by DHCP or by routers, as long as they are in the pods.

After a restart of this process, a client goes on with the address that it finds on the interface.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from pydra import ClaimError
from pydra_net.dhcp.client import Client, Identity
from pydra_net.dhcp.messages import Lease
from pydra_net.find_interface import find
from pydra_net.interface_diff import find_given, find_leased, plan_given, plan_lease
from pydra_net.kernel import Kernel, Namespace
from pydra_net.network_types import FOREVER, Address, Link
from pydra_net.steps import InterfaceStep, ShareInterface, Step

_PAUSE = 10.0
"""Seconds after a failure."""

_QUIET = 0.2
"""Seconds in which events of a pod are collected: anyone in its network can cause thousands."""

_log = logging.getLogger(__name__)


class Leases:
    """Those of one node. `changed` is called when a client has got a lease, or lost it."""

    def __init__(self, kernel: Kernel, changed: Callable[[], None]) -> None:
        self._kernel = kernel
        self._changed = changed
        self._clients: dict[str, _Running] = {}

    @property
    def known(self) -> Mapping[str, Lease]:
        """The leases that interfaces have, by the keys of their steps."""
        return {key: one.lease for key, one in self._clients.items() if one.lease is not None}

    async def begin(self, step: InterfaceStep, pod: Namespace) -> None:
        """Start the client of an interface that is in the pod, unless it runs there."""
        running = self._clients.get(step.key)
        if running is not None and running.pod.is_same(pod):
            return
        await self.end(step, release=False)
        reading = await asyncio.to_thread(self._kernel.read, pod)
        link = find(step, reading)
        if link is None:
            return
        found = find_leased(link, reading)
        earlier = running.lease.ip if running is not None and running.lease is not None else ""
        running = self._clients[step.key] = _Running(self._kernel, step, pod, link, self._changed)
        running.start(found, earlier)

    async def wait(self, steps: Sequence[Step], seconds: float) -> list[str]:
        """Wait until these have an address, and return, in words, those that have none after that time."""
        waiting = [self._clients[step.key] for step in steps if step.key in self._clients]
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                for one in waiting:
                    while one.lease is None:  # a server may refuse an address just when it was waited for
                        await one.got.wait()
        return [one.waits_for for one in waiting if one.lease is None]

    async def end(self, step: Step, *, release: bool, pod: Namespace | None = None) -> None:
        """Stop the client of an interface, there or anywhere, and tell the server that its address is free."""
        running = self._clients.get(step.key)
        if running is not None and (pod is None or running.pod.is_same(pod)):
            del self._clients[step.key]
            await running.stop(release=release)

    async def close(self) -> None:
        """Stop all; the interfaces keep their addresses."""
        for one in list(self._clients.values()):
            await self.end(one.step, release=False)


class _Running:
    def __init__(
        self, kernel: Kernel, step: InterfaceStep, pod: Namespace, link: Link, changed: Callable[[], None]
    ) -> None:
        self.step = step
        self.pod = pod
        self.lease: Lease | None = None
        self.got = asyncio.Event()
        self._kernel = kernel
        self._index = link.index
        self._changed = changed
        # Interfaces of type ipvlan have the same MAC address.
        identifier = step.identity.encode() if isinstance(step, ShareInterface) and step.kind == "ipvlan" else b""
        self._client = Client(
            Identity(name=step.name, mac=link.mac, identifier=identifier),
            lambda address: asyncio.to_thread(kernel.open_packets, pod, link.index, address),
            lambda address: asyncio.to_thread(kernel.find_user, pod, link, address),
            self._set,
        )
        self._task: asyncio.Task[None] | None = None
        self._refused: frozenset[str] = frozenset()

    @property
    def waits_for(self) -> str:
        """Why it has no address, for messages."""
        problem = self._client.problem
        return f"{self.step.name} ({self.step.device}){': ' if problem else ''}{problem}"

    def start(self, found: Address | None, earlier: str) -> None:
        """Go on with the address that the interface has, or ask for one that it had elsewhere."""
        if found and self.step.target.dhcp:
            self.lease = _of_nobody(found)
            self.got.set()
        self._task = asyncio.create_task(self._run(earlier))

    async def stop(self, *, release: bool) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if release and self.lease is not None:
            with suppress(ClaimError):  # the namespace has ended
                await self._client.release(self.lease)

    async def _run(self, earlier: str) -> None:
        """Go on for ever: whatever fails once, an address that nobody renews would end."""
        while True:
            try:
                if self.step.target.slaac:
                    await self._follow()
                else:
                    last = self.lease
                    await self._client.run(last.ip if last else "", last.seconds if last else FOREVER, earlier)
            except Exception as error:  # noqa: BLE001 - told, and tried again
                _log.warning("the address of %s (%s): %s", self.step.name, self.step.device, error)
            await asyncio.sleep(_PAUSE)

    async def _follow(self) -> None:
        """Learn the address that a router gives, whenever the kernel reports something of the pod."""
        events = await asyncio.to_thread(self._kernel.watch, self.pod)
        try:
            while True:
                reading = await asyncio.to_thread(self._kernel.read, self.pod)
                link = reading.find(self._index)
                found = find_given(link, reading) if link else None
                if (found.address if found else "") != (self.lease.address if self.lease else ""):
                    await self._set(_of_nobody(found) if found else None)
                await events.wait()
                await asyncio.sleep(_QUIET)
        finally:
            events.close()

    async def _set(self, lease: Lease | None) -> None:
        await asyncio.to_thread(self._apply, lease)
        self.lease = lease
        if lease is not None:
            self.got.set()
        else:
            self.got.clear()
        self._changed()

    def _apply(self, lease: Lease | None) -> None:
        reading = self._kernel.read(self.pod)
        link = reading.find(self._index)
        if link is not None:
            target = self.step.target
            if target.slaac:
                operations = plan_given(target, lease, link)
            else:
                operations = plan_lease(target, lease, self.lease, link, reading)
            refused = list(map(str, self._kernel.apply(self.pod, operations)))
            for one in refused:
                if one not in self._refused:  # else told at an earlier renewal
                    _log.warning("%s (%s) in its pod: %s", self.step.name, self.step.device, one)
            self._refused = frozenset(refused)


def _of_nobody(found: Address) -> Lease:
    """An address that the kernel has, of which no server is known."""
    return Lease(address=found.address, server="", seconds=found.valid, renew=0, rebind=0)
