"""pydra: Kubernetes Dynamic Resource Allocation drivers in Python.

This is the public API for authors of backends: values, the contract's types, errors. Every other name below `pydra`
is private and may change in any release, except `pydra.testing`. Nothing of Kubernetes, gRPC or the agent is imported
here, so a backend's process stays small.
"""

from pydra.backends.backend_settings import read_settings
from pydra.backends.contract import (
    Backend,
    Inheritance,
    InheritedClaim,
    Inherits,
    Measures,
    Plans,
    Restores,
    Steps,
    Watches,
    held_claims,
    set_status,
    time_left,
)
from pydra.cdi.edits import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice
from pydra.claim import AllocatedDevice, Claim, HeldClaim, PodRef, PreparedDevice
from pydra.device_status import ClaimDeviceStatus, Condition, DeviceStatus, NetworkData
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
    NodeAllocatable,
    Quantity,
    RequestPolicy,
    Taint,
    TaintEffect,
    Version,
)
from pydra.errors import (
    ClaimError,
    DeviceInUse,
    InvalidConfig,
    LeftBehind,
    PydraError,
    SettingsError,
    TerminalError,
    UndoLater,
    UnknownDevice,
)
from pydra.plan import ClaimStep, Plan, StepStage, describe_step
from pydra.quantity import canonical_quantity, is_quantity, parse_quantity
from pydra.samples import Sample

__version__ = "0.1.0"

__all__ = [
    "AllocatedDevice",
    "AttributeValue",
    "Backend",
    "Capacity",
    "CapacityRange",
    "Claim",
    "ClaimDeviceStatus",
    "ClaimError",
    "ClaimStep",
    "Condition",
    "ContainerEdits",
    "CounterConsumption",
    "CounterSet",
    "Device",
    "DeviceInUse",
    "DeviceNode",
    "DeviceStatus",
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
    "LeftBehind",
    "Measures",
    "Mount",
    "NetDevice",
    "NetworkData",
    "NodeAllocatable",
    "Plan",
    "Plans",
    "PodRef",
    "PreparedDevice",
    "PydraError",
    "Quantity",
    "RequestPolicy",
    "Restores",
    "Sample",
    "SettingsError",
    "StepStage",
    "Steps",
    "Taint",
    "TaintEffect",
    "TerminalError",
    "UndoLater",
    "UnknownDevice",
    "Version",
    "Watches",
    "canonical_quantity",
    "describe_step",
    "held_claims",
    "is_quantity",
    "parse_quantity",
    "read_settings",
    "set_status",
    "time_left",
]
