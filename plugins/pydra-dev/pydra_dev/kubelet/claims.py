"""Which claims a pod has, who must prepare them, and what the kubelet remembers of them.

Whether a claim is prepared is not in the file that outlives the kubelet: after a restart plugins are asked again.
Answers of plugins are checked here; their texts are what a user reads in the pod's Events. Source:
pkg/kubelet/cm/dra/manager.go, staging/src/k8s.io/dynamic-resource-allocation/resourceclaim.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from pydra.kubelet.pb.dra_v1 import Device, NodePrepareResourceResponse, NodeUnprepareResourceResponse

JsonObject: TypeAlias = Mapping[str, Any]


class ClaimKey(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A claim as it is sent to plugins."""

    namespace: str
    name: str
    uid: str


class PodClaim(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `spec.resourceClaims` and the ResourceClaim that it stands for; `generated` from a template."""

    entry: str
    claim: str
    generated: bool


class PodClaimError(Exception):
    """The pod cannot be started with its claims as they are; the text is the event's."""


def find_pod_claims(pod: JsonObject) -> tuple[PodClaim, ...]:
    """The claims of a pod; raises PodClaimError while one of a template has not been created yet."""
    statuses = {
        one["name"]: one.get("resourceClaimName") for one in pod.get("status", {}).get("resourceClaimStatuses") or ()
    }
    return tuple(_pod_claims(pod, statuses))


def _pod_claims(pod: JsonObject, statuses: Mapping[str, str | None]) -> Iterator[PodClaim]:
    for entry in pod["spec"].get("resourceClaims") or ():
        name = entry["name"]
        if direct := entry.get("resourceClaimName"):
            yield PodClaim(entry=name, claim=direct, generated=False)
        elif name not in statuses:
            raise PodClaimError(f'pod claim "{name}": resource claim not created yet')
        elif generated := statuses[name]:
            yield PodClaim(entry=name, claim=generated, generated=True)
        # A status without a claim's name says that the template's claim is not needed.


def check_claim(pod: JsonObject, pod_claim: PodClaim, claim: JsonObject) -> None:
    """Raise PodClaimError unless the claim is this pod's to use, and allocated."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    uid, pod_name = pod["metadata"]["uid"], f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    if pod_claim.generated and not any(
        owner["uid"] == uid and owner.get("controller") for owner in metadata.get("ownerReferences") or ()
    ):
        raise PodClaimError(
            f"ResourceClaim {metadata['namespace']}/{metadata['name']} was not created for pod {pod_name}"
        )
    if not any(consumer["uid"] == uid for consumer in status.get("reservedFor") or ()):
        raise PodClaimError(
            f"pod {pod['metadata']['name']}({uid}) is not allowed to use resource claim "
            f"{metadata['name']}({metadata['uid']})"
        )
    if not status.get("allocation"):
        raise PodClaimError(f"resource claim {metadata['name']} is not allocated")


def claim_key(claim: JsonObject) -> ClaimKey:
    """The claim's namespace, name and uid."""
    metadata = claim["metadata"]
    return ClaimKey(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])


def find_drivers(claim: JsonObject) -> tuple[str, ...]:
    """The drivers that have a device in the claim's allocation."""
    results = claim["status"]["allocation"].get("devices", {}).get("results") or ()
    return tuple(sorted({result["driver"] for result in results}))


def group_by_driver(claims: Iterable[tuple[ClaimKey, Sequence[str]]]) -> Mapping[str, tuple[ClaimKey, ...]]:
    """Which claims go to which driver, one call each; drivers and claims in order."""
    calls: dict[str, list[ClaimKey]] = {}
    for key, drivers in claims:
        for driver in drivers:
            calls.setdefault(driver, []).append(key)
    return {driver: tuple(sorted(calls[driver])) for driver in sorted(calls)}


def container_requests(container: JsonObject) -> tuple[tuple[str, str], ...]:
    """The pod claims that a container uses, each with the request's name or "" for all of them."""
    used = container.get("resources", {}).get("claims") or ()
    return tuple((one["name"], one.get("request", "")) for one in used)


