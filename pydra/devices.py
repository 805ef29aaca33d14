"""Value types for devices, capacities, counters, taints and health.

What a backend reports about its hardware. Frozen, keyword-only, without JSON and Kubernetes objects. The API's own
rules for these values (names, sizes, counts) are checked by `pydra.device_rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, TypeAlias

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


Scalar: TypeAlias = bool | int | str | Version
AttributeValue: TypeAlias = bool | int | str | Version | tuple[Scalar, ...]
"""One value, or a tuple of values of one type (lists need the gate DRAListTypeAttributes, Kubernetes 1.36)."""


class CapacityRange(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts between `min` and `max` (default: the whole capacity), in steps of `step` above `min`."""

    min: Quantity
    max: Quantity | None = None
    step: Quantity | None = None


class RequestPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which shares of a capacity a claim may ask for: `valid_values` or `valid_range`; `default` if it asks none."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRange | None = None


class Capacity(msgspec.Struct, frozen=True):
    """How much of something a device has; `policy` needs `allow_multiple_allocations` on the device."""

    value: Quantity
    policy: RequestPolicy | None = None


class CounterSet(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that several devices (partitions) draw from; 1 to 32 counters."""

    name: str
    counters: Mapping[str, Quantity]


class CounterConsumption(msgspec.Struct, frozen=True, kw_only=True):
    """What a device takes from one counter set when it is allocated."""

    counter_set: str
    counters: Mapping[str, Quantity]


class TaintEffect(Enum):
    """A taint's effect: none, keep new pods away, or also evict running ones."""

    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    """A mark on a device that a claim must tolerate; `time_added` is RFC 3339 and set by the API server when absent."""

    key: str
    value: str = ""
    effect: TaintEffect = TaintEffect.NO_SCHEDULE
    time_added: str | None = None


class HealthStatus(Enum):
    """A device's health, in the terms of the pod's status."""

    UNKNOWN = "Unknown"
    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A device's health and, in `message`, why; at most 1024 bytes of it reach the pod's status.

    `reason` is one word for the same (`XID79`), a label value; it becomes the value of the device's taint. `taint` is
    the taint's key, below the driver's name unless it has a domain of its own. `effect` is the taint's effect where it
    is to differ from the agent's `--health-taint`; where that is `none` there is no taint at all.
    """

    status: HealthStatus = HealthStatus.HEALTHY
    message: str = ""
    reason: str = ""
    taint: str = "unhealthy"
    effect: TaintEffect | None = None


HEALTHY = Health()


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device that a claim can get.

    `name` is a DNS label of at most 63 bytes, unique in the pool. Names of attributes and
    capacities are C identifiers of at most 32 bytes, or `domain/identifier`; without a domain they
    belong to the driver's. Source: Kubernetes API reference, resource.k8s.io/v1 Device.
    """

    name: str
    attributes: Mapping[str, AttributeValue] = {}
    capacity: Mapping[str, Capacity] = {}
    consumes_counters: tuple[CounterConsumption, ...] = ()
    allow_multiple_allocations: bool = False
    taints: tuple[Taint, ...] = ()
    health: Health = HEALTHY
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The complete inventory of a backend's hardware at one moment.

    `unreadable` has one text for each piece of hardware that is there and cannot be a device, because too little of it
    can be read: which one, and why. The text must stay the same while nothing changes.
    """

    devices: tuple[Device, ...] = ()
    counter_sets: tuple[CounterSet, ...] = ()
    unreadable: tuple[str, ...] = ()


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver publishes for one node: devices and counter sets that satisfy every rule of the API.

    Made by `pydra.published_pool`.
    """

    name: str
    devices: tuple[Device, ...] = ()
    counter_sets: tuple[CounterSet, ...] = ()


class DeviceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The debounced health of one published device, for the kubelet's health stream and the metrics.

    `updated` is the time of that report, in seconds since 1970; 0 if unknown.
    """

    pool: str
    device: str
    status: HealthStatus
    message: str = ""
    updated: int = 0


class SampleKind(Enum):
    """How Prometheus should read a sample."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One measured number for `/metrics`: `pydra_<backend>_<name>{device=..., **labels} value`.

    `name` follows the Prometheus conventions (base units, `_total` for counters). `device` is empty for the whole
    node; it may be one that `discover` does not list now, as a GPU whose partitions are what claims can have.
    """

    name: str
    value: float
    help: str = ""
    kind: SampleKind = SampleKind.GAUGE
    device: str = ""
    labels: Mapping[str, str] = {}
