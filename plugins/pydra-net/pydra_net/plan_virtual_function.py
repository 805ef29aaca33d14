"""Plans what a card does with a claim's virtual function. No I/O."""

from __future__ import annotations

from pydra import TerminalError
from pydra_net.claim_config import LINK_STATES, NetworkConfig
from pydra_net.hardware_types import VirtualFunction
from pydra_net.network_types import VirtualFunctionState
from pydra_net.steps import ConfigureFunction


def build_state(config: NetworkConfig) -> VirtualFunctionState:
    """What a claim configures of its virtual function on the card; its MAC address is known there, too."""
    wanted, mac = config.interface.vf, config.interface.hardware_addr
    if wanted is None:
        return VirtualFunctionState(mac=mac.lower() if mac else None)
    return VirtualFunctionState(
        mac=mac.lower() if mac else None,
        vlan=wanted.vlan,
        qos=(wanted.vlan_qos or 0) if wanted.vlan is not None else None,
        min_rate=wanted.min_tx_rate,
        max_rate=wanted.max_tx_rate,
        spoof_check=wanted.spoof_chk,
        trust=wanted.trust,
        link_state=LINK_STATES.index(wanted.link_state) if wanted.link_state else None,
    )


def plan_function(device: str, config: NetworkConfig, found: VirtualFunction | None) -> list[ConfigureFunction]:
    """Return what the card is to do with a claim's virtual function, if that is configured. Raises TerminalError."""
    target = build_state(config)
    if target == VirtualFunctionState() or (found is None and config.interface.vf is None):
        return []
    if found is None:
        raise TerminalError(
            f"interface.vf: {device} is not a virtual function; remove it, or request devices with the attribute "
            "isSriovVf: true"
        )
    if found.link is None or found.state is None:  # as in a virtual machine, whose host has the card
        if config.interface.vf is None:
            return []
        raise TerminalError(
            f"interface.vf: the card of {device}, {found.card}, has no interface on the node; remove it"
        )
    before = {name: getattr(found.state, name) for name in target.list_known()}
    return [
        ConfigureFunction(
            device=device,
            card=found.card,
            card_name=found.link.name,
            pci_address=found.address,
            number=found.number,
            before=VirtualFunctionState(**before),
            target=target,
        )
    ]
