"""What is done for a claim, as values: planned, and recorded, before anything is done."""

from __future__ import annotations

import hashlib
from typing import TypeAlias, TypeGuard

import msgspec

from pydra_net.interface_state import InterfaceState
from pydra_net.network_types import Interface, Link, VirtualFunctionState

_MARK = "pydra."
IDENTITY = 10
"""Digits of a claim's digest that names have."""


class _StepOfDevice(msgspec.Struct, frozen=True, kw_only=True):
    """What all steps have: the device that they are for, which the claim has as a whole if they have no share of it."""

    device: str

    @property
    def holds(self) -> tuple[str, ...]:
        """What only one claim has, or a share of it."""
        return (self.device,)

    @property
    def share_id(self) -> str | None:
        """It is the whole device."""
        return None

    @property
    def moves(self) -> bool:
        """Whether it is in the pod."""
        return True


class _StepOfShare(_StepOfDevice, frozen=True, kw_only=True):
    """Of a device, or of a share of it."""

    share_id: str | None = None


class GiveInterface(_StepOfDevice, frozen=True, kw_only=True, tag_field="step", tag="give-interface"):
    """Let a claim have an interface of the node: it is moved when the pod's sandbox exists, and moved back.

    `before` is how it is on the node, `target` how it is in the pod; `identity` is a part of names that no other pod
    can guess, empty in records of older versions.
    """

    before: Interface
    target: InterfaceState
    pci_address: str = ""
    identity: str = ""

    @property
    def key(self) -> str:
        """Only one claim has it."""
        return self.device

    @property
    def name(self) -> str:
        """The interface on the node, for messages."""
        return self.before.link.name

    @property
    def mark(self) -> str:
        """The alternative name by which it is found again; empty if it is found by its hardware."""
        link = self.before.link
        return f"{_MARK}{self.identity or self.device}" if link.kind or not (link.parent or link.permanent_mac) else ""

    def is_of(self, link: Link) -> bool:
        """Whether the link is this interface, whatever its name and address are now."""
        if self.mark:
            return self.mark in link.alternative_names and link.kind == self.before.link.kind
        return _is_same_hardware(self.before.link, link)

    def __str__(self) -> str:
        """`give-interface eth1`, for messages."""
        return f"give-interface {self.before.link.name}"


class ShareInterface(_StepOfShare, frozen=True, kw_only=True, tag_field="step", tag="share-interface"):
    """Let a claim have a virtual interface on one of the node's, which stays: it is made in the pod, and removed.

    `parent` is the node's interface, `kind` that of the virtual one, with its `mode` or the ID of its `vlan`;
    `identity` is a part of names that only this share has, and `target` how it is in the pod.
    """

    parent: Link
    kind: str
    mode: str = ""
    vlan: int = 0
    identity: str
    target: InterfaceState

    @property
    def key(self) -> str:
        """Only one claim has it."""
        return f"{self.device}/{self.share_id or ''}"

    @property
    def name(self) -> str:
        """The interface on the node, for messages."""
        return self.parent.name

    @property
    def first_name(self) -> str:
        """The name that the interface is made with, by which it is found if the process is killed just then."""
        return f"pydra{self.identity}"

    @property
    def mark(self) -> str:
        """The alternative name by which it is found afterwards."""
        return f"{_MARK}{self.identity}"

    def is_of(self, link: Link) -> bool:
        """Whether the link is this share."""
        return link.name == self.first_name or self.mark in link.alternative_names

    def is_parent(self, link: Link) -> bool:
        """Whether the link is the node's interface, whatever its name is now."""
        known = self.parent
        if known.parent and not known.kind:
            return _is_same_hardware(known, link)
        return (known.name, known.kind) == (link.name, link.kind)

    def __str__(self) -> str:
        """`share-interface eth1`, for messages."""
        return f"share-interface {self.parent.name}"


class GiveRdma(_StepOfShare, frozen=True, kw_only=True, tag_field="step", tag="give-rdma", omit_defaults=True):
    """Let a claim have the RDMA device of its interface, or `alone`, one without an interface.

    Containers get its device nodes, `nodes`. If it `moves`, it is in the pod only, as the interface is; else all
    namespaces have it, and nothing is done.
    """

    name: str
    nodes: tuple[str, ...] = ()
    pci_address: str = ""
    moves: bool = False
    alone: bool = False

    @property
    def key(self) -> str:
        """Only one claim has it, or a share of it."""
        return f"rdma/{self.device}/{self.share_id or ''}"

    def __str__(self) -> str:
        """`give-rdma mlx5_0`, for messages."""
        return f"give-rdma {self.name}"


def digest_claim(uid: str, device: str, share_id: str | None) -> str:
    """Return what only this claim has for the device, in hexadecimal digits: pods do not know the UIDs of others."""
    return hashlib.sha256(f"{uid}/{device}/{share_id or ''}".encode()).hexdigest()


def _is_same_hardware(known: Link, link: Link) -> bool:
    if link.kind or (known.parent, known.port) != (link.parent, link.port):
        return False
    return not (known.permanent_mac and link.permanent_mac) or known.permanent_mac == link.permanent_mac


class ConfigureFunction(_StepOfDevice, frozen=True, kw_only=True, tag_field="step", tag="configure-function"):
    """Let a card do with a claim's virtual function what the claim says; that is done on the node, before the pod.

    `before` has what `target` has, as it was. `card` is the address of the card, `card_name` its interface.
    """

    card: str
    card_name: str
    pci_address: str
    number: int
    before: VirtualFunctionState
    target: VirtualFunctionState

    @property
    def key(self) -> str:
        """Only one claim has it."""
        return f"function/{self.device}"

    @property
    def name(self) -> str:
        """The function, for messages."""
        return f"VF {self.number}"

    @property
    def moves(self) -> bool:
        """Nothing of it is in the pod."""
        return False

    def __str__(self) -> str:
        """`configure-function eth1 VF 2`, for messages."""
        return f"configure-function {self.card_name} {self.name}"


InterfaceStep: TypeAlias = GiveInterface | ShareInterface
Step: TypeAlias = InterfaceStep | GiveRdma | ConfigureFunction

STEP_TYPES = (GiveInterface, ShareInterface, GiveRdma, ConfigureFunction)


def is_given_addresses(step: Step) -> TypeGuard[InterfaceStep]:
    """Whether somebody gives the interface an address in the pod."""
    return isinstance(step, GiveInterface | ShareInterface) and step.target.is_given_addresses
