"""Tracks which claim holds which device.

The last check against giving one device to two claims. No awaits, so looking up and taking are one step. A lookup takes
the same time however many claims there are.

Two claims may hold one device when either has admin access to it, or when each has a share of its own. Source:
Kubernetes API reference, DeviceRequestAllocationResult adminAccess and shareID.
"""

from __future__ import annotations

import msgspec

from pydra.claim import AllocatedDevice, Claim
from pydra.errors import DeviceInUse


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """How a claim uses a device. `claim` is for messages."""

    claim: str
    admin_access: bool = False
    share_id: str | None = None

    def allows(self, other: AllocatedDevice) -> bool:
        """Return whether another claim may use the device at the same time."""
        if self.admin_access or other.admin_access:
            return True
        return self.share_id is not None and other.share_id is not None and self.share_id != other.share_id


class DeviceIndex:
    """Maps devices, by pool and name, to the claims that hold them."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, str], dict[str, list[Use]]] = {}
        self._devices: dict[str, list[tuple[str, str]]] = {}

    def hold(self, uid: str, claim: Claim) -> None:
        """Let the uid hold the devices of this claim, and no others."""
        if uid in self._devices:
            self.release(uid)
        name = f"{claim.namespace}/{claim.name}" if claim.name else f"with uid {uid}"
        for device in claim.devices:
            key = device.pool, device.device
            use = Use(claim=name, admin_access=device.admin_access, share_id=device.share_id)
            self._uses.setdefault(key, {}).setdefault(uid, []).append(use)
            self._devices.setdefault(uid, []).append(key)

    def release(self, uid: str) -> None:
        """Release all devices of the uid."""
        for device in self._devices.pop(uid, ()):
            uses = self._uses.get(device, {})
            uses.pop(uid, None)
            if not uses:
                self._uses.pop(device, None)

    def find_conflict(self, claim: Claim) -> DeviceInUse | None:
        """Return the error for the first device of the claim that another claim holds exclusively, if any."""
        for device in claim.devices:
            for uid, uses in self._uses.get((device.pool, device.device), {}).items():
                if uid != claim.uid:
                    for use in uses:
                        if not use.allows(device):
                            return DeviceInUse(f"{device.device} of pool {device.pool}", use.claim)
        return None
