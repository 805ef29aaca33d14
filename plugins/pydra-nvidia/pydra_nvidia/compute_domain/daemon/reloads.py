"""When nvidia-imex must be signalled to look up its peers, and to read the files of its TLS, again. Pure.

It acts on SIGUSR1 at most once in 5 s and forgets the others, so a signal that is sent too early leaves it with old
addresses until the next change. Here none is sent too early: what changes meanwhile waits for the next one.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

SPACING = 6.0
"""Seconds between two signals, and from the start to the first; IMEX's own 5 s begin when it handles one."""

Peers: TypeAlias = tuple[tuple[int, str], ...]
"""Index and address of each peer: what a signal tells."""


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
