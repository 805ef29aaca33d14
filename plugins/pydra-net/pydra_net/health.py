"""From a reading to the health of devices. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from pydra import Health, HealthStatus, TaintEffect
from pydra_net.hardware_types import Hardware
from pydra_net.network_types import Link, RdmaDevice
from pydra_net.steps import GiveInterface

_WINDOW = 300.0
"""Seconds."""
_MOST_CHANGES = 5
"""Carrier lost and got again twice can be an admin, or a switch that starts."""


class CarrierHistory:
    """How often links lost or got carrier in the last minutes, from the kernel's counts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: dict[str, deque[tuple[float, int]]] = {}

    def note(self, links: Mapping[str, Link]) -> Mapping[str, int]:
        """Return the changes of each device. One that is not there any more, as in a pod, starts from zero."""
        now = self._clock()
        self._counts = {name: self._counts.get(name, deque()) for name in links}
        changes = {}
        for name, counts in self._counts.items():
            count = links[name].carrier_changes
            if counts and count < counts[-1][1]:
                counts.clear()  # the same device with another link
            if not counts or count != counts[-1][1]:
                counts.append((now, count))
            while len(counts) > 1 and counts[1][0] < now - _WINDOW:
                counts.popleft()
            changes[name] = count - counts[0][1]
        return changes


def diagnose(link: Link, rdma: RdmaDevice | None = None, *, is_shared: bool = False, changes: int = 0) -> Health:
    """A link that is switched on and has no carrier cannot be used, nor what is made on one that is switched off."""
    if is_shared and not link.up:
        message = f"{link.name} is down, so interfaces on it have no network; run: ip link set {link.name} up"
        return _warn("LinkDown", message)
    if link.up and not link.carrier and not link.kind:
        return _warn("NoCarrier", f"{link.name} has no carrier; check its cable and the switch")
    if changes > _MOST_CHANGES:
        minutes = int(_WINDOW // 60)
        message = (
            f"{link.name} has lost or got carrier {changes} times in {minutes} minutes; check its cable and module"
        )
        return _warn("LinkFlapping", message)
    return diagnose_rdma(rdma) if rdma and link.up and link.carrier else Health()


def diagnose_rdma(rdma: RdmaDevice) -> Health:
    """An RDMA device without an active port reaches nobody."""
    if rdma.active:
        return Health()
    message = f"no port of the RDMA device {rdma.name} is active; run: rdma link show {rdma.name}/1"
    return _warn("RdmaPortDown", message)


def find_lost(
    gives: Sequence[GiveInterface],
    in_pods: Collection[str],
    attached: Collection[str],
    read_hardware: Callable[[str], Hardware],
) -> Mapping[str, str]:
    """Return why claims lost their interfaces, by the keys of steps: of `attached`, `in_pods` are still there."""
    lost = {}
    for give in gives:
        text = f"{give.name} ({give.device})"
        hardware = read_hardware(give.pci_address) if give.pci_address else None
        if hardware is not None and not hardware.vendor:
            lost[give.key] = f"{text} is gone: its PCI function {hardware.address} was removed; delete the pod"
        elif hardware is not None and not hardware.driver:
            lost[give.key] = f"{text} is gone: its PCI function {hardware.address} has no driver now; delete the pod"
        elif give.key in attached and give.key not in in_pods:
            lost[give.key] = f"{text} is not in the pod any more: somebody moved it, or made it again; delete the pod"
    return lost


def diagnose_lost(message: str) -> Health:
    """The interface of a claim that does not have it any more."""
    return _warn("InterfaceLost", message)


def _warn(reason: str, message: str) -> Health:
    """Not for further claims; those that have it go on."""
    return Health(status=HealthStatus.UNHEALTHY, reason=reason, message=message, effect=TaintEffect.NO_SCHEDULE)
