"""The controller's loop: caches tell which domains have changed; each of those is read, decided and written.

Level-triggered, without state of its own: a domain that is looked at once too often costs no request, and one whose
change was missed is looked at again within minutes. Domains do not wait for each other.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import anyio
import anyio.abc

from pydra.controllers import (
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Cache,
    Change,
    Conflict,
    EventRecorder,
    Informer,
    JsonObject,
    KubeClient,
    KubeError,
    LeaderElection,
    Resource,
    Unavailable,
    WatchFailed,
    object_key,
)
from pydra_nvidia.compute_domain.controller.decisions import decide, list_unknown_domain_events, plan_garbage
from pydra_nvidia.compute_domain.controller.domain_view import View, build_view
from pydra_nvidia.compute_domain.controller.metrics import ControllerMetrics
from pydra_nvidia.compute_domain.controller.object_fields import (
    CLIQUES,
    COMPUTE_DOMAINS,
    DAEMON_SETS,
    get_label,
    get_uid,
    is_status_change,
    is_updating,
    list_named_domains,
    template_key,
)
from pydra_nvidia.compute_domain.controller.requests import is_status
from pydra_nvidia.compute_domain.controller.settings import ControllerSettings
from pydra_nvidia.compute_domain.controller.writer import Writer
from pydra_nvidia.compute_domain.names import DOMAIN_LABEL, DRIVER

log = logging.getLogger(__name__)

PAUSE = 0.2
"""Seconds between two looks at one domain: changes of many nodes at once are one write each of clique and status."""
BACKOFF, BACKOFF_LIMIT = 0.25, 30.0
RESYNC_SECONDS, GARBAGE_SECONDS, GARBAGE_PAUSE = 300.0, 600.0, 2.0
AT_ONCE = 8
"""Domains that are worked on side by side."""


class Controller:
    """Reconciles all ComputeDomains while this instance is the leader."""

    def __init__(
        self,
        client: KubeClient,
        settings: ControllerSettings,
        recorder: EventRecorder,
        election: LeaderElection | None,
        metrics: ControllerMetrics,
    ) -> None:
        self._client = client
        self._settings = settings
        self._recorder = recorder
        self._election = election
        self._metrics = metrics
        self._informers = dict[Resource, Informer]()
        self._refusals = dict[Resource, str]()
        self._caches = dict[Resource, Cache]()
        own = {"namespace": settings.namespace}
        self._watch(COMPUTE_DOMAINS)
        self._watch(RESOURCE_CLAIM_TEMPLATES)
        self._watch(RESOURCE_CLAIMS)
        self._watch(RESOURCE_SLICES, field_selector=f"spec.driver={DRIVER}")
        self._watch(NODES, label_selector=DOMAIN_LABEL)
        self._watch(PODS, label_selector=DOMAIN_LABEL, **own)
        self._watch(DAEMON_SETS, label_selector=DOMAIN_LABEL, **own)
        self._watch(CLIQUES, **own)
        self._writer = Writer(client, self._caches, self._may_act)
        self._due = dict[str, float]()
        self._active = set[str]()
        self._failures = dict[str, int]()
        self._nodes = dict[str, set[str]]()  # of each domain: those of its claims, labelled or not
        self._woken = anyio.Event()
        self._forced = anyio.Event()

    def _watch(self, resource: Resource, **selectors: str) -> None:
        def note(failed: WatchFailed) -> None:
            self._refusals[resource] = f"{failed.resource} cannot be listed: {failed.error}"

        informer = Informer(self._client, resource, report=note, **selectors)  # type: ignore[arg-type]  # only texts are given
        self._informers[resource] = informer
        self._caches[resource] = Cache(resource, informer, self._note)

    async def run(self) -> None:
        """Watch at once; act when this instance is the leader, until cancelled. Raises LostLease."""
        async with anyio.create_task_group() as tasks:
            for resource, informer in self._informers.items():
                tasks.start_soon(informer.run, name=f"informer of {resource}")
            if self._election is not None:
                await self._election.acquire()
                tasks.start_soon(self._election.keep, name="Lease")
            for informer in self._informers.values():
                await informer.wait_synced()
            log.info("acting on ComputeDomains: %d", len(list(self._list(COMPUTE_DOMAINS))))
            tasks.start_soon(self._run_resync, name="resync")
            tasks.start_soon(self._run_garbage, name="garbage")
            await self._dispatch()

    def missing(self) -> Sequence[str]:
        """Return what keeps this instance from acting, or from taking over; for /readyz."""
        found = [self._election.problem] if self._election is not None else []
        for resource, informer in self._informers.items():
            if not informer.is_synced:
                found.append(self._refusals.get(resource, f"{resource} is not listed yet"))
        return [text for text in found if text]

    # Which domains a change concerns

    def _note(self, resource: Resource, change: Change) -> None:
        before, after = change
        if resource is COMPUTE_DOMAINS and before is not None and after is not None and is_status_change(before, after):
            # Nearly always its own write, which must not make it repeat at once what has just failed.
            self._wake([get_uid(after)], after=BACKOFF_LIMIT)
            return
        for found in (before, after):
            if found is not None:
                self._wake(self._concerned(resource, found))
        if resource is COMPUTE_DOMAINS and after is None:
            self._forced.set()  # it may have gone without its finalizer, and the next one of its name waits
        if resource is NODES and _label_or_none(before) != _label_or_none(after):
            self._wake_all()  # a node that another domain waits for may be free
        was_updating = resource is DAEMON_SETS and before is not None and is_updating(before)
        if was_updating and (after is None or not is_updating(after)):
            self._wake_all()  # another domain may wait for its turn

    def _concerned(self, resource: Resource, found: JsonObject) -> Iterable[str]:
        if resource is COMPUTE_DOMAINS:
            return [get_uid(found)]
        if resource is RESOURCE_CLAIMS:
            return list_named_domains(found)
        if resource is RESOURCE_SLICES:
            name = str((found.get("spec") or {}).get("nodeName") or "")
            label = _label_or_none(self._caches[NODES].find(name))
            claiming = [uid for uid, nodes in self._nodes.items() if name in nodes]
            return [*claiming, *([label] if label else [])]
        if resource is RESOURCE_CLAIM_TEMPLATES:
            key = object_key(found)
            return [get_uid(domain) for domain in self._list(COMPUTE_DOMAINS) if template_key(domain) == key] + [
                label for label in (get_label(found),) if label
            ]
        return [label for label in (get_label(found),) if label]

    def _wake(self, uids: Iterable[str], *, after: float = 0.0) -> None:
        at = time.monotonic() + after
        for uid in uids:
            self._due[uid] = min(at, self._due.get(uid, math.inf))
        self._woken.set()

    def _wake_all(self) -> None:
        self._wake([get_uid(domain) for domain in self._list(COMPUTE_DOMAINS)])

    # The loop

    async def _dispatch(self) -> None:
        limit = anyio.CapacityLimiter(AT_ONCE)
        async with anyio.create_task_group() as tasks:
            while True:
                self._woken = anyio.Event()
                now = time.monotonic()
                for uid in sorted(uid for uid, at in self._due.items() if at <= now and uid not in self._active):
                    del self._due[uid]
                    self._active.add(uid)
                    tasks.start_soon(self._work, uid, limit, name=f"domain {uid}")
                waiting = [at for uid, at in self._due.items() if uid not in self._active]
                with anyio.move_on_after(min(waiting) - now if waiting else None):
                    await self._woken.wait()

    async def _work(self, uid: str, limit: anyio.CapacityLimiter) -> None:
        async with limit:
            again = await self._reconcile(uid)
        await anyio.sleep(PAUSE)
        self._active.discard(uid)
        if again is not None:
            self._wake([uid], after=again)
        self._woken.set()

    async def _reconcile(self, uid: str) -> float | None:
        """Look at one domain; return in how many seconds to look again after a failure."""
        view = self._build_view(uid)
        self._nodes.pop(uid, None)
        if view is not None:
            self._nodes[uid] = {claim.node for claim in view.own_claims}
        if view is None or not self._may_act():
            self._failures.pop(uid, None)
            return await self._tell_unknown(uid) if self._may_act() else None
        decision = decide(view, self._settings, _stamp())
        if errors := await self._writer.carry_out(decision.requests):
            return await self._fail(view, errors)
        for event in decision.events:
            self._recorder.record(event)
        self._failures.pop(uid, None)
        self._metrics.reconciles.labels("ok").inc()
        return None

    async def _tell_unknown(self, uid: str) -> float | None:
        """Tell the owners of claims that name a domain which does not exist; return when to try again."""
        events = list(list_unknown_domain_events(uid, self._list(RESOURCE_CLAIMS)))
        try:
            # A list and not the cache, which may not have a domain yet whose claims it has.
            if not events or uid in {get_uid(one) for one in (await self._client.list(COMPUTE_DOMAINS)).items}:
                return None
        except KubeError as error:
            log.warning("cannot find out whether the ComputeDomain with the UID %s exists: %s", uid, error)
            return BACKOFF_LIMIT
        for event in events:
            self._recorder.record(event)
        return None

    async def _fail(self, view: View, errors: Sequence[KubeError]) -> float:
        """Say on the domain what the API server has refused; return when to try again."""
        error = errors[0]
        asked = max(one.retry_after if isinstance(one, Unavailable) else 0.0 for one in errors)
        uid, (namespace, name) = view.uid, object_key(view.domain)
        failures = self._failures[uid] = self._failures.get(uid, 0) + 1
        pause = max(asked, min(BACKOFF * 2.0 ** min(failures - 1, 10), BACKOFF_LIMIT))
        self._metrics.reconciles.labels("conflict" if isinstance(error, Conflict) else "error").inc()
        if isinstance(error, Conflict) and failures < 5:
            log.info("ComputeDomain %s/%s has changed meanwhile: %s", namespace, name, error)
            return pause
        log.warning("ComputeDomain %s/%s: %s; trying again in %.1f s", namespace, name, error, pause)
        if not error.status or asked:  # it does not answer, or has too much to do
            return pause
        decision = decide(view, self._settings, _stamp(), failed=str(error))
        unsaid = await self._writer.carry_out([one for one in decision.requests if is_status(one)])
        for event in decision.events if not unsaid else ():
            self._recorder.record(event)
        return pause

    def _may_act(self) -> bool:
        return self._election is None or self._election.is_leader()

    # What a decision is made from

    def _list(self, resource: Resource) -> Sequence[JsonObject]:
        return list(self._caches[resource].objects())

    def _build_view(self, uid: str) -> View | None:
        return build_view(uid, {resource: self._list(resource) for resource in self._caches}, self._settings.namespace)

    # Without a change

    async def _run_resync(self) -> None:
        while True:
            self._wake_all()
            self._metrics.count(self._list(COMPUTE_DOMAINS))
            await anyio.sleep(RESYNC_SECONDS)

    async def _run_garbage(self) -> None:
        while True:
            pause = GARBAGE_SECONDS
            try:
                if await self._collect():
                    pause = GARBAGE_PAUSE  # finalizers go after the deletion is seen
            except KubeError as error:
                log.warning("what is left of deleted ComputeDomains cannot be removed now: %s", error)
                pause = BACKOFF_LIMIT
            with anyio.move_on_after(pause):
                await self._forced.wait()
            self._forced = anyio.Event()

    async def _collect(self) -> bool:
        """Remove what is left of domains that do not exist; return whether there was anything."""
        resources = (RESOURCE_CLAIM_TEMPLATES, DAEMON_SETS, CLIQUES)
        objects = [(resource, found) for resource in resources for found in self._list(resource)]
        nodes = self._list(NODES)
        if not self._may_act() or not any(map(get_label, [*(one for _, one in objects), *nodes])):
            return False
        # A list and not the cache, which may not have a domain yet whose objects it has.
        domains = {get_uid(one) for one in (await self._client.list(COMPUTE_DOMAINS)).items}
        requests = plan_garbage(domains, objects, nodes)
        if requests:
            log.info("removing objects and labels of ComputeDomains that do not exist: %d", len(requests))
            if errors := await self._writer.carry_out(requests):
                raise errors[0]
        return bool(requests)


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _label_or_none(found: JsonObject | None) -> str | None:
    return None if found is None else get_label(found)
