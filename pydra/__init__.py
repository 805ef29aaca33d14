"""pydra: Kubernetes Dynamic Resource Allocation drivers in Python.

This is the public API for authors of backends: values, the contract's types, errors. Every other name below `pydra`
is private and may change in any release, except `pydra.testing`. Nothing of Kubernetes, gRPC or the agent is imported
here, so a backend's process stays small.
"""

from pydra.backends.backend_settings import read_settings
from pydra.backends.contract import Backend, Inherits, Measures, Plans, Restores, Watches, set_status, time_left
from pydra.cdi.edits import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice
from pydra.claim import AllocatedDevice, Claim, HeldClaim, Inheritance, InheritedClaim, PreparedDevice
from pydra.devices import (
    AttributeValue,
    Capacity,
    CapacityRange,
    CounterConsumption,
    CounterSet,
    Device,
    Health,
    HealthStatus,
    Inventory,
    Quantity,
    RequestPolicy,
    Sample,
    SampleKind,
    Taint,
    TaintEffect,
    Version,
)
from pydra.errors import (
    ClaimError,
    DeviceInUse,
    InvalidConfig,
    PydraError,
    SettingsError,
    TerminalError,
    UnknownDevice,
)
from pydra.quantity import canonical_quantity, is_quantity, parse_quantity

__version__ = "0.1.0"

__all__ = [
    "AllocatedDevice",
    "AttributeValue",
    "Backend",
    "Capacity",
    "CapacityRange",
    "Claim",
    "ClaimError",
    "ContainerEdits",
    "CounterConsumption",
    "CounterSet",
    "Device",
    "DeviceInUse",
    "DeviceNode",
    "Health",
    "HealthStatus",
    "HeldClaim",
    "Hook",
    "Inheritance",
    "InheritedClaim",
    "Inherits",
    "IntelRdt",
    "InvalidConfig",
    "Inventory",
    "Measures",
    "Mount",
    "NetDevice",
    "Plans",
    "PreparedDevice",
    "PydraError",
    "Quantity",
    "RequestPolicy",
    "Restores",
    "Sample",
    "SampleKind",
    "SettingsError",
    "Taint",
    "TaintEffect",
    "TerminalError",
    "UnknownDevice",
    "Version",
    "Watches",
    "canonical_quantity",
    "is_quantity",
    "parse_quantity",
    "read_settings",
    "set_status",
    "time_left",
]
