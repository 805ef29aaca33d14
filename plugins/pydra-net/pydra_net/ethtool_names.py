"""From the names that people use for ethtool's features to those of the kernel. No I/O.

Source: ethtool(8), `-K`; the kernel's strings of NETIF_F_*.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from pydra import TerminalError
from pydra_net.claim_config import EthtoolConfig
from pydra_net.network_types import Ethtool

_ALIASES = {
    ("rx", "rx-checksumming"): "rx-checksum",
    ("tx", "tx-checksumming"): "tx-checksum-*",
    ("sg", "scatter-gather"): "tx-scatter-gather*",
    ("tso", "tcp-segmentation-offload"): "tx-tcp*-segmentation",
    ("ufo", "udp-fragmentation-offload"): "tx-udp-fragmentation",
    ("gso", "generic-segmentation-offload"): "tx-generic-segmentation",
    ("gro", "generic-receive-offload"): "rx-gro",
    ("lro", "large-receive-offload"): "rx-lro",
    ("rxvlan", "rx-vlan-offload"): "rx-vlan-hw-parse",
    ("txvlan", "tx-vlan-offload"): "tx-vlan-hw-insert",
    ("ntuple", "ntuple-filters"): "rx-ntuple-filter",
    ("rxhash", "receive-hashing"): "rx-hashing",
}


def resolve_ethtool(config: EthtoolConfig, found: Ethtool, link: str) -> EthtoolConfig:
    """The same with the kernel's names. Raises TerminalError for what the link does not have, or cannot change."""
    features: dict[str, bool] = {}
    for name, enabled in config.features.items():
        features |= dict.fromkeys(_resolve(name, enabled, found, link), enabled)
    for name in config.private_flags:
        if name not in found.private_flags:
            known = ", ".join(sorted(found.private_flags)) or "none"
            raise TerminalError(f'ethtool.privateFlags: {link} has no "{name}"; it has: {known}')
    return EthtoolConfig(features=features, private_flags=config.private_flags)


def list_present(config: EthtoolConfig, found: Ethtool) -> tuple[Mapping[str, bool], Mapping[str, bool]]:
    """How features and private flags are now that a configuration, with the kernel's names, changes."""
    features = {name: found.features[name].enabled for name in config.features}
    return features, {name: found.private_flags[name] for name in config.private_flags}


def _resolve(name: str, enabled: bool, found: Ethtool, link: str) -> list[str]:
    """The features that a name stands for, without those that cannot be changed and are so already."""
    pattern = next((one for names, one in _ALIASES.items() if name in names), "")
    names = [name] if name in found.features else fnmatch.filter(found.features, pattern) if pattern else []
    if not names:
        raise TerminalError(f'ethtool.features: {link} has no "{name}"; run: ethtool -k {link}')
    free = [one for one in names if not found.features[one].fixed]
    if not free and any(found.features[one].enabled != enabled for one in names):
        raise TerminalError(f'ethtool.features: "{name}" of {link} cannot be turned {"on" if enabled else "off"}')
    return sorted(free)
