"""The result that the scheduler writes into a claim's `status.allocation`. Pure.

Source: the structured allocator of k8s.io/dynamic-resource-allocation, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec
from msgspec.structs import replace

from pydra_dev.api import schema
from pydra_dev.api.errors import JsonObject
from pydra_dev.apiserver.claim_rules import MAX_SUBREQUESTS
from pydra_dev.scheduler.consumable_capacity import Share
from pydra_dev.scheduler.pools import Candidate


class Pick(msgspec.Struct, frozen=True, kw_only=True):
    """One device for one request (`req` or `req/sub`) of the claim with this index.

    `share` is what it takes of each capacity of a device that can be shared, None for a whole device.
    """

    claim: int
    request: str
    wanted: schema.AnyRequest
    candidate: Candidate
    share: Share | None = None


def build_allocation(
    spec: schema.ClaimSpec,
    picks: Sequence[Pick],
    *,
    classes: Mapping[str, schema.ClassSpec],
    node: JsonObject,
    build_uid: Callable[[], str],
) -> schema.Allocation:
    """The allocation of one claim, from everything that was picked for it, in the order of its requests."""
    return schema.Allocation(
        devices=schema.Results(
            results=tuple(_build_result(pick, build_uid) for pick in picks),
            config=(*_build_class_config(picks, classes), *_build_claim_config(spec, picks)),
        ),
        node_selector=_build_node_selector(picks, node["metadata"]["name"]),
    )


def score_alternatives(spec: schema.ClaimSpec, allocation: schema.Allocation) -> int:
    """How good an allocation is: for each request with alternatives, the more the earlier the one that it got."""
    got = {result.request for result in allocation.devices.results}
    return sum(
        MAX_SUBREQUESTS - index
        for request in spec.devices.requests or ()
        for index, sub in enumerate(request.first_available)
        if f"{request.name}/{sub.name}" in got
    )


def _build_result(pick: Pick, build_uid: Callable[[], str]) -> schema.Result:
    candidate, device = pick.candidate, pick.candidate.device
    result = schema.Result(
        request=pick.request,
        driver=candidate.driver,
        pool=candidate.pool,
        device=device.name,
        admin_access=pick.wanted.admin_access or None,
        tolerations=pick.wanted.tolerations,
        binding_conditions=device.binding_conditions,
        binding_failure_conditions=device.binding_failure_conditions,
    )
    if pick.share is None:
        return result
    consumed = {name: schema.Quantity(amount.text) for name, amount in pick.share.items()}
    return replace(result, share_id=build_uid(), consumed_capacity=consumed)


def _build_class_config(picks: Sequence[Pick], classes: Mapping[str, schema.ClassSpec]) -> Iterator[schema.ClaimConfig]:
    """Each class's configuration once, for all its requests."""
    requests: dict[str, dict[str, None]] = {}
    for pick in picks:
        requests.setdefault(pick.wanted.device_class_name, {})[pick.request] = None
    for class_name, names in requests.items():
        for config in classes[class_name].config:
            yield schema.ClaimConfig(source="FromClass", requests=tuple(names), opaque=config.opaque)


def _build_claim_config(spec: schema.ClaimSpec, picks: Sequence[Pick]) -> Iterator[schema.ClaimConfig]:
    """The claim's configuration for what was chosen; an entry for several of its requests comes once for each."""
    chosen = dict.fromkeys(pick.request for pick in picks)
    for config in spec.devices.config:
        names = [name for name in chosen if name in config.requests or name.partition("/")[0] in config.requests]
        for _ in names if config.requests else [""]:
            yield replace(config, source="FromClaim")


def _build_node_selector(picks: Sequence[Pick], node: str) -> schema.NodeSelector | None:
    if any(pick.candidate.local for pick in picks):
        field = schema.Requirement(key="metadata.name", operator="In", values=(node,))
        return schema.NodeSelector(node_selector_terms=(schema.NodeTerm(match_fields=(field,)),))
    selectors = [pick.candidate.node_selector for pick in picks]
    terms = [term for one in selectors if one is not None for term in one.node_selector_terms]
    merged = schema.NodeTerm(
        match_expressions=_merge(term.match_expressions for term in terms),
        match_fields=_merge(term.match_fields for term in terms),
    )
    return schema.NodeSelector(node_selector_terms=(merged,)) if merged != schema.NodeTerm() else None


def _merge(requirements: Iterable[Sequence[schema.Requirement]]) -> tuple[schema.Requirement, ...]:
    """Each once: two that differ in the order of their values only are the same."""
    distinct: dict[object, schema.Requirement] = {}
    for one in chain.from_iterable(requirements):
        distinct.setdefault((one.key, one.operator, frozenset(one.values)), one)
    return tuple(distinct.values())
