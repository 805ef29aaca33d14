"""Preparing and unpreparing the claims of pods: API server, plugins and cache brought together.

Source: pkg/kubelet/cm/dra/manager.go, PrepareResources and unprepareResources, Kubernetes 1.36.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pydra.errors import KubeError
from pydra.kube.api_resources import RESOURCE_CLAIMS
from pydra.kube.client import KubeClient
from pydra_dev.kubelet.claim_info_cache import ClaimCache, ClaimInfo, DriverDevice
from pydra_dev.kubelet.observations import Called, Report
from pydra_dev.kubelet.plugin_answers import AnswerError
from pydra_dev.kubelet.plugins import CallError, NotRegistered, PluginRegistry
from pydra_dev.kubelet.pod_claims import (
    ClaimKey,
    JsonObject,
    PodClaim,
    PodClaimError,
    check_claim,
    claim_key,
    container_requests,
    find_drivers,
    find_pod_claims,
    group_by_driver,
)

CLAIM_ERRORS = (PodClaimError, NotRegistered, AnswerError, CallError, KubeError)
"""Everything that can keep a pod's claims from being prepared or unprepared."""


class ClaimPreparer:
    """The claims of this node's pods."""

    def __init__(self, client: KubeClient, plugins: PluginRegistry, cache: ClaimCache, report: Report) -> None:
        self._client = client
        self._plugins = plugins
        self._cache = cache
        self._report = report

    async def prepare(self, pod: JsonObject) -> None:
        """Have all claims of the pod prepared; raises one of CLAIM_ERRORS."""
        # The cache is changed only when nothing is against any claim: then a pod that is refused here can be deleted,
        # although a driver was never installed.
        claims = [await self._check(pod, pod_claim) for pod_claim in find_pod_claims(pod)]
        infos = [self._admit(pod, claim) for claim in claims]
        # Before any plugin is called, so that what it prepares is never forgotten.
        self._cache.save()
        pending = [info for info in infos if not info.prepared]
        for driver, keys in group_by_driver((info.key, info.drivers) for info in pending).items():
            await self._prepare_with(driver, keys)
        for info in pending:
            info.prepared = True
        self._cache.save()

    async def unprepare(self, pod_uid: str) -> None:
        """Have the claims that only this pod still uses unprepared; raises one of CLAIM_ERRORS."""
        last: list[ClaimInfo] = []
        for info in self._cache.of_pod(pod_uid):
            if info.pods == {pod_uid}:
                last.append(info)
            else:
                info.pods.discard(pod_uid)
        for driver, keys in group_by_driver((info.key, info.drivers) for info in last).items():
            await self._unprepare_with(driver, keys)
        for info in last:
            self._cache.remove(info)
        self._cache.save()

    async def reconcile(self, pods: Collection[str]) -> Mapping[str, Exception]:
        """Unprepare what belongs to pods that are not among these; the errors by pod uid."""
        errors: dict[str, Exception] = {}
        for uid in sorted(self._cache.pods() - set(pods)):
            try:
                await self.unprepare(uid)
            except CLAIM_ERRORS as error:
                errors[uid] = error
        return errors

    def find_cdi_ids(self, pod: JsonObject, container: JsonObject) -> tuple[str, ...]:
        """The CDI devices of a container, in the order in which it names its claims."""
        devices = [device for _, found in self.find_devices(pod, container) for _, device in found]
        return tuple(one for device in devices for one in device.cdi_ids)

    def find_devices(self, pod: JsonObject, container: JsonObject) -> Sequence[tuple[str, Sequence[DriverDevice]]]:
        """The devices of a container's claims, each claim named as in `allocatedResourcesStatus`."""
        names = {claim.entry: claim.claim for claim in find_pod_claims(pod)}
        found = []
        for entry, request in container_requests(container):
            info = self._cache.get(pod["metadata"]["namespace"], names[entry]) if entry in names else None
            label = f"claim:{entry}/{request}" if request else f"claim:{entry}"
            found.append((label, tuple(info.select_devices(request)) if info else ()))
        return tuple(found)

    async def _check(self, pod: JsonObject, pod_claim: PodClaim) -> JsonObject:
        """The claim, if the pod may use it and all its drivers are there, also for what is prepared already."""
        name, namespace = pod_claim.claim, pod["metadata"]["namespace"]
        try:
            claim = await self._client.get(RESOURCE_CLAIMS, name, namespace=namespace)
        except KubeError as error:
            raise PodClaimError(f"fetch ResourceClaim {name}: {error}") from error
        check_claim(pod, pod_claim, claim)
        for driver in find_drivers(claim):
            self._plugins.choose(driver)
        return claim

    def _admit(self, pod: JsonObject, claim: JsonObject) -> ClaimInfo:
        """The claim's entry in the cache, this pod among its users."""
        key = claim_key(claim)
        info = self._cache.get(key.namespace, key.name)
        if info is None:
            info = ClaimInfo(key=key, drivers=find_drivers(claim))
            self._cache.add(info)
        elif info.key.uid != key.uid:
            raise PodClaimError(
                f"old ResourceClaim with same name {key.name} and different UID {info.key.uid} still exists "
                "(previous pod force-deleted?!)"
            )
        info.pods.add(pod["metadata"]["uid"])
        return info

    async def _prepare_with(self, driver: str, keys: Sequence[ClaimKey]) -> None:
        with self._reported("NodePrepareResources", driver, keys) as ids:
            answer = await self._plugins.choose(driver).prepare(keys)
            ids += [one for devices in answer.values() for device in devices for one in device.cdi_ids]
        for key in keys:
            info = self._cache.get(key.namespace, key.name)
            if info is not None:
                info.devices.setdefault(driver, []).extend(answer[key.uid])

    async def _unprepare_with(self, driver: str, keys: Sequence[ClaimKey]) -> None:
        with self._reported("NodeUnprepareResources", driver, keys):
            await self._plugins.choose(driver).unprepare(keys)

    @contextmanager
    def _reported(self, method: str, driver: str, keys: Sequence[ClaimKey]) -> Iterator[list[str]]:
        """Report the call that is made inside the block, which adds the CDI ids that it gets."""
        start = time.monotonic()
        ids: list[str] = []
        failure: Exception | None = None
        try:
            yield ids
        except (AnswerError, CallError, NotRegistered) as error:
            failure = error
            raise
        finally:
            called = Called(
                method=method,
                driver=driver,
                claims=tuple(f"{key.namespace}/{key.name}" for key in keys),
                cdi_ids=tuple(ids),
                seconds=time.monotonic() - start,
                error=str(failure or ""),
                answered=failure is None or isinstance(failure, AnswerError),
            )
            self._report(called)
