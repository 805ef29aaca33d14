"""What goes between the kubelet's door and the claims behind it: references in, outcomes out. Values only."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from pydra.errors import PydraError


class ClaimRef(msgspec.Struct, frozen=True, kw_only=True):
    """A claim as the kubelet names it."""

    uid: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodRef(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that may use a claim, from the claim's `status.reservedFor`."""

    uid: str
    namespace: str
    name: str


class ContainerDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A prepared device as the kubelet hears of it; `requests` are base names, without `/sub`."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


PrepareOutcome: TypeAlias = tuple[ContainerDevice, ...] | PydraError
UnprepareOutcome: TypeAlias = PydraError | None
