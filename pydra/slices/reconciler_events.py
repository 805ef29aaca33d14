"""What a reconciler reports: writes of slices, and what the API server does not accept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import TypeAlias

import msgspec

from pydra.errors import Conflict, KubeError, NotFound
from pydra.slices.server_limitations import (
    ALLOCATABLE,
    BINDING,
    EFFECT_NONE,
    GROUPS,
    LISTS,
    OVERHEADS,
    PARTITION_TYPE,
    PARTITIONS,
    SHARES,
    TAINTS,
)

ON_BY_DEFAULT = dict.fromkeys((BINDING, PARTITIONS, SHARES, TAINTS), "1.36")
"""Source: the Kubernetes feature gate table."""
NEEDED_RELEASE = {
    PARTITIONS: "Kubernetes 1.34 cannot store partitions even with the gate on",
    LISTS: f"{LISTS} exists from Kubernetes 1.36",
    GROUPS: f"{GROUPS} exists from Kubernetes 1.37",
    PARTITION_TYPE: f"{PARTITION_TYPE} exists from Kubernetes 1.37",
    ALLOCATABLE: f"{ALLOCATABLE} exists from Kubernetes 1.36",
}
_SHOWN = 8


class WriteKind(Enum):
    """What was done to a slice."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class SliceWritten(msgspec.Struct, frozen=True, kw_only=True):
    """The API server accepted a write."""

    pool: str
    name: str
    kind: WriteKind


class PoolPublished(msgspec.Struct, frozen=True, kw_only=True):
    """The API has the complete pool, after writes or at the first reconciliation. `slices` 0: it was withdrawn."""

    pool: str
    generation: int
    slices: int
    devices: int


class PublishFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The API server did not accept a write; it is tried again after `pause` seconds."""

    pool: str
    error: KubeError
    pause: float

    @property
    def is_race(self) -> bool:
        """Whether what was to be written changed or went meanwhile, as when the kubelet starts and deletes slices."""
        return isinstance(self.error, Conflict | NotFound) and self.pause < 1


class FieldsDropped(msgspec.Struct, frozen=True, kw_only=True):
    """The API server does not store all of a pool; `gates` are the feature gates that are probably off, if known.

    `gates` may also name what is not a gate, such as `EFFECT_NONE`. `withheld` are the devices that are not published,
    because they would be unsafe without their fields; `refused` are those that the server refuses, with its reason.
    """

    pool: str
    gates: tuple[str, ...]
    withheld: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f'pool "{self.pool}": ' + ". ".join(self._sentences())

    def _sentences(self) -> Iterator[str]:
        gates = [gate for gate in self.gates if gate not in (EFFECT_NONE, OVERHEADS)]
        if gates:
            text = (
                "some fields are dropped by the API server, probably because these feature gates are "
                f"off: {', '.join(gates)}. Turn them on in the control plane and the kubelets"
            )
            notes = [NEEDED_RELEASE[gate] for gate in gates if gate in NEEDED_RELEASE]
            if since := [gate for gate in gates if gate in ON_BY_DEFAULT]:
                notes.insert(0, f"{', '.join(since)}: on by default from Kubernetes {ON_BY_DEFAULT[since[0]]}")
            yield f"{text} ({'; '.join(notes)})" if notes else text
        if EFFECT_NONE in self.gates:
            yield "Taints with the effect None are left out, which Kubernetes accepts from 1.35"
        if OVERHEADS in self.gates:
            yield "What pods need of the node besides their devices is left out, which Kubernetes accepts from 1.37"
        if self.withheld:
            yield f"Not published until then, since unsafe without: {_list_devices(self.withheld)}"
        if self.refused:
            yield f"Not published, because the API server refuses them: {_list_devices(self.refused)}"
        if not self.gates and not self.refused:
            yield "some fields were dropped by the API server, for a reason that is not known"


def _list_devices(devices: Sequence[str]) -> str:
    return f"{len(devices)} devices: " + ", ".join(devices[:_SHOWN]) + (", ..." if len(devices) > _SHOWN else "")


class FieldsKept(msgspec.Struct, frozen=True, kw_only=True):
    """The API server keeps what it dropped before: the complete pool is published."""

    pool: str


SliceEvent: TypeAlias = SliceWritten | PoolPublished | PublishFailed | FieldsDropped | FieldsKept