def explain_missing(
    pod: JsonObject, container: JsonObject, devices: Iterable[tuple[str, Sequence[object]]]
) -> tuple[str, ...]:
    """Why a container has no device of claims of its pod; `devices` are those that it has, by what it names."""
    absent = [label for label, found in devices if "/" in label and not found]
    everybody = (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
    named = {entry for one in everybody for entry, _ in container_requests(one)}
    unnamed = [one.entry for one in find_pod_claims(pod) if one.entry not in named]
    return (
        *(f"no device of {label}: the claim has no such request" for label in absent),
        *(f"no device of claim:{entry}: no container names it in resources.claims" for entry in unnamed),
    )


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device as the kubelet keeps it; no `requests` means that it is for all of the claim's."""

    pool: str
    device: str
    share_id: str | None = None
    requests: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()


class AnswerError(Exception):
    """The answer fails the pod; the text is the event's."""


def parse_prepared(
    names: Mapping[str, str], claims: Mapping[str, NodePrepareResourceResponse | None], *, share_ids: bool = True
) -> Mapping[str, tuple[PreparedDevice, ...]]:
    """The devices of each claim by uid; `names` are those of the claims asked for. Raises AnswerError.

    Kubelets of v1beta1 skip share ids, which their messages do not have.
    """
    _refuse_errors("NodePrepareResources", names, claims)
    return {
        uid: tuple(_parse_device(device, share_ids) for device in entry.devices) if entry else ()
        for uid, entry in claims.items()
    }


def check_unprepared(names: Mapping[str, str], claims: Mapping[str, NodeUnprepareResourceResponse | None]) -> None:
    """Raise AnswerError unless every claim was answered, none that was not asked for, and none with an error."""
    _refuse_errors("NodeUnprepareResources", names, claims)


def _refuse_errors(
    method: str,
    names: Mapping[str, str],
    claims: Mapping[str, NodePrepareResourceResponse | None] | Mapping[str, NodeUnprepareResourceResponse | None],
) -> None:
    for uid, entry in sorted(claims.items()):
        if uid not in names:
            raise AnswerError(f"{method} returned result for unknown claim UID {uid}")
        # An entry without a value is, in protobuf, an empty message.
        if entry and entry.error:
            raise AnswerError(f"{method} failed for ResourceClaim {names[uid]}: {entry.error}")
    if skipped := len(names) - len(claims):
        raise AnswerError(f"{method} skipped {skipped} ResourceClaims")


def _parse_device(device: Device, share_ids: bool) -> PreparedDevice:
    return PreparedDevice(
        pool=device.pool_name,
        device=device.device_name,
        share_id=device.share_id if share_ids else None,
        requests=tuple(device.request_names),
        cdi_ids=tuple(device.cdi_device_ids),
    )


DriverDevice: TypeAlias = tuple[str, PreparedDevice]
KIND, API_VERSION = "DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1"


class ClaimInfo(msgspec.Struct, kw_only=True):
    """One claim on this node; changed in place, by the preparer alone."""

    key: ClaimKey
    drivers: tuple[str, ...]
    pods: set[str] = msgspec.field(default_factory=set)
    devices: dict[str, list[PreparedDevice]] = msgspec.field(default_factory=dict)
    prepared: bool = False

    def select_devices(self, request: str) -> Iterator[DriverDevice]:
        """The prepared devices for a request, or for all of them when it is empty, each with its driver."""
        for driver in sorted(self.devices):
            for device in self.devices[driver]:
                if not request or not device.requests or request in device.requests:
                    yield driver, device


class _Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    api_version: str = msgspec.field(name="apiVersion")
    claims: tuple[_Entry, ...] = msgspec.field(name="ClaimInfoStateList")


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    uid: str = msgspec.field(name="ClaimUID")
    info: ClaimInfo


class _File(msgspec.Struct, frozen=True, kw_only=True):
    data: str = msgspec.field(name="Data")
    checksum: int = msgspec.field(name="Checksum")


class ClaimCache:
    """Claims by namespace and name; `save` writes the file at `path`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._claims: dict[tuple[str, str], ClaimInfo] = {}

    def load(self) -> None:
        """Read the file, if there is one; raises ValueError when it is damaged."""
        try:
            with open(self._path, "rb") as stream:
                file = msgspec.json.decode(stream.read(), type=_File)
        except FileNotFoundError:
            return
        if zlib.crc32(file.data.encode()) != file.checksum:
            raise ValueError(f"checkpoint {self._path} is corrupt: its checksum does not match")
        for entry in msgspec.json.decode(file.data, type=_Checkpoint).claims:
            info = entry.info
            info.prepared = False
            self._claims[info.key.namespace, info.key.name] = info

    def save(self) -> None:
        """Write the file in place of the old one."""
        claims = tuple(_Entry(uid=info.key.uid, info=info) for info in self.infos())
        data = msgspec.json.encode(_Checkpoint(kind=KIND, api_version=API_VERSION, claims=claims))
        draft = f"{self._path}.tmp"
        with open(draft, "wb") as stream:
            stream.write(msgspec.json.encode(_File(data=data.decode(), checksum=zlib.crc32(data))))
        os.replace(draft, self._path)

    def get(self, namespace: str, name: str) -> ClaimInfo | None:
        """The claim of this name, whatever its uid."""
        return self._claims.get((namespace, name))

    def add(self, info: ClaimInfo) -> None:
        """Remember a claim."""
        self._claims[info.key.namespace, info.key.name] = info

    def remove(self, info: ClaimInfo) -> None:
        """Forget a claim."""
        self._claims.pop((info.key.namespace, info.key.name), None)

    def of_pod(self, uid: str) -> tuple[ClaimInfo, ...]:
        """The claims that a pod uses, in order."""
        return tuple(self._claims[name] for name in sorted(self._claims) if uid in self._claims[name].pods)

    def infos(self) -> tuple[ClaimInfo, ...]:
        """All claims, in order."""
        return tuple(self._claims[name] for name in sorted(self._claims))

    def pods(self) -> frozenset[str]:
        """The uids of all pods that use a claim."""
        return frozenset(uid for info in self._claims.values() for uid in info.pods)
