"""The copy of the held claims in a backend's process."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pydra.backends.child.claim_values import BackendTypes, HeldClaims
from pydra.backends.wire import build_held
from pydra.claim import AllocatedDevice, Claim, HeldClaim, OpaqueConfig, describe_step

WHILE_DECODING: list[Callable[[], None]] = []


class Config(msgspec.Struct):
    """A type whose rule is checked while a claim is decoded."""

    def __post_init__(self) -> None:
        if WHILE_DECODING:
            WHILE_DECODING.pop()()


def test_a_claim_that_changes_while_a_thread_decodes_it_is_decoded_again() -> None:
    copy = HeldClaims(BackendTypes(configs={"": Config}))

    def note(*, completed: bool) -> None:
        config = OpaqueConfig(source="FromClaim", position="config[0]", parameters={})
        device = AllocatedDevice(request="gpu", pool="node", device="gpu-0", configs=(config,))
        claim = Claim(uid="u", namespace="ns", name="c", devices=(device,))
        (message,) = build_held({"u": HeldClaim(claim=claim, completed=completed)})
        copy.update(message)

    note(completed=False)
    WHILE_DECODING.append(lambda: note(completed=True))
    assert [one.completed for one in copy.read()] == [False]
    assert [one.completed for one in copy.read()] == [True]


class Load(msgspec.Struct, frozen=True, tag="load"):
    """A step of this version."""


class Unload(msgspec.Struct, frozen=True, tag="unload"):
    """One of a later version."""


def test_steps_of_a_later_version_keep_no_claim_from_being_read() -> None:
    copy = HeldClaims(BackendTypes(configs={}, steps=(Load,)))
    steps = (describe_step(Load()), describe_step(Unload()))
    claim = Claim(uid="u", namespace="ns", name="c", devices=(), steps=steps)
    (message,) = build_held({"u": HeldClaim(claim=claim, completed=True)})
    copy.update(message)
    (held,) = copy.read()
    assert [one.step for one in held.claim.steps] == [Load(), {"type": "unload"}]
