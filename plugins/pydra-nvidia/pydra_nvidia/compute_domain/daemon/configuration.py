"""The files that nvidia-imex reads: its configuration, the list of nodes, and their addresses in /etc/hosts. Pure.

It looks up its peers, and reads the files of its TLS, again when it is signalled. It acts on SIGUSR1 at most once in
5 s and forgets the others, so a signal that is sent too early leaves it with old addresses until the next change. Here
none is sent too early: what changes meanwhile waits for the next one.

All nodes of a domain must have the same list of nodes, or IMEX refuses to connect them until it is restarted. So the
list has fixed names, as many as a clique may have nodes, and /etc/hosts says which address a name has now.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, cmd/compute-domain-daemon; NVIDIA's IMEX guide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from pydra import SettingsError
from pydra.controllers import JsonObject
from pydra_nvidia.compute_domain.names import peer_name

KEY_FILES = ("tls.key", "tls.crt", "ca.crt")
"""Of a Secret with the keys for IMEX's TLS."""
BEGIN, END = "# Begin: nodes of the ComputeDomain", "# End: nodes of the ComputeDomain"
SPACING = 6.0
"""Seconds between two signals, and from the start to the first; IMEX's own 5 s begin when it handles one."""

Peers: TypeAlias = tuple[tuple[int, str], ...]
"""Index and address of each peer: what a signal tells."""
_NAME = re.compile(r"\scompute-domain-daemon-\d{4}(\s|$)")
_FIELD = re.compile(r"\{\{-?\s*\.(\w+)\s*-?\}\}")


def render_configuration(template: str, *, address: str, nodes_file: str, tls_directory: str) -> str:
    """The text of imexd.cfg, from the template that the node's driver wrote. Raises SettingsError for a strange one."""
    values = {"IMEXCmdBindInterfaceIP": address, "IMEXDaemonNodesConfigPath": nodes_file}
    unknown = sorted({name for name in _FIELD.findall(template) if name not in values})
    if unknown:
        raise SettingsError(
            [f"imexd.cfg.tmpl: found {', '.join(unknown)}, allowed: {', '.join(values)}; agent and daemon differ"]
        )
    text = _FIELD.sub(lambda found: values[found[1]], template)
    if not tls_directory:
        return text
    lines = [line for line in text.splitlines() if not line.startswith("IMEX_ENABLE_AUTH_ENCRYPTION")]
    tls = {"IMEX_ENABLE_AUTH_ENCRYPTION": "1", "IMEX_AUTH_ENCRYPTION_MODE": "SSL_TLS", "IMEX_AUTH_SOURCE": "FILE"}
    for role in ("SERVER", "CLIENT"):
        tls[f"IMEX_{role}_KEY"] = f"{tls_directory}/tls.key"
        tls[f"IMEX_{role}_CERT"] = f"{tls_directory}/tls.crt"
        tls[f"IMEX_{role}_CERT_AUTH"] = f"{tls_directory}/ca.crt"
    return "\n".join([*lines, *(f"{key}={value}" for key, value in tls.items())]) + "\n"


def render_nodes(count: int) -> str:
    """The text of nodes.cfg for cliques of up to `count` nodes."""
    return "".join(f"{peer_name(index)}\n" for index in range(count))


def parse_peers(clique: JsonObject | None) -> Mapping[int, tuple[str, str]]:
    """Node and address of each index of a ComputeDomainClique, sorted."""
    entries: Sequence[JsonObject] = (clique or {}).get("daemons") or ()
    found = {
        entry["index"]: (str(entry["nodeName"]), str(entry["ipAddress"]))
        for entry in entries
        if entry.get("index", -1) >= 0 and entry.get("ipAddress")
    }
    return dict(sorted(found.items()))


def find_own(peers: Mapping[int, tuple[str, str]], *, node: str, address: str) -> int | None:
    """The index of this daemon; None until it is entered with the address that it has now."""
    return next((index for index, peer in peers.items() if peer == (node, address)), None)


def merge_hosts(text: str, peers: Mapping[int, tuple[str, str]]) -> str:
    """The text of /etc/hosts with the peers, and without what was there of them before."""
    kept, skipping = list[str](), False
    for line in text.splitlines():
        if line == BEGIN:
            skipping = True
        if not skipping and not _NAME.search(line):
            kept.append(line)
        if line == END:
            skipping = False
    own = [f"{address}\t{peer_name(index)}" for index, (_, address) in peers.items()]
    return "\n".join([*kept, BEGIN, *own, END]) + "\n"


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What nvidia-imex knows, and since when: by its start, or by the last signal. `keys` are digests, of its TLS."""

    peers: Peers
    keys: tuple[str, ...] = ()
    at: float


def plan_reload(
    loaded: Loaded, peers: Peers, now: float, keys: tuple[str, ...] = (), *, spacing: float = SPACING
) -> float | None:
    """Seconds until the signal is due, 0 for now; None if IMEX knows these peers and keys."""
    return None if (loaded.peers, loaded.keys) == (peers, keys) else max(0.0, loaded.at + spacing - now)
