"""Which claims hold which devices on this node: the last line of defence against giving one twice.

Pure bookkeeping, no awaits, so that looking and taking are one step. A look costs the same however
many claims there are.

Two claims may hold one device when either has admin access to it, or when each has a share of its
own. Source: Kubernetes API reference, DeviceRequestAllocationResult adminAccess and shareID.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydra.claim import AllocatedDevice, Claim
from pydra.errors import DeviceInUse

_Key = tuple[str, str]


class DeviceHolders:
    """Devices by pool and name, and the claims that hold them."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Claim, ...]] = {}
        self._holders: dict[_Key, dict[str, None]] = {}

    def conflict(self, claim: Claim) -> DeviceInUse | None:
        """Why the claim cannot have its devices now: the first of them that another claim holds for itself."""
        for device in claim.devices:
            for uid in self._holders.get(_key(device), ()):
                if uid != claim.uid and (holder := self._exclusive_holder(uid, device)):
                    named = f"{holder.namespace}/{holder.name}"
                    return DeviceInUse(f"{device.device} of pool {device.pool}", named)
        return None

    def hold(self, uid: str, claims: Iterable[Claim]) -> None:
        """From now on the uid holds the devices of these (one claim, or what it was and what it becomes), no others."""
        self.release(uid)
        self._held[uid] = kept = tuple(claims)
        for claim in kept:
            for device in claim.devices:
                self._holders.setdefault(_key(device), {})[uid] = None

    def release(self, uid: str) -> None:
        """The uid holds nothing any more."""
        for claim in self._held.pop(uid, ()):
            for device in claim.devices:
                holders = self._holders.get(_key(device), {})
                holders.pop(uid, None)
                if not holders:
                    self._holders.pop(_key(device), None)

    def holders(self, pool: str, device: str) -> frozenset[str]:
        """The uids of the claims that hold the device."""
        return frozenset(self._holders.get((pool, device), ()))

    def _exclusive_holder(self, uid: str, wanted: AllocatedDevice) -> Claim | None:
        for claim in self._held[uid]:
            for held in claim.devices:
                if _key(held) == _key(wanted) and not may_share(held, wanted):
                    return claim
        return None


def may_share(one: AllocatedDevice, other: AllocatedDevice) -> bool:
    """Whether two claims may hold these, which are one device, at the same time."""
    if one.admin_access or other.admin_access:
        return True
    return one.share_id is not None and other.share_id is not None and one.share_id != other.share_id


def _key(device: AllocatedDevice) -> _Key:
    return (device.pool, device.device)
