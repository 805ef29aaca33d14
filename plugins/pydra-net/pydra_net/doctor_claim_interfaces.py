"""What `pydra doctor` says of interfaces: those that are not where their claims say, or not as these say. Blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

from pydra import HeldClaim
from pydra_net.composition import open_kernel
from pydra_net.find_interface import find
from pydra_net.interface_diff import plan_changes
from pydra_net.interface_state import find_state_before
from pydra_net.kernel import Kernel, Namespace, NamespaceGone
from pydra_net.network_change_types import DetachPrograms, JoinVrf, Operation, SetEthtool, SetSysctls, SetToken
from pydra_net.settings import Settings
from pydra_net.steps import GiveInterface, InterfaceStep
from pydra_net.steps_of_held_claims import list_interfaces

_UNSEEN = (SetEthtool, SetSysctls, SetToken, DetachPrograms, JoinVrf)
"""What a reading does not tell: it is planned whenever it is wanted."""


def examine_node(settings: Settings, held: Sequence[HeldClaim]) -> Iterator[str]:
    """Yield what is wrong with the interfaces of claims. Raises NamespaceGone."""
    if settings.scenario:
        return
    kernel = open_kernel(settings)
    host = kernel.open(settings.network_namespace)
    try:
        yield from examine_interfaces(kernel, host, held)
    finally:
        host.close()


def examine_interfaces(kernel: Kernel, host: Namespace, held: Sequence[HeldClaim]) -> Iterator[str]:
    """Yield what is wrong, with what to do. Nothing is changed."""
    with ExitStack() as stack:
        places = [host]
        for path in kernel.list_paths():
            with suppress(NamespaceGone):
                opened = kernel.open(path)
                stack.callback(opened.close)
                if not opened.is_same(host):
                    places.append(opened)
        for claim in held:
            for step in list_interfaces((claim,)):
                yield from _examine(kernel, claim, step, places)


def _examine(kernel: Kernel, claim: HeldClaim, step: InterfaceStep, places: Sequence[Namespace]) -> Iterator[str]:
    name = f"{step.name} ({step.device}) of claim {claim.claim}"
    for place in places:
        try:
            reading = kernel.read(place)
        except NamespaceGone:
            continue
        link = find(step, reading)
        if link is None:
            continue
        if place is places[0]:
            if claim.left_over and isinstance(step, GiveInterface):
                lacks = _list_missing(plan_changes(find_state_before(step.before), link, reading))
                yield f"{name}, which has ended, is on the node as {link.name}{lacks}; see the agent's log"
        elif claim.left_over:
            yield f"{name}, which has ended, is still in the network namespace {place.path}; see the agent's log"
        elif lacks := _list_missing(plan_changes(step.target, link, reading)):
            yield f"{name} is in the network namespace {place.path} as {link.name}{lacks}; delete the pod"
        return
    if isinstance(step, GiveInterface):
        yield f"{name} is in no network namespace that can be seen here; the kernel returns it when the pod has ended"


def _list_missing(changes: Sequence[Operation]) -> str:
    """What is not as it should be, as the operations that would change it."""
    seen = [str(one) for one in changes if not isinstance(one, _UNSEEN)]
    return f", and is not as it should be: {', '.join(seen)}" if seen else ""
