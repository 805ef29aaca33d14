"""Value types for devices, capacities, counters, taints, health, the status of a claim's device, and samples.

What a backend reports about its hardware. Frozen, keyword-only, without JSON and Kubernetes objects. The API's own
rules for these values (names, sizes, counts) are checked by `pydra.inventory.api_rules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, TypeAlias

import msgspec

Quantity: TypeAlias = Annotated[
    int | str,
    msgspec.Meta(
        extra_json_schema={
            "format": "quantity",
            "pattern": r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3}|Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE])?$",
        }
    ),
]
"""An amount as Kubernetes writes it: a plain integer, or a string such as `80Gi`, `1500m`, `1e3`."""


class Version(msgspec.Struct, frozen=True):
    """A version attribute: strict semantic versioning 2.0.0 (`1.2.3`), at most 64 bytes."""

    version: str
    """`MAJOR.MINOR.PATCH`, with pre-release and build if there are any."""


Scalar: TypeAlias = bool | int | str | Version
AttributeValue: TypeAlias = bool | int | str | Version | tuple[Scalar, ...]
"""One value, or a tuple of values of one type (lists need the gate DRAListTypeAttributes, Kubernetes 1.36)."""


class CapacityRange(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts between `min` and `max`, in steps of `step` above `min`."""

    min: Quantity
    """The least that a claim can get; a request for less gets this much."""
    max: Quantity | None = None
    """The most that a claim can get. None: the whole capacity."""
    step: Quantity | None = None
    """Amounts are `min` plus a multiple of this; requests are rounded up to one. None: any amount."""


class RequestPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which shares of a capacity a claim can get: `valid_values` or `valid_range`, each of which needs a `default`."""

    default: Quantity | None = None
    """What a claim that asks for no amount gets. None: the whole capacity. It must be an allowed amount."""
    valid_values: tuple[Quantity, ...] = ()
    """The allowed amounts, ascending, at most 10; a request is rounded up to the next. Excludes `valid_range`."""
    valid_range: CapacityRange | None = None
    """The allowed range. Excludes `valid_values`."""


class Capacity(msgspec.Struct, frozen=True):
    """How much of something a device has."""

    value: Quantity
    """How much there is, in the unit that the name implies; bytes for memory."""
    policy: RequestPolicy | None = None
    """Which shares can be requested. Needs `allow_multiple_allocations`; None: any amount up to the whole."""


class CounterSet(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that several devices (partitions) share."""

    name: str
    """A DNS label, unique in the pool."""
    counters: Mapping[str, Quantity]
    """How much there is of each; 1 to 32, with DNS labels as names."""


