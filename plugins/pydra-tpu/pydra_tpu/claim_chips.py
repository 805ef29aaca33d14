"""From the devices of a claim to its chips. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydra import AllocatedDevice, DeviceStatus, TerminalError, UnknownDevice
from pydra_tpu.geometry import SubSlice, find_sub_slice
from pydra_tpu.hardware_types import Chip


class NotAMesh(TerminalError):
    """The chips of a claim cannot form a mesh."""

    reason = "NotAMesh"


def find_chips(
    devices: Sequence[AllocatedDevice], offered: Mapping[str, SubSlice], count: int, *, admin: bool
) -> tuple[int, ...]:
    """The chips of the devices with, or without, admin access. Raises UnknownDevice, NotAMesh."""
    wanted = [one.device for one in devices if one.admin_access is admin]
    if unknown := [name for name in wanted if name not in offered]:
        raise UnknownDevice(f"this machine has no device {unknown[0]}; it has {', '.join(offered) or 'none'}")
    chips = tuple(sorted({index for name in wanted for index in offered[name].chips}))
    if chips and find_sub_slice(chips, count) is None:
        raise NotAMesh(
            f"chips {', '.join(map(str, chips))} of this host do not form a mesh together; "
            "ask for one device of the shape that is needed, such as 2x2, or for all chips of a host"
        )
    return chips


def identify(chips: Sequence[Chip]) -> DeviceStatus:
    """What the claim's status says of these chips: which hardware they are, also when they are published no more."""
    addresses = [function.address for chip in chips for function in chip.functions]
    return DeviceStatus(data={"chips": [chip.index for chip in chips], "pciBusIDs": addresses})
