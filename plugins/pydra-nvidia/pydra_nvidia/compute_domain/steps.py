"""What is done to a node for a claim, as a value: planned before it is done, undone by the agent (STEP_TYPES).

A channel needs no step: its device nodes are made by the container runtime, and that IMEX is ready is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

CHANNEL, DAEMON = "channel-0", "daemon-0"
"""What a node publishes, as NVIDIA's driver does: the other channels come with the first one, for claims for all."""


class MakeDomainDirectory(msgspec.Struct, frozen=True, kw_only=True, tag_field="step", tag="make-domain-directory"):
    """Make the directory in which the IMEX daemon of a ComputeDomain finds its template. Undone by removing it."""

    domain: str
    holds: tuple[str, ...] = (DAEMON,)

    @property
    def key(self) -> str:
        """The ComputeDomain's UID."""
        return self.domain

    def __str__(self) -> str:
        return f"make-domain-directory {self.domain}"


STEP_TYPES: Sequence[type] = (MakeDomainDirectory,)
