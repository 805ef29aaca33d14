"""The fields of resource.k8s.io/v1 objects, as a server decodes them. Pure.

Converting an object through these types drops what the API does not know, refuses what has the
wrong JSON type, and writes quantities in their canonical form, as a real server does. Types carry
no rules but which feature gate a field needs: those are in `slice_rules` and `claim_rules`.
Source: Kubernetes 1.36 API reference.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Optional, TypeAlias, TypeVar

import msgspec
from msgspec import field

from pydra_dev.api.errors import JsonObject, StatusError, bad_request
from pydra_dev.api.feature_gates import (
    ADMIN,
    ALLOCATABLE,
    BINDING,
    DEVICE_STATUS,
    EXTENDED,
    GROUPS,
    LISTS,
    PARTITION_TYPE,
    PARTITIONS,
    PRIORITIZED,
    SHARES,
    TAINTS,
    Gated,
)
from pydra_dev.api.quantity import canonical_quantity

T = TypeVar("T")


class Quantity(str):
    """A quantity in canonical form."""

    __slots__ = ()


class Time(str):
    """A time in canonical form: whole seconds, in UTC."""

    __slots__ = ()


class _Fields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What all of these types have in common: camel-case names, absent when not set."""


class Cel(_Fields, frozen=True, kw_only=True):
    """A CEL expression over one device."""

    expression: str = ""


class Selector(_Fields, frozen=True, kw_only=True):
    """One condition of a class or request."""

    cel: Cel | None = None


class Opaque(_Fields, frozen=True, kw_only=True):
    """A driver's own configuration; `parameters` is a JSON object."""

    driver: str = ""
    parameters: Any = None


class Attribute(_Fields, frozen=True, kw_only=True):
    """One value, of one of these types."""

    int_: int | None = field(default=None, name="int")
    bool_: bool | None = field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    ints: Annotated[tuple[int, ...] | None, Gated(LISTS)] = None
    bools: Annotated[tuple[bool, ...] | None, Gated(LISTS)] = None
    strings: Annotated[tuple[str, ...] | None, Gated(LISTS)] = None
    versions: Annotated[tuple[str, ...] | None, Gated(LISTS)] = None


class ValidRange(_Fields, frozen=True, kw_only=True):
    """Amounts from `min` to `max` in steps."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class RequestPolicy(_Fields, frozen=True, kw_only=True):
    """Which shares of a capacity may be asked for."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: ValidRange | None = None


class Capacity(_Fields, frozen=True, kw_only=True):
    """How much of something a device has."""

    value: Quantity = field(default_factory=partial(Quantity, "0"))
    request_policy: Annotated[RequestPolicy | None, Gated(SHARES)] = None


class Counter(_Fields, frozen=True, kw_only=True):
    """An amount in a counter set."""

    value: Quantity = field(default_factory=partial(Quantity, "0"))


class CounterSet(_Fields, frozen=True, kw_only=True):
    """What several devices of a pool draw from."""

    name: str = ""
    counters: dict[str, Counter] = {}


class Consumption(_Fields, frozen=True, kw_only=True):
    """What a device draws from one counter set."""

    counter_set: str = ""
    counters: dict[str, Counter] = {}
    compatibility_groups: Annotated[tuple[str, ...], Gated(GROUPS)] = ()


class Taint(_Fields, frozen=True, kw_only=True):
    """A mark on a device."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: Time | None = None


class DeviceSelector(_Fields, frozen=True, kw_only=True):
    """Some devices: those that match every name that is given."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class TaintRuleSpec(_Fields, frozen=True, kw_only=True):
    """DeviceTaintRule.spec: without a selector it is for no device, if not for all (see `add_taints`)."""

    device_selector: DeviceSelector | None = None
    taint: Taint = field(default_factory=Taint)


