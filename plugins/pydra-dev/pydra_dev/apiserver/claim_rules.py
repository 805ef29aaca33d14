"""What the API server demands of ResourceClaims, templates and DeviceClasses, and what it fills in. Pure.

CEL expressions must compile; what their evaluation says of a device is the allocator's.
Source: `pkg/apis/resource/validation/validation.go` and `v1/defaults.go`, Kubernetes 1.36.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from pydra_dev.api import schema
from pydra_dev.api.errors import duplicate, forbidden, invalid, required, too_long, too_many, unsupported
from pydra_dev.apiserver.name_and_list_validation import (
    Errors,
    check_driver,
    check_full_attribute_name,
    check_label,
    check_label_key,
    check_label_value,
    check_list,
    check_pool,
    check_required,
    check_set,
    check_subdomain,
    check_uid,
    size,
)
from pydra_dev.apiserver.node_selector_rules import check_node_selector
from pydra_dev.apiserver.slice_rules import EFFECTS, check_binding
from pydra_dev.cel.environment import DEFAULT_CEL, CelFeatures, CompileError, compile_selector

MAX_REQUESTS = 32
MAX_SUBREQUESTS = 8
MAX_SELECTORS = 32
MAX_RESULTS = 32
MAX_RESERVED = 256
MAX_TEXT = 10 * 1024
MAX_CONDITIONS = 8
MAX_REASON = 1024
MAX_MESSAGE = 32 * 1024
MODES = ("All", "ExactCount")
STATUSES = ("False", "True", "Unknown")

_EXTENDED = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")

_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_REASON_TEXT = (
    "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric "
    "characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or "
    "'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is "
    "'[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')"
)

WantedT = TypeVar("WantedT", bound=schema.Wanted)
RequestNames = Mapping[str, frozenset[str]]


def default_claim(spec: schema.ClaimSpec) -> schema.ClaimSpec:
    """The spec with allocation modes, counts and tolerations' operators filled in."""
    requests = tuple(
        replace(
            request,
            exactly=_default_request(request.exactly) if request.exactly else None,
            first_available=tuple(_default_request(sub) for sub in request.first_available),
        )
        for request in spec.devices.requests or ()
    )
    # A real server shows the requests even when there are none.
    return replace(spec, devices=replace(spec.devices, requests=requests or None))


def _default_request(request: WantedT) -> WantedT:
    mode = request.allocation_mode or "ExactCount"
    count = request.count or 1 if mode == "ExactCount" else request.count
    tolerations = tuple(replace(t, operator=t.operator or "Equal") for t in request.tolerations)
    return replace(request, allocation_mode=mode, count=count, tolerations=tolerations)


def check_claim(
    spec: schema.ClaimSpec, *, admin_allowed: bool, cel: CelFeatures = DEFAULT_CEL, path: str = "spec"
) -> Errors:
    """Everything wrong with a new claim's spec.

    `admin_allowed`: its namespace carries the admin-access label. `cel`: what selectors may read.
    """
    devices, path = spec.devices, f"{path}.devices"
    names = _request_names(devices)
    yield from check_set(
        f"{path}.requests",
        devices.requests or (),
        MAX_REQUESTS,
        partial(_check_device_request, cel=cel),
        lambda r: r.name,
    )
    check_constraint = partial(_check_constraint, names=names, distinct=cel.shares)
    yield from check_list(f"{path}.constraints", devices.constraints, MAX_REQUESTS, check_constraint)
    yield from check_list(f"{path}.config", devices.config, MAX_REQUESTS, partial(_check_claim_config, names=names))
    asking = (request.exactly is not None and request.exactly.admin_access for request in devices.requests or ())
    yield from _check_admin_access(f"{path}.requests", asking, allowed=admin_allowed)


def _check_admin_access(path: str, granted: Iterable[bool | None], *, allowed: bool) -> Errors:
    """Yield an error for the first item with admin access, unless the namespace allows it."""
    index = next((index for index, is_granted in enumerate(granted) if is_granted), None)
    if index is not None and not allowed:
        yield forbidden(
            f"{path}[{index}].adminAccess",
            "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing "
            "namespace",
        )


