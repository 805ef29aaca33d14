"""Leader election by a Lease, with the times and the fields of client-go: one instance of a controller acts.

`decide` is pure. What another instance wrote is judged by how long it has not changed on this machine's monotonic
clock, never by the times in the Lease: clocks of machines differ. Source: client-go, tools/leaderelection.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

import anyio
import msgspec

from pydra.errors import KubeError, NotFound
from pydra.kube.api_resources import JsonObject, Resource
from pydra.kube.client import KubeClient

log = logging.getLogger(__name__)

LEASES = Resource(group="coordination.k8s.io", version="v1", plural="leases", kind="Lease", namespaced=True)


class LeaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: how long a silent holder keeps the Lease, when one that cannot renew it gives up, and the period."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0


class LostLease(Exception):
    """The Lease could not be renewed in time, or another instance holds it: this one must not act any more."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The Lease as it was read, and the monotonic time at which it was first seen so."""

    version: str
    at: float


def decide(
    lease: JsonObject | None, seen: Seen | None, *, identity: str, now: float, stamp: str, times: LeaseTimes
) -> JsonObject | None:
    """The Lease's new spec to write, or None while another instance holds it.

    `seen` is about this version of the Lease, or older; `now` is in monotonic seconds, `stamp` in RFC 3339.
    """
    spec = (lease or {}).get("spec") or {}
    holder = spec.get("holderIdentity") or ""
    transitions = spec.get("leaseTransitions") or 0
    fresh = {"holderIdentity": identity, "leaseDurationSeconds": max(1, int(times.duration)), "renewTime": stamp}
    if holder == identity:
        return {**fresh, "acquireTime": spec.get("acquireTime") or stamp, "leaseTransitions": transitions}
    if holder and lease is not None:
        version = lease["metadata"].get("resourceVersion", "")
        since = seen.at if seen is not None and seen.version == version else now
        if now < since + float(spec.get("leaseDurationSeconds") or times.duration):
            return None
    return {**fresh, "acquireTime": stamp, "leaseTransitions": transitions + (1 if lease is not None else 0)}


class LeaderElection:
    """This instance's part: wait with `acquire`, then keep `keep` running; ask `is_leader` before each write."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._times = times
        self._clock = clock
        self._seen: Seen | None = None
        self._held_until = -1.0
        self.problem = ""
        """Why the Lease could not be read or written at the last attempt, so that this instance cannot act."""

    def is_leader(self) -> bool:
        """Whether no other instance can have taken the Lease yet."""
        return self._clock() < self._held_until

    async def acquire(self) -> None:
        """Return when this instance holds the Lease."""
        while True:
            if await self._try():
                break
            await anyio.sleep(self._times.retry_period)
        log.info("%s holds the Lease %s/%s and acts", self._identity, self._namespace, self._name)

    async def keep(self) -> None:
        """Renew the Lease until cancelled. Raises LostLease."""
        while self.is_leader():
            await anyio.sleep(self._times.retry_period)
            with anyio.move_on_after(max(0.0, self._held_until - self._clock())):
                await self._try()
        why = self.problem or "the API server did not answer in time, or another instance holds it"
        raise LostLease(
            f"{self._identity} could not renew the Lease {self._namespace}/{self._name} within "
            f"{self._times.renew_deadline:g} s: {why}"
        )

    async def release(self) -> None:
        """Let the next instance have the Lease at once. Errors are logged: it would get it later."""
        if not self.is_leader():
            return
        self._held_until = -1.0
        try:
            lease = await self._client.get(LEASES, self._name, namespace=self._namespace, deadline=0)
            if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._client.replace(LEASES, self._name, {**lease, "spec": spec}, namespace=self._namespace)
        except KubeError as error:
            log.warning("the Lease %s/%s is not given back: %s", self._namespace, self._name, error)

    async def _try(self) -> bool:
        """Write the Lease if this instance may; whether it holds it now."""
        try:
            holds = await self._take()
        except KubeError as error:
            self.problem = f"the Lease {self._namespace}/{self._name} cannot be written: {error}"
            log.warning("%s", self.problem)
            return False
        self.problem = ""
        return holds

    async def _take(self) -> bool:
        began = self._clock()
        lease = await self._read()
        now = self._clock()  # the answer may be as new as this
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = decide(lease, self._seen, identity=self._identity, now=now, stamp=stamp, times=self._times)
        self._note(lease, now)
        if spec is None:
            return False
        if lease is None:
            body = {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": spec}
            await self._client.create(LEASES, body, namespace=self._namespace)
        else:
            await self._client.replace(LEASES, self._name, {**lease, "spec": spec}, namespace=self._namespace)
        self._held_until = began + self._times.renew_deadline
        return True

    async def _read(self) -> JsonObject | None:
        try:
            return await self._client.get(LEASES, self._name, namespace=self._namespace, deadline=0)
        except NotFound as error:
            if not error.is_of_object:
                raise
            return None

    def _note(self, lease: JsonObject | None, now: float) -> None:
        if lease is None:
            return
        version = lease["metadata"].get("resourceVersion", "")
        if self._seen is None or self._seen.version != version:
            self._seen = Seen(version=version, at=now)
