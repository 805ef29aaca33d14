"""From a ResourceClaim as the API server gives it to the `Claim` that one driver's backend sees.

Pure. The object comes from the network: shapes and names are checked, and whatever is wrong is said
with its path. Source: Kubernetes API reference, resource.k8s.io/v1 ResourceClaim and its validation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from pydra.claim import AllocatedDevice, Claim, ClaimRef, OpaqueConfig, PodRef
from pydra.errors import ClaimError, NotAllocated, Replaced
from pydra.limits import LABEL

_LABEL = LABEL.pattern
_SUBDOMAIN = rf"{_LABEL}(?:\.{_LABEL})*"
_UID = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9]{0,62}[A-Za-z0-9])?")
_NAMESPACE = re.compile(_LABEL)
_NAME = re.compile(_SUBDOMAIN)
_REQUEST = re.compile(rf"{_LABEL}(?:/{_LABEL})?")
_POOL = re.compile(rf"{_SUBDOMAIN}(?:/{_SUBDOMAIN})*")
_DEVICE = re.compile(_LABEL)
_LONGEST_NAME = 253


class _Opaque(msgspec.Struct, frozen=True):
    driver: str
    parameters: dict[str, Any]


class _Config(msgspec.Struct, frozen=True):
    source: str
    requests: tuple[str, ...] | None = None
    opaque: _Opaque | None = None


class _Result(msgspec.Struct, frozen=True, rename="camel"):
    request: str
    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    admin_access: bool | None = None
    consumed_capacity: dict[str, str] | None = None


class _Devices(msgspec.Struct, frozen=True):
    results: tuple[_Result, ...] | None = None
    config: tuple[_Config, ...] | None = None


class _Allocation(msgspec.Struct, frozen=True):
    devices: _Devices | None = None


class _Consumer(msgspec.Struct, frozen=True):
    resource: str
    name: str
    uid: str


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: tuple[_Consumer, ...] | None = None


class _Metadata(msgspec.Struct, frozen=True):
    uid: str


class _ResourceClaim(msgspec.Struct, frozen=True):
    metadata: _Metadata
    status: _Status | None = None


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """What an allocated claim says to one driver: its devices, and the pods that may use them."""

    claim: Claim
    pods: tuple[PodRef, ...] = ()


def parse_allocation(resource_claim: object, ref: ClaimRef, driver: str) -> Allocation:
    """The claim with the driver's own devices, and for each the configs that apply, weakest first.

    Results and configs of other drivers are left out.

    Raises:
        Replaced: the object has another uid than the reference.
        NotAllocated: there is no allocation, or none of its devices is this driver's.
        ClaimError: the object is not what the API promises; the message has the path.
    """
    try:
        found = msgspec.convert(resource_claim, _ResourceClaim)
    except msgspec.ValidationError as error:
        raise ClaimError(f"claim {ref}: the API server's object cannot be read: {error}") from error
    if found.metadata.uid != ref.uid:
        raise Replaced(
            f"claim {ref} was replaced: the kubelet asks for uid {ref.uid}, the API server has "
            f"{_quote(found.metadata.uid)}; pods of the deleted claim cannot start any more, delete them"
        )
    status = found.status or _Status()
    if status.allocation is None or (allocation := status.allocation.devices) is None:
        raise NotAllocated(
            f"claim {ref} is not allocated; the scheduler allocates it when it places a pod that uses it, "
            "so do not set spec.nodeName on such a pod"
        )
    devices = tuple(_parse_devices(allocation, ref, driver))
    if not devices:
        others = sorted({_quote(result.driver) for result in allocation.results or ()})
        raise NotAllocated(f"claim {ref} has no device of driver {driver}; it has {', '.join(others) or 'none at all'}")
    claim = Claim(uid=ref.uid, namespace=ref.namespace, name=ref.name, devices=devices)
    _check_storable(claim, ref)
    return Allocation(claim=claim, pods=tuple(_pods(status, ref.namespace)))


def base_request(request: str) -> str:
    """`gpu` for `gpu` and for `gpu/large`: the name that containers and the kubelet use."""
    return request.partition("/")[0]


def _parse_devices(allocation: _Devices, ref: ClaimRef, driver: str) -> Iterator[AllocatedDevice]:
    configs = tuple(_opaque_configs(allocation.config or (), driver))
    for index, result in enumerate(allocation.results or ()):
        if result.driver != driver:
            continue
        _check_names(result, f"claim {ref}: status.allocation.devices.results[{index}]")
        chosen = _strongest(
            # A class cannot help naming the request: the allocator does it, whatever the class has.
            (config, bool(requests) and config.source == "FromClaim")
            for requests, config in configs
            if _concerns(requests, result.request)
        )
        yield AllocatedDevice(
            request=result.request,
            pool=result.pool,
            device=result.device,
            share_id=result.share_id or None,
            consumed_capacity=result.consumed_capacity or {},
            admin_access=bool(result.admin_access),
            configs=tuple(config for config, _ in chosen),
            explicit=tuple(explicit for _, explicit in chosen),
        )


def _opaque_configs(entries: Sequence[_Config], driver: str) -> Iterator[tuple[tuple[str, ...], OpaqueConfig]]:
    """The driver's configs with the requests they are for; numbered within their source, from 1, as people count."""
    numbers: dict[str, int] = {}
    # The API lists class configs first. Sorting (which is stable) says so once more, since all depends on it.
    for entry in sorted(entries, key=lambda entry: entry.source != "FromClass"):
        numbers[entry.source] = number = numbers.get(entry.source, 0) + 1
        if entry.opaque is None or entry.opaque.driver != driver:
            continue
        requests = entry.requests or ()
        of = f" (request {', '.join(requests)})" if requests else ""
        position = f"{entry.source} config {number}{of}"
        yield requests, OpaqueConfig(source=entry.source, position=position, parameters=entry.opaque.parameters)