def _request_names(devices: schema.DeviceClaim) -> RequestNames:
    return {request.name: frozenset(sub.name for sub in request.first_available) for request in devices.requests or ()}


def _check_device_request(path: str, request: schema.DeviceRequest, *, cel: CelFeatures) -> Errors:
    yield from check_label(f"{path}.name", request.name)
    rule = "exactly one of `exactly` or `firstAvailable` is required"
    if request.exactly is None and not request.first_available:
        yield required(path, rule)
    elif request.exactly is not None and request.first_available:
        yield invalid(path, None, f"{rule}, but multiple fields are set")
    elif request.exactly is not None:
        yield from _check_request(f"{path}.exactly", request.exactly, cel=cel)
    else:
        yield from check_set(
            f"{path}.firstAvailable",
            request.first_available,
            MAX_SUBREQUESTS,
            partial(_check_subrequest, cel=cel),
            lambda sub: sub.name,
        )


def _check_subrequest(path: str, request: schema.Subrequest, *, cel: CelFeatures) -> Errors:
    yield from check_label(f"{path}.name", request.name)
    yield from _check_request(path, request, cel=cel)


def _check_request(path: str, request: schema.Wanted, *, cel: CelFeatures) -> Errors:
    yield from check_required(f"{path}.deviceClassName", request.device_class_name, check_subdomain)
    yield from check_list(f"{path}.selectors", request.selectors, MAX_SELECTORS, partial(check_selector, cel=cel))
    if request.allocation_mode not in MODES:
        yield unsupported(f"{path}.allocationMode", request.allocation_mode, MODES)
    elif request.allocation_mode == "All" and request.count:
        yield invalid(f"{path}.count", request.count, "must not be specified when allocationMode is 'All'")
    elif request.allocation_mode == "ExactCount" and request.count <= 0:
        yield invalid(f"{path}.count", request.count, "must be greater than zero")
    for index, toleration in enumerate(request.tolerations):
        yield from _check_toleration(f"{path}.tolerations[{index}]", toleration)


def check_selector(path: str, selector: schema.Selector, *, cel: CelFeatures = DEFAULT_CEL) -> Errors:
    """A selector must be a CEL expression of at most 10 KiB that compiles. Its cost is not estimated."""
    if selector.cel is None:
        yield required(f"{path}.cel")
        return
    path, expression = f"{path}.cel.expression", selector.cel.expression
    if size(expression) > MAX_TEXT:
        yield too_long(path, MAX_TEXT)
        return
    try:
        compile_selector(expression, cel)
    except CompileError as error:
        yield invalid(path, expression, str(error))


def _check_toleration(path: str, toleration: schema.Toleration) -> Errors:
    if toleration.key:
        yield from check_label_key(f"{path}.key", toleration.key)
    if toleration.operator == "Exists":
        if toleration.value:
            yield invalid(f"{path}.value", toleration.value, "must be empty for operator `Exists`")
    elif toleration.operator == "Equal":
        yield from check_label_value(f"{path}.value", toleration.value)
    else:
        yield unsupported(f"{path}.operator", toleration.operator, ("Equal", "Exists"))
    if toleration.effect and toleration.effect not in EFFECTS:
        yield unsupported(f"{path}.effect", toleration.effect, EFFECTS)


def _check_reference(path: str, name: str, names: RequestNames) -> Errors:
    request, slash, sub = name.partition("/")
    if "/" not in sub:
        for part in name.split("/"):
            yield from check_label(path, part)
    if request not in names or (slash and sub not in names[request]):
        yield invalid(
            path,
            name,
            "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
        )


def _check_constraint(path: str, constraint: schema.Constraint, names: RequestNames, *, distinct: bool) -> Errors:
    check = partial(_check_reference, names=names)
    yield from check_set(f"{path}.requests", constraint.requests, MAX_REQUESTS, check, lambda name: name)
    if constraint.match_attribute is not None:
        yield from check_full_attribute_name(f"{path}.matchAttribute", constraint.match_attribute)
    elif constraint.distinct_attribute is not None:
        yield from check_full_attribute_name(f"{path}.distinctAttribute", constraint.distinct_attribute)
    elif not distinct:
        yield required(f"{path}.matchAttribute")
    else:
        yield required(
            path,
            'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set',
        )


