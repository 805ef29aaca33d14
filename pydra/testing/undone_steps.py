"""Whether the steps of a claim were undone, by what is planned afterwards and by what was seen of the calls. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pydra.backends.child.conformance_main import Observation
from pydra.backends.wire import Method
from pydra.plan import ClaimStep
from pydra.testing.compare_answers import find_differences


def find_not_restored(before: Sequence[ClaimStep], again: Sequence[ClaimStep]) -> list[str]:
    """Return which steps of a claim find another state than before, when it is planned again after it was undone.

    A step that is not planned again says nothing: its change may be one that stays.
    """
    known = {one.key: one.step for one in before}
    return [
        f"undo has not restored what step {one.label} found: {difference}, when the claim was planned again"
        for one in again
        for difference in find_differences(known.get(one.key, one.step), one.step)
    ]


def find_undone_by_nothing(steps: Sequence[ClaimStep], observed: Sequence[Observation]) -> list[str]:
    """Return which steps, carried out and undone last, were changes, and undone without any that Python shows."""
    applied, undone = ([one for one in observed if one.method is what] for what in (Method.APPLY, Method.UNDO))
    pairs = zip(reversed(steps), reversed(applied), undone[len(undone) - len(steps) :], strict=False)
    return [
        f"undo of step {step.label} changes nothing that Python shows; apply did: {', '.join(did.changes)}"
        for step, did, undid in pairs
        if did.changes and not undid.changes
    ]
