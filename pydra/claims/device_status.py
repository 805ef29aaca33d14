"""Writes what a backend says of claims' devices, and their health, into `status.devices` of the ResourceClaims.

Level-triggered: records and the last discover say what is wanted; what was written is known by claim. A write that
fails is repeated until it succeeds, or the claim has ended. Entries of other drivers stay. Nothing is written before
the first discover: conditions that an earlier agent wrote keep their time. Source: KEP-4817.

A merge patch of the version that was read writes them, and not server-side apply: that sorts the keys of the
allocation's parameters, too, and the API server (1.36) refuses this as a change of the allocation.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import msgspec
from msgspec.structs import replace

from pydra.backoff import find_pause
from pydra.checkpoint.record import Record, Stage
from pydra.claim import ClaimRef, PreparedDevice
from pydra.devices import ClaimDeviceStatus, Condition, DeviceHealth, DeviceStatus, HealthStatus, NetworkData
from pydra.errors import Conflict, KubeError, NotFound, Unavailable
from pydra.inventory.api_rules import CONDITIONS
from pydra.kube.api_resources import RESOURCE_CLAIMS, JsonObject
from pydra.message_text import cut

if TYPE_CHECKING:
    from pydra.checkpoint.store import RecordStore
    from pydra.kube.client import KubeClient

_log = logging.getLogger(__name__)
FIRST_SECONDS = 1.0
CAP_SECONDS = 300.0
OUTAGE_CAP_SECONDS = 5.0
"""Of pauses while the API server does not answer. A refusal lasts until an admin acts."""
_RIGHTS = (
    "the agent needs `patch` of resourceclaims/status and, from Kubernetes 1.36, `associated-node:patch` of "
    "resourceclaims/driver, which the chart gives with settings.deviceStatus"
)
_SPACES = (
    "the API server refuses to change the status of a claim whose parameters were written with spaces, as Python's "
    "json.dumps does without separators=(',', ':'); create the claim, or its template, without them or with kubectl"
)
_ATTEMPTS = 5
"""Writes in a row that others may be faster than."""
_STATUSES = {True: "True", False: "False", None: "Unknown"}
_HEALTHY = "Healthy"
_HEALTH: Mapping[HealthStatus, tuple[bool | None, str]] = {
    HealthStatus.HEALTHY: (True, "DeviceHealthy"),
    HealthStatus.UNHEALTHY: (False, "DeviceUnhealthy"),
    HealthStatus.UNKNOWN: (None, "HealthUnknown"),
}
_MESSAGE = 1024
_GONE = "the node does not publish this device any more"

_Entry: TypeAlias = tuple[PreparedDevice, DeviceStatus]

StatusIndex: TypeAlias = Mapping[tuple[str, str, str | None], DeviceStatus]
"""What the last discover says of claims' devices, by the claim's uid, the device and the share."""


class StatusWritten(msgspec.Struct, frozen=True, kw_only=True):
    """The claim's status has what the backend says of its devices, or, with a problem, is tried again."""

    driver: str
    ref: ClaimRef
    problem: str = ""


