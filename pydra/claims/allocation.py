"""Parses a ResourceClaim into the driver's `Claim`.

The object comes from the network: shapes and names are checked, and each problem is reported with its path.
Source: Kubernetes API reference, resource.k8s.io/v1 ResourceClaim and its validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pydra.claim import AllocatedDevice, Claim, ClaimRef, OpaqueConfig, PodRef, find_device_name_problem
from pydra.errors import ClaimError, ClaimShared, NotAllocated, Replaced
from pydra.json_encodable import find_json_problems
from pydra.message_text import cut


class _Opaque(msgspec.Struct, frozen=True):
    driver: str
    parameters: dict[str, Any]


class _Config(msgspec.Struct, frozen=True):
    source: str = ""
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


class _Spec(msgspec.Struct, frozen=True):
    devices: _Devices = _Devices()


class _ResourceClaim(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status | None = None


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """What an allocated claim has for one driver: its devices, and the pods that may use them."""

    claim: Claim
    pods: tuple[PodRef, ...] = ()


def parse_allocation(resource_claim: object, ref: ClaimRef, driver: str, *, one_pod: bool = False) -> Allocation:
    """Parse the claim with the driver's own devices, and for each device the configs that apply, weakest first.

    Results and configs of other drivers are left out. With `one_pod`, the claim names the pod that uses it.

    Raises:
        ClaimShared: `one_pod`, and the claim is not reserved for exactly one pod.
        Replaced: the object has another uid than the reference.
        NotAllocated: there is no allocation, or none of its devices is this driver's.
        ClaimError: the object violates the API's schema; the message has the path.
    """
    try:
        found = msgspec.convert(resource_claim, _ResourceClaim)
    except msgspec.ValidationError as error:
        raise ClaimError(f"claim {ref}: the API server's object cannot be read: {error}") from error
    if found.metadata.uid != ref.uid:
        raise Replaced(
            f"claim {ref} was replaced: the kubelet sent uid {ref.uid}, the API server has "
            f"{_quote(found.metadata.uid)}; pods of the deleted claim cannot start any more, delete them"
        )
    status = found.status or _Status()
    if status.allocation is None or (allocation := status.allocation.devices) is None:
        raise NotAllocated(
            f"claim {ref} is not allocated; the scheduler allocates it when it places a pod that uses it, "
            "so do not set spec.nodeName on such a pod"
        )
    devices = _parse_devices(allocation, found.spec.devices.config or (), ref, driver)
    if not devices:
        others = sorted({_quote(result.driver) for result in allocation.results or ()})
        raise NotAllocated(f"claim {ref} has no device of driver {driver}; it has {', '.join(others) or 'none at all'}")
    pods = [
        PodRef(uid=consumer.uid, namespace=ref.namespace, name=consumer.name)
        for consumer in status.reserved_for or ()
        if consumer.resource == "pods"
    ]
    pod = _find_only_pod(pods, ref, driver) if one_pod else None
    claim = Claim(uid=ref.uid, namespace=ref.namespace, name=ref.name, devices=tuple(devices), pod=pod)
    # The API's JSON allows what neither the wire nor a record can contain: huge integers, unpaired surrogates.
    configs = {config.position: config for device in devices for config in device.configs}
    if problems := [
        f"{position}: {problem}"
        for position, config in configs.items()
        for problem in find_json_problems(config.parameters, "$")
    ]:
        raise ClaimError(f"claim {ref}: {'; '.join(problems)}")
    try:
        msgspec.msgpack.encode(claim)
    except UnicodeEncodeError as error:
        raise ClaimError(f"claim {ref}: status.allocation: {error}") from error
    return Allocation(claim=claim, pods=tuple(pods))


def base_request(request: str) -> str:
    """Return `gpu` for `gpu` and for `gpu/large`: the name that containers and the kubelet use."""
    return request.partition("/")[0]


def _find_only_pod(pods: Sequence[PodRef], ref: ClaimRef, driver: str) -> PodRef:
    if len(pods) == 1:
        return pods[0]
    names = ", ".join(sorted(_quote(pod.name) for pod in pods)) or "no pod"
    raise ClaimShared(
        f"claim {ref} is reserved for {names}, and devices of {driver} can be used by one pod only; give each pod a "
        "claim of its own, by a ResourceClaimTemplate"
    )


def _parse_devices(
    allocation: _Devices, written: Sequence[_Config], ref: ClaimRef, driver: str
) -> list[AllocatedDevice]:
    entries = _own_configs(allocation.config, written, driver) if allocation.config else ()
    devices: list[AllocatedDevice] = []
    for index, result in enumerate(allocation.results or ()):
        if result.driver != driver:
            continue
        if problem := find_device_name_problem(result.request, result.pool, result.device, result.share_id):
            raise ClaimError(f"claim {ref}: status.allocation.devices.results[{index}].{problem}")
        configs, explicit = _choose_configs(entries, result.request) if entries else ((), ())
        devices.append(
            AllocatedDevice(
                request=result.request,
                pool=result.pool,
                device=result.device,
                share_id=result.share_id,
                consumed_capacity=result.consumed_capacity or {},
                admin_access=bool(result.admin_access),
                configs=configs,
                explicit=explicit,
            )
        )
    return devices


def _own_configs(
    entries: Sequence[_Config], written: Sequence[_Config], driver: str
) -> list[tuple[tuple[str, ...], OpaqueConfig]]:
    """Return the driver's configs, weakest first, with their requests; numbered within their source, from 1.

    The claim's own have their place among those `written` in the claim. The scheduler copies one for each request that
    it names, and leaves out those for alternatives that were not chosen.
    """
    own: dict[bool, list[tuple[tuple[str, ...], OpaqueConfig]]] = {True: [], False: []}
    numbers: dict[str, int] = {}
    for entry in entries:
        numbers[entry.source] = number = numbers.get(entry.source, 0) + 1
        if entry.opaque is None or entry.opaque.driver != driver:
            continue
        requests = entry.requests or ()
        of = f" (request {', '.join(requests)})" if requests else ""
        place = _find_place(entry, written)
        position = f"{entry.source} config {number}{of}" if place is None else f"spec.devices.config[{place}]{of}"
        config = OpaqueConfig(source=entry.source, position=position, parameters=entry.opaque.parameters)
        own[entry.source == "FromClass"].append((requests, config))
    # The API lists those of the class first, but the order is too important to rely on that.
    return own[True] + own[False]


def _find_place(entry: _Config, written: Sequence[_Config]) -> int | None:
    try:
        return next(
            place
            for place, one in enumerate(written)
            if one.opaque == entry.opaque and (one.requests or ()) == (entry.requests or ())
        )
    except (StopIteration, RecursionError):  # parameters can be nested without end
        return None


def _choose_configs(
    entries: Sequence[tuple[tuple[str, ...], OpaqueConfig]], request: str
) -> tuple[tuple[OpaqueConfig, ...], tuple[bool, ...]]:
    """Return the last config of each kind for a request, weakest first, and for each whether it names the request.

    A kind is `apiVersion` and `kind`; a config without them is a kind of its own, which its decoder refuses.
    """
    kept: dict[object, tuple[OpaqueConfig, bool]] = {}
    for requests, config in entries:
        if requests and request not in requests and base_request(request) not in requests:
            continue
        version, kind = config.parameters.get("apiVersion"), config.parameters.get("kind")
        key = (version, kind) if isinstance(version, str) and isinstance(kind, str) else config.position
        kept.pop(key, None)
        # For a class's config this means nothing: the allocator always adds the request.
        kept[key] = config, bool(requests) and config.source == "FromClaim"
    configs, explicit = zip(*kept.values(), strict=True) if kept else ((), ())
    return configs, explicit


def _quote(text: str) -> str:
    """Escape the text for a message, and shorten it."""
    return ascii(cut(text, 64))
