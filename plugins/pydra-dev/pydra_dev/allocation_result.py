"""What was picked for a claim, written as `status.allocation`. Pure.

Source: Kubernetes 1.36 API reference, AllocationResult; the structured allocator's result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import msgspec
from msgspec.structs import replace

from pydra_dev import schema
from pydra_dev.pools import Candidate
from pydra_dev.quantity import BINARY, format_quantity
from pydra_dev.status import JsonObject


class Pick(msgspec.Struct, frozen=True, kw_only=True):
    """One device for one request (`req` or `req/sub`); `share` is what it takes of each capacity."""

    claim: int
    request: str
    wanted: schema.Request
    candidate: Candidate
    share: Mapping[str, Fraction]

    @property
    def admin(self) -> bool:
        """Admin access takes nothing from anybody."""
        return bool(self.wanted.admin_access)


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """A claim and everything picked for it, in the order of its requests."""

    spec: schema.ClaimSpec
    picks: tuple[Pick, ...]


def build_allocation(
    chosen: Chosen, *, classes: Mapping[str, schema.ClassSpec], node: JsonObject, build_uid: Callable[[], str]
) -> schema.Allocation:
    """The allocation of one claim: results, configuration and the nodes it is for."""
    return schema.Allocation(
        devices=schema.Results(
            results=tuple(_build_result(pick, build_uid) for pick in chosen.picks),
            config=tuple(_build_config(chosen, classes)),
        ),
        node_selector=_build_node_selector(chosen.picks, node["metadata"]["name"]),
    )


def _build_result(pick: Pick, build_uid: Callable[[], str]) -> schema.Result:
    candidate, device = pick.candidate, pick.candidate.device
    result = schema.Result(
        request=pick.request,
        driver=candidate.driver,
        pool=candidate.pool,
        device=device.name,
        admin_access=pick.wanted.admin_access,
        tolerations=pick.wanted.tolerations,
        binding_conditions=device.binding_conditions,
        binding_failure_conditions=device.binding_failure_conditions,
    )
    if not device.allow_multiple_allocations or pick.admin:
        return result
    consumed = {
        name: schema.Quantity(format_quantity(amount, BINARY if amount >= 1024 else "DecimalSI"))
        for name, amount in pick.share.items()
    }
    return replace(result, share_id=build_uid(), consumed_capacity=consumed)


def _build_config(chosen: Chosen, classes: Mapping[str, schema.ClassSpec]) -> list[schema.ClaimConfig]:
    """Each class's configuration once, for all its requests; then the claim's, for what was chosen."""
    requests: dict[str, list[str]] = {}
    for pick in chosen.picks:
        named = requests.setdefault(pick.wanted.device_class_name, [])
        if pick.request not in named:
            named.append(pick.request)
    configs = [
        schema.ClaimConfig(source="FromClass", requests=tuple(names), opaque=config.opaque)
        for class_name, names in requests.items()
        for config in classes[class_name].config
    ]
    picked = {pick.request for pick in chosen.picks}
    for config in chosen.spec.devices.config:
        if not config.requests:
            configs.append(replace(config, source="FromClaim"))
            continue
        kept = _keep_picked(config.requests, picked)
        if kept:
            configs.append(replace(config, source="FromClaim", requests=kept))
    return configs


def _keep_picked(names: Sequence[str], picked: set[str]) -> tuple[str, ...]:
    bases = {request.partition("/")[0] for request in picked}
    return tuple(name for name in names if name in picked or name in bases)


def _build_node_selector(picks: Sequence[Pick], node: str) -> JsonObject | None:
    if any(pick.candidate.local for pick in picks):
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        return {"nodeSelectorTerms": [{"matchFields": [field]}]}
    merged: dict[str, list[JsonObject]] = {}
    for pick in picks:
        for term in (pick.candidate.node_selector or {}).get("nodeSelectorTerms") or ():
            for part, requirements in term.items():
                known = merged.setdefault(part, [])
                known += [one for one in requirements if one not in known]
    return {"nodeSelectorTerms": [merged]} if merged else None