def _check_claim_config(path: str, config: schema.ClaimConfig, names: RequestNames) -> Errors:
    check = partial(_check_reference, names=names)
    yield from check_set(f"{path}.requests", config.requests, MAX_REQUESTS, check, lambda name: name)
    yield from _check_config(path, config)


def _check_config(path: str, config: schema.ClaimConfig) -> Errors:
    if config.opaque is None:
        yield required(f"{path}.opaque")
        return
    yield from check_driver(f"{path}.opaque.driver", config.opaque.driver)
    yield from _check_json_object(f"{path}.opaque.parameters", config.opaque.parameters)


def _check_json_object(path: str, value: object) -> Errors:
    if value is None:
        yield required(path)
    elif not isinstance(value, dict):
        yield invalid(path, "<value omitted>", "must be a valid JSON object")
    elif len(msgspec.json.encode(value)) > MAX_TEXT:
        yield too_long(path, MAX_TEXT)


def check_class(spec: schema.ClassSpec, *, cel: CelFeatures = DEFAULT_CEL) -> Errors:
    """Everything wrong with a DeviceClass's spec; `cel`: what selectors may read."""
    yield from check_list("spec.selectors", spec.selectors, MAX_SELECTORS, partial(check_selector, cel=cel))
    yield from check_list("spec.config", spec.config, MAX_REQUESTS, _check_config)
    name = spec.extended_resource_name
    native = name is not None and (name.startswith("requests.") or name.partition("/")[0].endswith("kubernetes.io"))
    if name is not None and (native or not _EXTENDED.fullmatch(name)):
        yield invalid("spec.extendedResourceName", name, "must be a valid extended resource name")


def drop_stale_devices(status: schema.ClaimStatus, old: schema.ClaimStatus) -> schema.ClaimStatus:
    """The status without what drivers said about devices that this update deallocates."""
    gone = _allocated_keys(old) - _allocated_keys(status)
    devices = [device for device in status.devices if _device_key(device) not in gone]
    # A real server shows the conditions of a device even when there are none.
    return replace(status, devices=tuple(replace(device, conditions=device.conditions or None) for device in devices))


def _allocated_keys(status: schema.ClaimStatus) -> frozenset[tuple[str, str, str, str]]:
    return frozenset(map(_device_key, _results(status)))


def _results(status: schema.ClaimStatus) -> Sequence[schema.Result]:
    return status.allocation.devices.results if status.allocation is not None else ()


def _device_key(device: schema.DeviceStatus | schema.Result) -> tuple[str, str, str, str]:
    return (device.driver, device.pool, device.device, device.share_id or "")


def check_claim_status(
    status: schema.ClaimStatus,
    old: schema.ClaimStatus,
    spec: schema.ClaimSpec,
    *,
    deleting: bool,
    admin_allowed: bool,
) -> Errors:
    """Everything wrong with an update of a claim's status."""
    path = "status"
    yield from check_set(f"{path}.reservedFor", status.reserved_for, MAX_RESERVED, _check_consumer, lambda c: c.uid)
    allocated = _allocated_keys(status)
    yield from check_set(
        f"{path}.devices",
        status.devices,
        MAX_RESULTS,
        lambda at, device: _check_device_status(at, device, _device_key(device) in allocated),
        _device_key,
    )
    if status.reserved_for and status.allocation is None:
        yield forbidden(f"{path}.reservedFor", "may not be specified when `allocated` is not set")
    elif deleting and set(status.reserved_for) - set(old.reserved_for):
        yield forbidden(
            f"{path}.reservedFor",
            "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set",
        )
    if status.allocation is None:
        return
    if not any(one.admin_access for one in _results(old)):
        granted = (one.admin_access for one in _results(status))
        yield from _check_admin_access(f"{path}.allocation.devices.results", granted, allowed=admin_allowed)
    if old.allocation is None:
        yield from _check_allocation(f"{path}.allocation", status.allocation, _request_names(spec.devices))
    elif status.allocation != old.allocation:
        yield invalid(f"{path}.allocation", schema.build_fields(status.allocation), "field is immutable")


