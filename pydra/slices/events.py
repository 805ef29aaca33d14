"""What the reconciler tells of itself. Values."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import msgspec

from pydra.errors import KubeError
from pydra.slices.feature_gates import BINDING, PARTITIONS, SHARES, TAINTS

ON_BY_DEFAULT = dict.fromkeys((BINDING, PARTITIONS, SHARES, TAINTS), "1.36")
"""Source: the Kubernetes feature gate table."""
_SHOWN = 8


class WriteKind(Enum):
    """What was done to a slice."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class SliceWritten(msgspec.Struct, frozen=True, kw_only=True):
    """The API server took a write."""

    pool: str
    name: str
    kind: WriteKind


class PoolPublished(msgspec.Struct, frozen=True, kw_only=True):
    """The API has all of the pool, after writes or at the first look. `slices` 0: the pool was withdrawn."""

    pool: str
    generation: int
    slices: int
    devices: int


class PublishFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The API server did not take a write; tried again after `pause` seconds."""

    pool: str
    error: KubeError
    pause: float


class FieldsDropped(msgspec.Struct, frozen=True, kw_only=True):
    """The API server drops fields of a pool's slices; `gates` are the feature gates that are probably off, if known.

    `withheld` are the devices that are not published, because they would be unsafe without their fields.
    """

    pool: str
    gates: tuple[str, ...]
    withheld: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.gates:
            return f'pool "{self.pool}": some fields were dropped by the API server, for a reason that is not known'
        gates = ", ".join(self.gates)
        text = (
            f'pool "{self.pool}": some fields are dropped by the API server, probably because these feature gates are '
            f"off: {gates}. Turn them on in the control plane and the kubelets"
        )
        if since := [gate for gate in self.gates if gate in ON_BY_DEFAULT]:
            text += f" ({', '.join(since)}: on by default from Kubernetes {ON_BY_DEFAULT[since[0]]})"
        if self.withheld:
            shown = ", ".join(self.withheld[:_SHOWN]) + (", ..." if len(self.withheld) > _SHOWN else "")
            text += f". Not published until then, since unsafe without: {len(self.withheld)} devices: {shown}"
        return text


class FieldsKept(msgspec.Struct, frozen=True, kw_only=True):
    """The API server keeps what it dropped before: the whole pool is published."""

    pool: str


class PoolInvalid(msgspec.Struct, frozen=True, kw_only=True):
    """The pool as a whole cannot be used; what was published before stays."""

    pool: str
    problems: tuple[str, ...]


SliceEvent: TypeAlias = SliceWritten | PoolPublished | PublishFailed | FieldsDropped | FieldsKept | PoolInvalid