class Toleration(_Fields, frozen=True, kw_only=True):
    """Which taints a request puts up with."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class AllocatableMapping(_Fields, frozen=True, kw_only=True):
    """How much of a node's resource each device is, or each unit of a capacity."""

    capacity_key: str | None = None
    allocation_multiplier: Quantity | None = None
    """In Kubernetes 1.36 only, for both."""
    capacity_multiplier: Quantity | None = None
    device_multiplier: Quantity | None = None


class AllocatableOverhead(_Fields, frozen=True, kw_only=True):
    """How much of a node's resource is used besides."""

    per_pod: Quantity | None = None
    per_container: Quantity | None = None


class NodeAllocatable(_Fields, frozen=True, kw_only=True):
    """How much of a node's resource is used with a device."""

    mapping: AllocatableMapping | None = None
    overhead: AllocatableOverhead | None = None


class Requirement(_Fields, frozen=True, kw_only=True):
    """What a node's label or field must be."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeTerm(_Fields, frozen=True, kw_only=True):
    """Nodes that meet all of these."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class NodeSelector(_Fields, frozen=True, kw_only=True):
    """Nodes that any term is for."""

    node_selector_terms: tuple[NodeTerm, ...] = ()


class Device(_Fields, frozen=True, kw_only=True):
    """One device of a slice."""

    name: str = ""
    attributes: dict[str, Attribute] = {}
    capacity: dict[str, Capacity] = {}
    consumes_counters: Annotated[tuple[Consumption, ...], Gated(PARTITIONS)] = ()
    node_name: Annotated[str | None, Gated(PARTITIONS)] = None
    node_selector: Annotated[NodeSelector | None, Gated(PARTITIONS)] = None
    all_nodes: Annotated[bool | None, Gated(PARTITIONS)] = None
    taints: Annotated[tuple[Taint, ...], Gated(TAINTS)] = ()
    binds_to_node: Annotated[bool | None, Gated(BINDING)] = None
    binding_conditions: Annotated[tuple[str, ...], Gated(BINDING)] = ()
    binding_failure_conditions: Annotated[tuple[str, ...], Gated(BINDING)] = ()
    allow_multiple_allocations: Annotated[bool | None, Gated(SHARES)] = None
    node_allocatable_resource_mappings: Annotated[dict[str, AllocatableMapping], Gated(ALLOCATABLE, last=36)] = {}
    node_allocatable_resources: Annotated[dict[str, NodeAllocatable], Gated(ALLOCATABLE, first=37)] = {}


class Pool(_Fields, frozen=True, kw_only=True, omit_defaults=False):
    """Which pool a slice belongs to, and how many slices that pool has in this generation."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(_Fields, frozen=True, kw_only=True):
    """ResourceSlice.spec."""

    driver: str = ""
    pool: Pool = Pool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    devices: tuple[Device, ...] = ()
    per_device_node_selection: Annotated[bool | None, Gated(PARTITIONS)] = None
    shared_counters: Annotated[tuple[CounterSet, ...], Gated(PARTITIONS)] = ()
    partition_type_attribute: Annotated[str | None, Gated(PARTITION_TYPE)] = None


class CapacityRequests(_Fields, frozen=True, kw_only=True):
    """How much of each capacity a request asks for."""

    requests: dict[str, Quantity] = {}


class Wanted(_Fields, frozen=True, kw_only=True):
    """Which devices, and how many."""

    device_class_name: str = ""
    selectors: tuple[Selector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    tolerations: Annotated[tuple[Toleration, ...], Gated(TAINTS)] = ()
    capacity: Annotated[CapacityRequests | None, Gated(SHARES)] = None


class Request(Wanted, frozen=True, kw_only=True):
    """What one request asks for."""

    admin_access: Annotated[bool | None, Gated(ADMIN)] = None


class Subrequest(Wanted, frozen=True, kw_only=True):
    """One alternative of a request; never with admin access."""

    name: str = ""
    admin_access: ClassVar[None] = None


AnyRequest: TypeAlias = Request | Subrequest


class DeviceRequest(_Fields, frozen=True, kw_only=True):
    """A request by name: exactly this, or the first of these."""

    name: str = ""
    exactly: Request | None = None
    first_available: Annotated[tuple[Subrequest, ...], Gated(PRIORITIZED)] = ()


class Constraint(_Fields, frozen=True, kw_only=True):
    """What the devices of several requests must have in common, or must not."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: Annotated[str | None, Gated(SHARES)] = None