def _concerns(requests: Sequence[str], request: str) -> bool:
    return not requests or request in requests or base_request(request) in requests


def _strongest(configs: Iterator[tuple[OpaqueConfig, bool]]) -> tuple[tuple[OpaqueConfig, bool], ...]:
    """One config of each kind, the last; in the order of the ones that stay, so that the strongest comes last."""
    kept: dict[object, tuple[OpaqueConfig, bool]] = {}
    for config, explicit in configs:
        kind = _kind(config)
        kept.pop(kind, None)
        kept[kind] = config, explicit
    return tuple(kept.values())


def _kind(config: OpaqueConfig) -> object:
    """The config's `apiVersion` and `kind`; one without them is a kind of its own, for its decoder to refuse."""
    named = (config.parameters.get("apiVersion"), config.parameters.get("kind"))
    return named if all(isinstance(part, str) for part in named) else config.position


def _check_names(result: _Result, path: str) -> None:
    for what, text, pattern, allowed in (
        ("request", result.request, _REQUEST, "a DNS label, or two with a slash between"),
        ("pool", result.pool, _POOL, "DNS subdomains with slashes between"),
        ("device", result.device, _DEVICE, "a DNS label"),
        ("shareID", result.share_id or "0", _UID, "a UUID"),
    ):
        if len(text) > _LONGEST_NAME or not pattern.fullmatch(text):
            raise ClaimError(f"{path}.{what} is {_quote(text)}; it must be {allowed}")


def _check_storable(claim: Claim, ref: ClaimRef) -> None:
    """Refuse what JSON can say but neither the wire nor a record can carry: huge integers, half characters."""
    try:
        msgspec.msgpack.encode(claim)
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        places = {config.position for device in claim.devices for config in device.configs if _unstorable(config)}
        where = ", ".join(sorted(places)) or "status.allocation"
        raise ClaimError(f"claim {ref}: {where} has a value that cannot be kept: {error}") from error


def _unstorable(config: OpaqueConfig) -> bool:
    try:
        msgspec.msgpack.encode(config)
    except (OverflowError, UnicodeEncodeError, RecursionError):
        return True
    return False


def _pods(status: _Status, namespace: str) -> Iterator[PodRef]:
    for consumer in status.reserved_for or ():
        if consumer.resource == "pods":
            yield PodRef(uid=consumer.uid, namespace=namespace, name=consumer.name)


def _quote(text: str) -> str:
    """The text for a message: escaped, and cut where it is long."""
    return ascii(text if len(text) <= 64 else text[:61] + "...")
