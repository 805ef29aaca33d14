"""Plans the interface that a claim gets on one that stays on the node. No I/O."""

from __future__ import annotations

from pydra import AllocatedDevice, TerminalError
from pydra_net.claim_config import InterfaceConfig, MacvlanConfig, NetworkConfig
from pydra_net.network_types import Interface, Link
from pydra_net.steps import IDENTITY, ShareInterface, digest_claim
from pydra_net.wanted_state_in_pod import find_state_in_pod


def is_virtual(device: AllocatedDevice, config: NetworkConfig, *, is_shared: bool) -> bool:
    """Whether the claim gets an interface on that of the node. Raises TerminalError.

    A cluster without the gate for shares gives one that is offered so to one claim, which has no share then.
    """
    kind = config.interface.kind
    is_share = is_shared or device.share_id is not None
    if is_share and kind == "passthrough":
        raise TerminalError(
            f"interface.type: found passthrough, but {device.device} is offered in shares; remove it, or request an "
            "interface with the attribute shared: false"
        )
    return is_share or kind not in ("", "passthrough")


def plan_share(uid: str, device: AllocatedDevice, config: NetworkConfig, parent: Link) -> ShareInterface:
    """Return the interface for the claim of this UID. It has nothing that is configured on the node's.

    Raises TerminalError.
    """
    wanted = config.interface
    kind = wanted.kind or "macvlan"
    if config.ethtool is not None:
        raise TerminalError(
            f"ethtool: cannot be set, since {parent.name} ({device.device}) stays on the node; request an interface "
            "with the attribute shared: false"
        )
    digest = digest_claim(uid, device.device, device.share_id)
    bare = Link(
        index=parent.index, name=parent.name, mtu=parent.mtu, mac=_build_mac(digest) if kind == "macvlan" else ""
    )
    return ShareInterface(
        device=device.device,
        share_id=device.share_id,
        parent=parent,
        kind=kind,
        mode=_find_mode(kind, wanted),
        vlan=wanted.vlan.id if wanted.vlan else 0,
        identity=digest[:IDENTITY],
        target=find_state_in_pod(Interface(link=bare), config),
    )


def _build_mac(digest: str) -> str:
    """An address that is locally administered, and the same in each sandbox of the pod."""
    return ":".join(("02", *(digest[place : place + 2] for place in range(0, 10, 2))))


def _find_mode(kind: str, wanted: InterfaceConfig) -> str:
    if kind == "macvlan":
        return (wanted.macvlan or MacvlanConfig()).mode
    if kind == "ipvlan":
        return wanted.ipvlan.mode.lower() if wanted.ipvlan else "l2"
    return ""