class DeviceWarning(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner of a claim should change."""

    ref: ClaimRef
    message: str


class ClaimStatuses(msgspec.Struct, frozen=True, kw_only=True):
    """What the status of a claim should say; without entries, nothing."""

    ref: ClaimRef
    entries: tuple[_Entry, ...] = ()


def index_statuses(statuses: Sequence[ClaimDeviceStatus]) -> StatusIndex:
    """Return what the last discover says, for `find_status`."""
    return {(one.claim_uid, one.device, one.share_id): one.status for one in statuses}


def find_status(uid: str, device: PreparedDevice, latest: StatusIndex) -> DeviceStatus | None:
    """Return what is said of a claim's device now: by the last discover, else by `prepare`."""
    return latest.get((uid, device.device, device.share_id), device.status)


def find_warnings(records: Mapping[str, Record], statuses: Sequence[ClaimDeviceStatus]) -> tuple[DeviceWarning, ...]:
    """Return what the last discover warns the owners of held claims of, each text once for a claim."""
    found: dict[DeviceWarning, None] = {}
    for one in statuses:
        record = records.get(one.claim_uid)
        if one.warning and record is not None and record.claim.name:
            found[DeviceWarning(ref=ClaimRef.of(record.claim), message=one.warning)] = None
    return tuple(found)


def collect_statuses(
    records: Mapping[str, Record],
    statuses: Sequence[ClaimDeviceStatus],
    health: Sequence[DeviceHealth],
    *,
    boot_id: str,
) -> Mapping[str, ClaimStatuses]:
    """Return by uid what is said of the devices of prepared claims.

    Each has the condition `Healthy`, from what is published of the device, unless the backend has one of its own.
    """
    latest = index_statuses(statuses)
    published = {(one.pool, one.device): one for one in health}
    wanted: dict[str, ClaimStatuses] = {}
    for uid, record in records.items():
        if record.stage is not Stage.COMPLETED or record.boot_id != boot_id:
            continue
        if not record.prepared or not record.claim.name:  # a record of an older version may lack the name
            continue
        entries = []
        for one in record.prepared:
            status = find_status(uid, one, latest) or DeviceStatus()
            entries.append((one, _add_health(status, published.get((one.pool, one.device)))))
        wanted[uid] = ClaimStatuses(ref=ClaimRef.of(record.claim), entries=tuple(entries))
    return wanted


def _add_health(status: DeviceStatus, health: DeviceHealth | None) -> DeviceStatus:
    if len(status.conditions) >= CONDITIONS or any(one.type == _HEALTHY for one in status.conditions):
        return status
    value, reason = _HEALTH[health.status if health else HealthStatus.UNKNOWN]
    message = cut(health.message, _MESSAGE) if health else _GONE
    healthy = Condition(type=_HEALTHY, status=value, reason=reason, message=message)
    return replace(status, conditions=(*status.conditions, healthy))


def _explain(error: KubeError) -> str:
    if error.status == HTTPStatus.FORBIDDEN:
        return f"{error}; {_RIGHTS}"
    if error.status == HTTPStatus.UNPROCESSABLE_ENTITY and "status.allocation" in str(error):
        return f"{_SPACES}: {error}"
    return str(error)


def build_devices(claim: JsonObject, driver: str, entries: Sequence[_Entry], *, now: str) -> list[JsonObject]:
    """Return `status.devices` for the claim as it is now: other drivers' entries as they are, then the driver's.

    A condition keeps the time of its last transition as long as its status is the same. Devices that are not in the
    claim's allocation are left out; the API server would refuse them.
    """
    status = claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    allocated = {_identify(one) for one in results if one.get("driver") == driver}
    present = status.get("devices") or ()
    before = {_identify(one): one for one in present if one.get("driver") == driver}
    built = [one for one in present if one.get("driver") != driver]
    for device, wanted in entries:
        entry: JsonObject = {"driver": driver, "pool": device.pool, "device": device.device}
        if device.share_id:
            entry["shareID"] = device.share_id
        if _identify(entry) not in allocated:
            continue
        known = {one["type"]: one for one in before.get(_identify(entry), {}).get("conditions") or ()}
        conditions = []
        for one in wanted.conditions:
            spelled = _STATUSES[one.status]
            last = known.get(one.type, {})
            time = last.get("lastTransitionTime", now) if last.get("status") == spelled else now
            texts = {"reason": one.reason, "message": one.message}
            conditions.append({"type": one.type, "status": spelled, "lastTransitionTime": time, **texts})
        parts = {
            "conditions": conditions,
            "data": dict(wanted.data),
            "networkData": build_network(wanted.network_data),
        }
        built.append({**entry, **{name: part for name, part in parts.items() if part}})
    return built


def _identify(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return one.get("pool"), one.get("device"), one.get("shareID") or ""


def build_network(data: NetworkData | None) -> JsonObject:
    """Return the API's `networkData`; empty for none."""
    if data is None:
        return {}
    fields = {"interfaceName": data.interface_name, "ips": list(data.ips), "hardwareAddress": data.hardware_address}
    return {name: value for name, value in fields.items() if value}


def choose_pause(error: KubeError, failures: int) -> float:
    """Return the seconds to wait after `failures` rounds in a row (at least 1), the last of them with `error`."""
    if isinstance(error, Unavailable):
        return max(error.retry_after, find_pause(failures, first=FIRST_SECONDS, cap=OUTAGE_CAP_SECONDS))
    return find_pause(failures, first=FIRST_SECONDS, cap=CAP_SECONDS)


class DeviceStatusWriter:
    """Writes the statuses of one driver's claims."""

    def __init__(
        self,
        client: KubeClient,
        store: RecordStore,
        *,
        driver: str,
        boot_id: str,
        report: Callable[[StatusWritten], None],
    ) -> None:
        self._client = client
        self._store = store
        self._driver = driver
        self._boot_id = boot_id
        self._report = report
        self._statuses: tuple[ClaimDeviceStatus, ...] = ()
        self._health: tuple[DeviceHealth, ...] | None = None
        self._written: dict[str, ClaimStatuses] = {}
        self._woken = anyio.Event()

    def publish(self, statuses: tuple[ClaimDeviceStatus, ...], health: tuple[DeviceHealth, ...]) -> None:
        """Set what the last discover said of claims' devices, and the health that is published of all devices."""
        if statuses != self._statuses or health != self._health:
            self._statuses, self._health = statuses, health
            self.wake()

    def wake(self) -> None:
        """Look at the records: a claim was prepared or unprepared."""
        self._woken.set()

    async def run(self) -> None:
        """Write until cancelled."""
        failures = 0
        while True:
            self._woken = anyio.Event()
            errors = await self._write_changes()
            failures = failures + 1 if errors else 0
            with anyio.move_on_after(min((choose_pause(one, failures) for one in errors), default=math.inf)):
                await self._woken.wait()

    async def _write_changes(self) -> list[KubeError]:
        """Return why something is not written."""
        if self._health is None:
            return []
        wanted = collect_statuses(self._store.records, self._statuses, self._health, boot_id=self._boot_id)
        ended = {uid: ClaimStatuses(ref=one.ref) for uid, one in self._written.items() if uid not in wanted}
        errors = []
        for uid, one in {**wanted, **ended}.items():
            if self._written.get(uid) == one:
                continue
            try:
                await self._write(one)
            except KubeError as error:
                errors.append(error)
                text = _explain(error)
                _log.warning("the status of claim %s is not written: %s", one.ref, text)
                self._report(StatusWritten(driver=self._driver, ref=one.ref, problem=text))
                continue
            if one.entries:
                self._written[uid] = one
            else:
                del self._written[uid]
            self._report(StatusWritten(driver=self._driver, ref=one.ref))
        return errors

    async def _write(self, wanted: ClaimStatuses) -> None:
        """Write the entries; again at once if somebody else has written the claim since it was read."""
        for _ in range(_ATTEMPTS - 1):
            with suppress(Conflict):
                return await self._write_once(wanted)
        return await self._write_once(wanted)

    async def _write_once(self, wanted: ClaimStatuses) -> None:
        ref = wanted.ref
        try:
            claim = await self._client.get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
            if claim["metadata"]["uid"] != ref.uid:
                return  # another claim of the same name: ours has ended
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            devices = build_devices(claim, self._driver, wanted.entries, now=now)
            if devices != ((claim.get("status") or {}).get("devices") or []):
                body = {
                    "metadata": {"resourceVersion": claim["metadata"]["resourceVersion"]},
                    "status": {"devices": devices},
                }
                await self._client.patch(RESOURCE_CLAIMS, ref.name, body, namespace=ref.namespace, subresource="status")
        except NotFound as error:
            if not error.is_of_object:
                raise