class ClaimConfig(_Fields, frozen=True, kw_only=True):
    """Configuration for some (none named: all) requests of a claim; in an allocation with its source."""

    source: str = ""
    requests: tuple[str, ...] = ()
    opaque: Opaque | None = None


class DeviceClaim(_Fields, frozen=True, kw_only=True):
    """All that a claim asks for."""

    requests: tuple[DeviceRequest, ...] | None = ()
    constraints: tuple[Constraint, ...] = ()
    config: tuple[ClaimConfig, ...] = ()


class ClaimSpec(_Fields, frozen=True, kw_only=True, omit_defaults=False):
    """ResourceClaim.spec."""

    devices: DeviceClaim = DeviceClaim()


class TemplateSpec(_Fields, frozen=True, kw_only=True):
    """ResourceClaimTemplate.spec."""

    metadata: JsonObject = {}
    spec: ClaimSpec = ClaimSpec()


class ClassSpec(_Fields, frozen=True, kw_only=True):
    """DeviceClass.spec."""

    selectors: tuple[Selector, ...] = ()
    config: tuple[ClaimConfig, ...] = ()
    extended_resource_name: Annotated[str | None, Gated(EXTENDED)] = None


class Result(_Fields, frozen=True, kw_only=True):
    """One allocated device."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: Annotated[bool | None, Gated(ADMIN)] = None
    tolerations: tuple[Toleration, ...] = ()
    binding_conditions: Annotated[tuple[str, ...], Gated(BINDING)] = ()
    binding_failure_conditions: Annotated[tuple[str, ...], Gated(BINDING)] = ()
    share_id: Annotated[str | None, Gated(SHARES)] = field(default=None, name="shareID")
    consumed_capacity: Annotated[dict[str, Quantity], Gated(SHARES)] = {}


class Results(_Fields, frozen=True, kw_only=True):
    """The devices of an allocation and their configuration."""

    results: tuple[Result, ...] = ()
    config: tuple[ClaimConfig, ...] = ()


class Allocation(_Fields, frozen=True, kw_only=True):
    """What the allocator decided."""

    devices: Results = Results()
    node_selector: NodeSelector | None = None
    allocation_timestamp: Time | None = None


class Consumer(_Fields, frozen=True, kw_only=True):
    """Who may use the claim."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class NetworkData(_Fields, frozen=True, kw_only=True):
    """A network device as the pod sees it."""

    interface_name: str = ""
    ips: tuple[str, ...] = ()
    hardware_address: str = ""


class Condition(_Fields, frozen=True, kw_only=True, omit_defaults=False):
    """What holds of a device, and since when."""

    type: str = ""
    status: str = ""
    observed_generation: int | msgspec.UnsetType = msgspec.UNSET
    last_transition_time: Time | None = None
    reason: str = ""
    message: str = ""


