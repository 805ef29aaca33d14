"""What the reconciler tells of itself. Values."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import msgspec

from pydra.errors import KubeError


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
    """The API server dropped fields of a slice; `gates` are the feature gates that are probably off, if known."""

    pool: str
    index: int
    gates: tuple[str, ...]

    def __str__(self) -> str:
        gates = ", ".join(self.gates) or "unknown"
        return (
            f'pool "{self.pool}", slice #{self.index}: some fields were dropped by the API server, '
            f"probably because these features are disabled: {gates}"
        )


class PoolInvalid(msgspec.Struct, frozen=True, kw_only=True):
    """The pool as a whole cannot be used; what was published before stays."""

    pool: str
    problems: tuple[str, ...]


SliceEvent: TypeAlias = SliceWritten | PoolPublished | PublishFailed | FieldsDropped | PoolInvalid