class CounterConsumption(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of one counter set that a device consumes when it is allocated."""

    counter_set: str
    """The name of a set in `Inventory.counter_sets`."""
    counters: Mapping[str, Quantity]
    """How much of each counter the device consumes."""
    compatibility_groups: tuple[str, ...] = ()
    """Any names, at most 2. Devices that consume from this set are used at once only if all have a group in common, or
    none has one (needs the gate DRADeviceCompatibilityGroups, Kubernetes 1.37).
    """


class NodeAllocatable(msgspec.Struct, frozen=True, kw_only=True):
    """How much of one of the node's own resources, such as its CPUs, claims use with a device (KEP-5517).

    The scheduler then counts it like the requests of containers.
    """

    capacity: str = ""
    """The capacity of which a claim's share is counted; needs `allow_multiple_allocations`. Empty: devices are."""
    multiplier: Quantity | None = None
    """How much of the resource each unit of the share, or each device, is. None: 1 with `capacity`, else nothing."""
    per_pod: Quantity | None = None
    """How much each pod needs besides; it is not part of the device. Needs Kubernetes 1.37, as does `per_container`."""
    per_container: Quantity | None = None
    """How much each container of the claim needs besides."""


class TaintEffect(Enum):
    """What a taint does."""

    NONE = "None"
    """For information only."""
    NO_SCHEDULE = "NoSchedule"
    """The scheduler allocates the device only to claims that tolerate the taint."""
    NO_EXECUTE = "NoExecute"
    """Also, running pods whose claims do not tolerate it are evicted."""


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    """A mark on a device that a claim must tolerate."""

    key: str
    """A label key, such as `fpga.example.com/firmware-update`."""
    value: str = ""
    """A label value: at most 63 bytes."""
    effect: TaintEffect = TaintEffect.NO_SCHEDULE
    """What the taint does."""
    time_added: str | None = None
    """RFC 3339. None: the API server sets it."""


class HealthStatus(Enum):
    """A device's health, in the terms of the pod's status."""

    UNKNOWN = "Unknown"
    """Not known; there is no taint."""
    HEALTHY = "Healthy"
    """The device works."""
    UNHEALTHY = "Unhealthy"
    """The device does not work, or not as it should: it gets a taint."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A device's health. The device's taint, the kubelet's answer and a metric follow from it."""

    status: HealthStatus = HealthStatus.HEALTHY
    """The state."""
    message: str = ""
    """Why, for people. At most 1024 bytes of it reach the pod's status."""
    reason: str = ""
    """One word for the same, such as `XID79`, of at most 63 bytes. It becomes the value of the taint."""
    taint: str = "unhealthy"
    """The taint's key, below the driver's name unless it has a domain of its own."""
    effect: TaintEffect | None = None
    """The taint's effect, if it should differ from `--health-taint` (with `none` there, no device is tainted)."""


HEALTHY = Health()


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device that a claim can get.

    Names of attributes and capacities are C identifiers of at most 32 bytes, or `domain/identifier`; without a domain
    they belong to the driver's. Source: Kubernetes API reference, resource.k8s.io/v1 Device.
    """

    name: str
    """A DNS label of at most 63 bytes, unique in the pool. The same hardware must always have the same name."""
    attributes: Mapping[str, AttributeValue] = {}
    """What claims select by. With the capacities at most 32; strings of at most 64 bytes."""
    capacity: Mapping[str, Capacity] = {}
    """How much the device has of something."""
    consumes_counters: tuple[CounterConsumption, ...] = ()
    """The counters that the device consumes when it is allocated; of at most 2 sets."""
    allow_multiple_allocations: bool = False
    """Whether several claims can hold the device at once, each with a share of its capacities."""
    taints: tuple[Taint, ...] = ()
    """Taints that claims must tolerate, at most 16. Use `health` for unhealthy devices."""
    health: Health = HEALTHY
    """The device's health."""
    binds_to_node: bool = False
    """Whether a claim with this device can only be used on this node, even if the device can be reached from others."""
    binding_conditions: tuple[str, ...] = ()
    """Conditions of the claim's status that must be true before a pod is bound; at most 4."""
    binding_failure_conditions: tuple[str, ...] = ()
    """Conditions of which one ends the attempt and starts a new allocation; at most 4."""
    node_allocatable: Mapping[str, NodeAllocatable] = {}
    """Which of the node's own resources (`cpu`, `memory`, `ephemeral-storage`, `hugepages-2Mi` or of another size) the
    device uses, for the scheduler (needs the gate DRANodeAllocatableResources, Kubernetes 1.36).
    """


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One condition of a device. The agent adds when `status` changed last."""

    type: str
    """What it is about, in CamelCase, such as `Ready`; at most 316 characters."""
    status: bool | None = True
    """Whether it is so; None for unknown."""
    reason: str
    """Why, as one word in CamelCase; at most 1024 characters."""
    message: str = ""
    """Why, as text for people; at most 32768 bytes."""


class NetworkData(msgspec.Struct, frozen=True, kw_only=True):
    """Where a network device is found in the pod, and its addresses."""

    interface_name: str = ""
    """The interface's name in the pod; at most 256 bytes."""
    ips: tuple[str, ...] = ()
    """At most 16 addresses, each with the length of its network's prefix: `192.0.2.5/24`."""
    hardware_address: str = ""
    """The MAC address, or the address of another kind of link; at most 128 bytes."""


class DeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend says of a claim's device in the claim's `status.devices`.

    Source of the limits: Kubernetes API reference, AllocatedDeviceStatus and NetworkDeviceData of resource.k8s.io/v1.
    """

    conditions: tuple[Condition, ...] = ()
    """At most 8, of different types."""
    data: Mapping[str, Any] = {}
    """Anything else, as a JSON object of at most 10 KiB."""
    network_data: NetworkData | None = None
    """Of a network device."""


class ClaimDeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status that a device of a held claim has now, for `Inventory.claim_statuses`."""

    claim_uid: str
    """The claim's UID."""
    device: str
    """The device's name."""
    share_id: str | None = None
    """As in the allocated device."""
    status: DeviceStatus
    """Its status."""
    warning: str = ""
    """What the owner of the claim should change although its containers run. A new one is an Event on the claim."""


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The complete inventory of a backend's hardware at one moment."""

    devices: tuple[Device, ...] = ()
    """All devices, healthy or not. The scheduler tries them in this order."""
    counter_sets: tuple[CounterSet, ...] = ()
    """The counter sets that devices consume."""
    partition_type: str = ""
    """The string attribute with the type of each device that consumes counters, such as its profile. Devices of a type
    consume the same amounts (needs the gate DRAPartitionableDevicesType, Kubernetes 1.37).
    """
    unreadable: tuple[str, ...] = ()
    """One text for each piece of hardware that cannot be a device because too little of it can be read: which one, and
    why. It must stay the same while nothing changes.
    """
    claim_statuses: tuple[ClaimDeviceStatus, ...] = ()
    """What the `status.devices` of held claims says now of their devices, instead of what `prepare` returned."""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver publishes for one node: devices and counter sets that satisfy every rule of the API.

    Made by `pydra.inventory.build_pool`.
    """

    name: str
    devices: tuple[Device, ...] = ()
    counter_sets: tuple[CounterSet, ...] = ()
    partition_type: str = ""
    has_mappings: bool = False
    """Whether `Device.node_allocatable` is published in the form of Kubernetes 1.36."""


class DeviceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The debounced health of one published device, for the kubelet's health stream and the metrics.

    `problem` is the key of the taint of an unhealthy one, which says what the matter is.
    """

    pool: str
    device: str
    status: HealthStatus
    message: str = ""
    problem: str = ""


# Samples


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One measured number for `/metrics`: `pydra_<backend>_<name>{device=..., **labels} value`."""

    name: str
    """By the conventions of Prometheus: base units (`_bytes`, `_seconds`, `_celsius`), and at the end `_total` if it is
    a counter, which only grows until the backend's process ends; others are gauges.
    """
    value: float
    """The current value."""
    help: str = ""
    """What is measured, in a sentence; the same for all samples of a name."""
    device: str = ""
    """The device that it belongs to; empty for the whole node. `discover` need not list it: it may be a GPU of which
    claims get partitions only.
    """
    labels: Mapping[str, str] = {}
    """Further labels."""


def list_labels(sample: Sample) -> Mapping[str, str]:
    """Return all labels of a sample, in order; the device is one, if there is any."""
    device = {"device": sample.device} if sample.device else {}
    return {**device, **dict(sorted(sample.labels.items()))}


def find_left_out(samples: Sequence[Sample]) -> Mapping[int, str]:
    """Return which samples, by their place, `/metrics` cannot show beside those before them, and why."""
    names: dict[str, tuple[str, ...]] = {}
    seen: set[tuple[str, ...]] = set()
    left_out: dict[int, str] = {}
    for place, sample in enumerate(samples):
        labels = list_labels(sample)
        first = names.setdefault(sample.name, tuple(labels))
        series = (sample.name, *labels.values())
        if tuple(labels) != first:
            left_out[place] = f"has the labels {_spell(labels)}, and the first of its name {_spell(first)}"
        elif series in seen:
            found = _spell(f"{name}={text}" for name, text in labels.items())
            left_out[place] = f"is there twice with the labels {found}"
        seen.add(series)
    return left_out


def _spell(labels: Iterable[str]) -> str:
    return ", ".join(labels) or "none"
