"""`matchAttribute` and `distinctAttribute` over the devices picked for one claim. Pure.

Source: the structured allocator's constraints, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from pydra_dev import schema
from pydra_dev.allocation_result import Pick


def satisfies_constraints(constraints: Sequence[schema.Constraint], picks: Sequence[Pick]) -> bool:
    """Whether the picks of one claim keep all its constraints."""
    return all(_holds(constraint, picks) for constraint in constraints)


def covers(requests: Sequence[str], request: str) -> bool:
    """Whether a list of request names (empty: all) includes a request; a request includes its subrequests."""
    return not requests or request in requests or request.partition("/")[0] in requests


def _holds(constraint: schema.Constraint, picks: Sequence[Pick]) -> bool:
    concerned = [pick for pick in picks if covers(constraint.requests, pick.request)]
    name = constraint.match_attribute or constraint.distinct_attribute or ""
    found = [_read_values(pick, name) for pick in concerned]
    if any(values is None for values in found):
        return False
    values = [one for one in found if one is not None]
    if constraint.match_attribute is not None:
        return not values or bool(frozenset.intersection(*values))
    return sum(map(len, values)) == len(frozenset[Hashable]().union(*values))


def _read_values(pick: Pick, name: str) -> frozenset[Hashable] | None:
    """The attribute's values, each with its type; a scalar is a list of one."""
    attributes = pick.candidate.device.attributes
    domain, _, identifier = name.partition("/")
    attribute = attributes.get(name)
    if attribute is None and domain == pick.candidate.driver:
        attribute = attributes.get(identifier)
    if attribute is None:
        return None
    typed = schema.build_fields(attribute)
    return frozenset(
        (type_.rstrip("s"), value)
        for type_, values in typed.items()
        for value in (values if isinstance(values, list) else [values])
    )
