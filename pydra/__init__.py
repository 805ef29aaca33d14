"""pydra: Kubernetes Dynamic Resource Allocation drivers in Python.

This is the face for authors of backends: values, the contract's types, errors. It imports nothing
of Kubernetes, gRPC or the agent, so that a backend's process stays small.
"""

from pydra.backends.contract import Backend, Inherits, Measures, Watches
from pydra.cdi.edits import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice
from pydra.claim import AllocatedDevice, Claim, Inheritance, InheritedClaim, PreparedDevice
from pydra.devices import (
    Capacity,
    CapacityRange,
    CounterConsumption,
    CounterSet,
    Device,
    Health,
    HealthStatus,
    Inventory,
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
    TerminalError,
    UnknownDevice,
)

__version__ = "0.1.0"

__all__ = [
    "AllocatedDevice",
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
    "PreparedDevice",
    "PydraError",
    "RequestPolicy",
    "Sample",
    "SampleKind",
    "Taint",
    "TaintEffect",
    "TerminalError",
    "UnknownDevice",
    "Version",
    "Watches",
]
