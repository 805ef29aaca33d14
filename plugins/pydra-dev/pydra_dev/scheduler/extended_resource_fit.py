"""Extended resources (`limits: {example.com/gpu: 1}`) that a pod asks for, and why a node cannot give them. Pure.

kube-scheduler makes a claim for those of a DeviceClass (the feature gate DRAExtendedResource); the embedded scheduler
does not, and leaves such a pod Pending: a pod that runs without its devices would look like one that has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from pydra.message_text import suggest
from pydra_dev.api import schema
from pydra_dev.api.errors import JsonObject
from pydra_dev.api.quantity import parse_quantity
from pydra_dev.scheduler.node_resources import add_amounts, count_containers

IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""Before the name of a DeviceClass: the extended resource that every class has."""


def _read_extended(given: Mapping[str, object]) -> Mapping[str, Fraction]:
    amounts = {name: _read_amount(amount) for name, amount in given.items() if _is_extended(name)}
    return {name: amount for name, amount in amounts.items() if amount}


def _read_amount(amount: object) -> Fraction:
    try:
        return parse_quantity(str(amount))
    except ValueError:
        return Fraction(1)  # something is asked for


def _is_extended(name: str) -> bool:
    domain, slash, _ = name.partition("/")
    return name.startswith(IMPLICIT) or (bool(slash) and not domain.endswith("kubernetes.io"))


def explain_shortage(
    pod: JsonObject, *, node: JsonObject, others: Iterable[JsonObject], classes: Mapping[str, schema.ClassSpec]
) -> str:
    """Why the node cannot give the pod its extended resources; empty if it can. `others` are the pods on it."""
    wanted = count_containers(pod["spec"], _read_extended)
    used = add_amounts(*(count_containers(one["spec"], _read_extended) for one in others)) if wanted else {}
    allocatable = node.get("status", {}).get("allocatable") or {}
    names = {one.extended_resource_name or "": name for name, one in classes.items()}
    names |= {f"{IMPLICIT}{name}": name for name in classes}
    for name, amount in sorted(wanted.items()):
        has = _read_amount(allocatable.get(name, 0))
        free = has - used.get(name, Fraction(0))
        if amount <= free:
            continue
        if has:
            return f"Insufficient {name}: wants {amount}, {free} of the node's {has} are free"
        if name in names:
            return (
                f"Insufficient {name}: it stands for DeviceClass {names[name]}, and this scheduler makes no claims for "
                "extended resources; request the class in a ResourceClaim or ResourceClaimTemplate instead"
            )
        known = sorted({*names, *allocatable} - {""})
        return f"Insufficient {name}: neither the node nor a DeviceClass has this resource{suggest(name, known)}"
    return ""