class DeviceStatus(_Fields, frozen=True, kw_only=True):
    """What a driver says about one allocated device."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: Annotated[str | None, Gated(SHARES)] = field(default=None, name="shareID")
    conditions: tuple[Condition, ...] | None = ()
    data: Any = None
    network_data: NetworkData | None = None


class ClaimStatus(_Fields, frozen=True, kw_only=True):
    """ResourceClaim.status."""

    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()
    devices: Annotated[tuple[DeviceStatus, ...], Gated(DEVICE_STATUS)] = ()


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def _decode(type_: type, value: Any) -> Any:
    if type_ is Quantity:
        if not isinstance(value, (str, int)):
            raise ValueError(
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            )
        return Quantity(canonical_quantity(value))
    if type_ is Time:
        if not isinstance(value, str) or not _TIME.fullmatch(value):
            raise ValueError(f"parsing time {value!r}: it must be as in 2006-01-02T15:04:05Z")
        return Time(datetime.fromisoformat(value).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    raise NotImplementedError(type_)


def _build_type(**fields: Any) -> Any:
    """A type with these fields, each of which may be absent or null; `[T]` is a list of T."""
    types = {field: GenericAlias(list, tuple(of)) if isinstance(of, list) else of for field, of in fields.items()}
    optional = [(field, Optional[of], None) for field, of in types.items()]  # noqa: UP045 - of types that are values
    return msgspec.defstruct("Object", optional, rename="camel", frozen=True)


_METADATA = _build_type(
    **dict.fromkeys(("name", "generate_name", "namespace", "uid", "resource_version"), str),
    labels=dict[str, str],
    annotations=dict[str, str],
    finalizers=[str],
    owner_references=[dict],
)
_CONTAINER = _build_type(
    name=str,
    image=str,
    command=[str],
    args=[str],
    env=[msgspec.defstruct("EnvVar", [("name", str), ("value", str | None, None)])],
    resources=_build_type(claims=[_build_type(name=str, request=str)]),
    security_context=dict,
)
_POD_SPEC = _build_type(
    containers=[_CONTAINER],
    init_containers=[_CONTAINER],
    resource_claims=[
        _build_type(name=str, resource_claim_name=str, resource_claim_template_name=str),
    ],
    node_name=str,
    node_selector=dict[str, str],
    restart_policy=str,
    scheduler_name=str,
    scheduling_gates=[dict],
    security_context=dict,
    termination_grace_period_seconds=int,
)
_OBJECT = _build_type(metadata=_METADATA)
_OBJECTS = {
    "Node": _build_type(metadata=_METADATA, spec=dict, status=dict),
    "Pod": _build_type(metadata=_METADATA, spec=_POD_SPEC, status=dict),
}
"""What is read of kinds that are not parsed whole; of others, the metadata."""


def refuse_types(kind: str, obj: dict[str, Any]) -> None:
    """Raise a 400 StatusError for an object with a field of another type than is read here."""
    parse_fields(kind, _OBJECTS.get(kind, _OBJECT), obj)


def parse_fields(kind: str, type_: type[T], value: Any) -> T:
    """A part of an object as a typed value; raises a 400 StatusError that says where the type is wrong."""
    try:
        return msgspec.convert(_drop_nulls(value), type_, dec_hook=_decode)
    except (msgspec.ValidationError, ValueError) as error:
        part = next((one for one in ("spec", "status") if type_.__name__.lower().endswith(one)), "")
        raise refuse_fields(kind, str(error).replace("`$.", f"`$.{part}.") if part else str(error)) from error


_KEPT = frozenset({"parameters", "data"})
"""A driver's own JSON."""
_MAPS = frozenset({"attributes", "capacity", "counters"})


def _drop_nulls(value: Any, name: str = "") -> Any:
    """The value of a field without those in it that are null, which are as if absent; the entries of maps are not."""
    if isinstance(value, list):
        return [_drop_nulls(one) for one in value]
    if not isinstance(value, dict) or name in _KEPT:
        return value
    return {key: _drop_nulls(one, key) for key, one in value.items() if one is not None or name in _MAPS}


def refuse_fields(kind: str, why: str) -> StatusError:
    """The 400 for an object that cannot be read as its kind."""
    return bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: {why}')


def build_fields(value: msgspec.Struct) -> JsonObject:
    """The typed value as plain JSON data."""
    # Through JSON, so that lists are lists: an object must equal itself however it came here.
    built: JsonObject = msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))
    return built