def _check_consumer(path: str, consumer: schema.Consumer) -> Errors:
    for field in ("resource", "name", "uid"):
        if not getattr(consumer, field):
            yield required(f"{path}.{field}")


def _check_allocation(path: str, allocation: schema.Allocation, names: RequestNames) -> Errors:
    if allocation.node_selector is not None:
        yield from check_node_selector(f"{path}.nodeSelector", allocation.node_selector, one_term=False)
    check_result = partial(_check_result, names=names)
    yield from check_list(f"{path}.devices.results", allocation.devices.results, MAX_RESULTS, check_result)
    check_config = partial(_check_allocated_config, names=names)
    yield from check_list(f"{path}.devices.config", allocation.devices.config, 2 * MAX_REQUESTS, check_config)


def _check_result(path: str, result: schema.Result, names: RequestNames) -> Errors:
    yield from _check_reference(f"{path}.request", result.request, names)
    yield from check_driver(f"{path}.driver", result.driver)
    yield from check_pool(f"{path}.pool", result.pool)
    yield from check_label(f"{path}.device", result.device)
    yield from check_binding(path, result.binding_conditions, result.binding_failure_conditions)
    if result.share_id is not None:
        yield from check_uid(f"{path}.shareID", result.share_id)


def _check_allocated_config(path: str, config: schema.ClaimConfig, names: RequestNames) -> Errors:
    if not config.source:
        yield required(f"{path}.source")
    elif config.source not in {"FromClass", "FromClaim"}:
        yield unsupported(f"{path}.source", config.source, ("FromClaim", "FromClass"))
    yield from _check_claim_config(path, config, names)


def _check_device_status(path: str, device: schema.DeviceStatus, allocated: bool) -> Errors:
    if not allocated:
        yield invalid(path, "/".join(_device_key(device)).rstrip("/"), "must be an allocated device in the claim")
    yield from _check_conditions(f"{path}.conditions", device.conditions or ())
    if device.data is not None:
        yield from _check_json_object(f"{path}.data", device.data)
    if device.network_data is not None:
        yield from _check_network(f"{path}.networkData", device.network_data)


def _check_conditions(path: str, conditions: tuple[schema.Condition, ...]) -> Errors:
    if len(conditions) > MAX_CONDITIONS:
        yield too_many(path, len(conditions), MAX_CONDITIONS)
    seen = set()
    for index, condition in enumerate(conditions):
        at = f"{path}[{index}]"
        if condition.type in seen:
            yield duplicate(f"{at}.type", condition.type)
        seen.add(condition.type)
        yield from _check_condition(at, condition)


def _check_condition(path: str, condition: schema.Condition) -> Errors:
    yield from check_label_key(f"{path}.type", condition.type)
    if condition.status not in STATUSES:
        yield unsupported(f"{path}.status", condition.status, STATUSES)
    if condition.observed_generation is not msgspec.UNSET and condition.observed_generation < 0:
        detail = "must be greater than or equal to zero"
        yield invalid(f"{path}.observedGeneration", condition.observed_generation, detail)
    if condition.last_transition_time is None:
        yield required(f"{path}.lastTransitionTime")
    if not condition.reason:
        yield required(f"{path}.reason")
    elif not _REASON.fullmatch(condition.reason):
        yield invalid(f"{path}.reason", condition.reason, _REASON_TEXT)
    if size(condition.reason) > MAX_REASON:
        yield too_long(f"{path}.reason", MAX_REASON)
    if size(condition.message) > MAX_MESSAGE:
        yield too_long(f"{path}.message", MAX_MESSAGE)


def _check_network(path: str, data: schema.NetworkData) -> Errors:
    if size(data.interface_name) > 256:
        yield too_long(f"{path}.interfaceName", 256)
    if size(data.hardware_address) > 128:
        yield too_long(f"{path}.hardwareAddress", 128)
    yield from check_set(f"{path}.ips", data.ips, 16, _check_ip, lambda ip: ip)


def _check_ip(path: str, text: str) -> Errors:
    try:
        canonical = str(ipaddress.ip_interface(text)) if "/" in text else ""
    except ValueError:
        canonical = ""
    if not canonical:
        yield invalid(path, text, "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)")
    elif canonical != text:
        yield invalid(path, text, f'must be in canonical form ("{canonical}")')
