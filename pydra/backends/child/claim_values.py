"""Decodes what belongs to claims into the backend's own types: configs, steps, and the claims that the node holds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Union

import msgspec
from msgspec.structs import replace

from pydra.backends.claim_config import ConfigTypes, decode_what_fits
from pydra.backends.contract_validation import name_class
from pydra.backends.type_mismatches import find_mismatches
from pydra.backends.wire import Held, build_result, find_unencodable, parse_held
from pydra.claim import Claim, ClaimStep, HeldClaim, Plan, describe_step
from pydra.errors import UndoLater


class BackendTypes:
    """A backend's `CONFIG_TYPES` and `STEP_TYPES`, both without violations."""

    def __init__(self, *, configs: ConfigTypes, steps: Sequence[type[Any]] = ()) -> None:
        self.configs = configs
        self.steps = tuple(steps)
        self._step: Any = Union[self.steps] if steps else None  # noqa: UP007 - of types that are known at run time

    def describe_plan(self, answer: Any) -> tuple[Any, tuple[str, ...]]:
        """Return what `plan` returned, a Plan with a `ClaimStep` for each step; and the violations, if any."""
        if not self.steps:
            said = "plan returned a pydra.Plan, and the backend has no STEP_TYPES: list the classes of its steps there"
            return answer, (said,) if isinstance(answer, Plan) else ()
        if not isinstance(answer, Plan):
            return None, (f"plan returned {name_class(answer)}, not a pydra.Plan, and the backend has STEP_TYPES",)
        if violations := tuple(self._find_violations(answer)):
            return None, violations
        return Plan(steps=tuple(map(describe_step, answer.steps)), data=answer.data), ()

    def _find_violations(self, plan: Plan) -> Iterator[str]:
        steps: object = plan.steps
        if not isinstance(steps, list | tuple):
            yield f"plan: steps is of type {type(steps).__name__}, not a list or tuple"
            return
        keys: set[str] = set()
        for place, step in enumerate(steps):
            if type(step) not in self.steps:
                yield f"plan: steps[{place}] is of type {type(step).__name__}, which STEP_TYPES does not have"
                continue
            if wrong := tuple(_find_wrong_properties(step)):
                yield from (f"plan: steps[{place}]: {one}" for one in wrong)
                continue
            try:
                one = describe_step(step)
            except (TypeError, ValueError, OverflowError, RecursionError):
                if parts := [f"plan: {part}" for part in find_unencodable(step, f"$.steps[{place}]")]:
                    yield from parts
                    continue
                raise
            yield from (f"plan: steps[{place}] ({one.label}): {wrong}" for wrong in self._find_unreadable(step))
            if one.key in keys:
                yield f"plan: steps[{place}] ({one.label}) has the same key as a step before it; plan each change once"
            keys.add(one.key)

    def _find_unreadable(self, step: Any) -> tuple[str, ...]:
        """Say what keeps the step from being read again: msgspec checks no value when it makes a Struct."""
        recorded = msgspec.msgpack.decode(build_result(step))
        try:
            msgspec.convert(recorded, self._step)
        except (msgspec.ValidationError, TypeError) as error:
            return find_mismatches(recorded, type(step)) or (str(error),)
        return ()

    def decode_step(self, one: ClaimStep) -> ClaimStep:
        """Return the step as a value of its type. Raises UndoLater if no type fits: a later version recorded it."""
        try:
            return replace(one, step=msgspec.convert(one.step, self._step))
        except (msgspec.ValidationError, TypeError) as error:
            raise UndoLater(
                f"the step {one.label} cannot be read ({error}): another version of the backend recorded it; install "
                "that version again, or reboot the node"
            ) from error

    def decode_steps(self, claim: Claim) -> Claim:
        """Decode the claim's steps; those that do not decode stay as they are."""
        return replace(claim, steps=tuple(map(self._decode_if_it_fits, claim.steps))) if claim.steps else claim

    def decode_what_fits(self, claim: Claim) -> Claim:
        """Decode the configs and steps that still decode: undoing must not fail because of others."""
        return self.decode_steps(decode_what_fits(claim, self.configs))

    def _decode_if_it_fits(self, one: ClaimStep) -> ClaimStep:
        try:
            return self.decode_step(one)
        except UndoLater:
            return one


def _find_wrong_properties(step: Any) -> Iterator[str]:
    name = type(step).__name__
    for what, wanted in (("key", "a string"), ("holds", "a tuple of names of devices")):
        value = getattr(step, what, None)
        if callable(value):
            yield f"{what} of {name} is a method; write @property above it"
        elif value is not None and not (isinstance(value, str) if what == "key" else _are_names(value)):
            yield f"{what} of {name} is {value!r}; it must be {wanted}"


def _are_names(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(name, str) for name in value)


class HeldClaims:
    """The claims that the node holds, as the agent has sent them. A claim is decoded when it is read, and then kept.

    Threads of calls may read while the event loop updates: both dictionaries are replaced together, never changed,
    except that what a thread has decoded is added to those that it read.
    """

    def __init__(self, types: BackendTypes) -> None:
        self._types = types
        self._known: tuple[dict[str, msgspec.Raw], dict[str, HeldClaim]] = {}, {}

    def update(self, message: Held) -> None:
        """Take over what has changed."""
        encoded = {} if message.complete else dict(self._known[0])
        decoded = {} if message.complete else dict(self._known[1])
        for uid in (*message.ended, *message.claims):
            encoded.pop(uid, None)
            decoded.pop(uid, None)
        encoded.update({uid: raw.copy() for uid, raw in message.claims.items()})
        self._known = encoded, decoded

    def read(self) -> tuple[HeldClaim, ...]:
        """Return all of them, in the order of their uids."""
        encoded, decoded = self._known
        for uid in encoded.keys() - decoded.keys():
            held = parse_held(encoded[uid])
            decoded[uid] = replace(held, claim=self._types.decode_what_fits(held.claim))
        return tuple([decoded[uid] for uid in sorted(encoded)])
