"""What is done for a claim, as values: planned, and recorded, before anything is done."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from pydra_net.hardware_types import Interface, Link
from pydra_net.link_state import LinkState

_MARK = "pydra."


class GiveInterface(msgspec.Struct, frozen=True, kw_only=True, tag_field="step", tag="give-interface"):
    """Let a claim have an interface of the node: it is moved when the pod's sandbox exists, and moved back.

    `before` is how it is on the node, `target` how it is in the pod.
    """

    device: str
    before: Interface
    target: LinkState
    pci_address: str = ""

    @property
    def key(self) -> str:
        """Only one claim has it."""
        return self.device

    @property
    def holds(self) -> tuple[str, ...]:
        """The interface."""
        return (self.device,)

    @property
    def mark(self) -> str:
        """The alternative name by which it is found again; empty if it is found by its hardware."""
        link = self.before.link
        return f"{_MARK}{self.device}" if link.kind or not (link.parent or link.permanent_mac) else ""

    def is_of(self, link: Link) -> bool:
        """Whether the link is this interface, whatever its name and address are now."""
        known = self.before.link
        if self.mark:
            return self.mark in link.alternative_names
        if link.kind or (known.parent, known.port) != (link.parent, link.port):
            return False
        return not (known.permanent_mac and link.permanent_mac) or known.permanent_mac == link.permanent_mac

    def __str__(self) -> str:
        """`give-interface eth1`, for messages."""
        return f"give-interface {self.before.link.name}"


Step: TypeAlias = GiveInterface

STEP_TYPES = (GiveInterface,)
