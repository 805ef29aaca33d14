"""Decides which CPUs each container may use: those of its claims, or the pool of all others.

What a claim has is what the agent has recorded. The variables in a container's environment, which a CDI spec sets,
only say which claims the container uses. Where the runtime reports CDI devices, which only the kubelet gives to
containers, those must say it, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from pydra import Claim, ClaimError, HeldClaim
from pydra_cpu.claim_plan import Share, Shares, list_taken, read_shares
from pydra_cpu.cpu_list import format_cpu_list, parse_cpu_list

PREFIX = "DRA_CPUSET_"
_VARIABLE = re.compile(rf"{PREFIX}(?P<uid>[A-Za-z0-9.-]{{1,128}})(?:_\d{{1,3}})?")


class PinRefused(ClaimError):
    """A container cannot have the CPUs that its environment names, or there are none for it."""

    reason = "CpusetRefused"


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A container, as its runtime has it."""

    id: str
    namespace: str
    """The pod's namespace."""
    pod: str
    name: str
    env: tuple[str, ...] = ()
    """`NAME=VALUE` each."""
    cdi_devices: tuple[str, ...] = ()
    """The names of its CDI devices, if the runtime reports them."""
    cpus: frozenset[int] = frozenset()
    """The CPUs that it may use; all if empty."""
    cgroup: str = ""
    """The path of its cgroup, as the bundle has it; empty if the runtime does not report it."""
    limit: float = 0.0
    """For how many CPUs its quota is enough; 0 without a quota."""

    @property
    def variables(self) -> tuple[str, ...]:
        """The part of its environment that names claims."""
        return list_variables(self.env)

    def with_cpus(self, cpus: frozenset[int]) -> Container:
        """Return the container with other CPUs."""
        return replace(self, cpus=cpus)

    def __str__(self) -> str:
        return f"container {self.name} of pod {self.namespace}/{self.pod}"


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs that a container may use, and its NUMA nodes for memory; those stay as they are if empty."""

    cpus: frozenset[int]
    memory: frozenset[int] = frozenset()


def list_variables(env: Iterable[str]) -> tuple[str, ...]:
    """The entries of an environment that name claims."""
    return tuple(entry for entry in env if entry.startswith(PREFIX))


def build_variable(claim: Claim, shares: Shares, request: str) -> tuple[str, str]:
    """Return name and value of the variable of one of the claim's requests, as Kubernetes' own driver has it.

    A claim with several requests has a variable for each, as containers may use one request only.
    """
    requests = list(dict.fromkeys(device.request for device in claim.devices))
    suffix = f"_{requests.index(request)}" if len(requests) > 1 else ""
    return f"{PREFIX}{claim.uid}{suffix}", format_cpu_list(_join(_group_shares(claim, shares)[request]).cpus)


def find_pins(
    containers: Iterable[Container],
    held: Sequence[HeldClaim],
    offered: frozenset[int],
    *created: Container,
    starting: Collection[str] = (),
) -> dict[str, Pin | PinRefused]:
    """Return, by id, what containers may use, or why a container cannot be created; `created` do not run yet.

    A claim without a container leaves its CPUs in the pool. So the pool grows when the last container of a claim
    ends, which is an event of the runtime; the end of a claim is none. If only such CPUs are left, containers that run
    have them: no other is created, nor one that would take the last of these.

    Containers that are created, or among those that are `starting` (ids), have none of the CPUs of claims: the runtime
    may lose an update of these. A container that needs CPUs which one has all the same is not created.
    """
    running = tuple(containers)
    pins, pool = _pin_claimed((*running, *created), held, offered)
    others = [one for one in running if not one.variables]
    is_asked = bool(starting) or not all(one.variables for one in created)
    unclaimed = pool - list_taken(held) if is_asked else pool
    for one in others:
        cpus = unclaimed or pool if one.id in starting else pool
        pins[one.id] = Pin(cpus=cpus) if cpus else _refuse(one)
    for container in created:
        pin = pins.get(container.id)
        if not container.variables:
            pins[container.id] = Pin(cpus=unclaimed) if unclaimed else _refuse(container)
        elif isinstance(pin, Pin) and (late := _find_starting(pin, others, starting)):
            pins[container.id] = PinRefused(
                f"{container} waits for {late}, which is just starting, also on CPU {format_cpu_list(pin.cpus)}, and "
                "which the runtime can move only then; the kubelet tries again"
            )
        elif others and not pool and find_pool(running, held, offered):
            pins[container.id] = PinRefused(
                f"{container} would leave no CPU to containers without a claim (now {len(others)}, such as "
                f"{others[0]}); delete their pods, or those of another claim"
            )
    return pins


def _find_starting(pin: Pin, others: Iterable[Container], starting: Collection[str]) -> Container | None:
    """The first container that is starting on CPUs of the pin."""
    return next((one for one in others if one.id in starting and (not one.cpus or one.cpus & pin.cpus)), None)


def _refuse(container: Container) -> PinRefused:
    return PinRefused(f"{container} has no CPU to run on: claims have all CPUs of the node")


def find_pool(containers: Iterable[Container], held: Sequence[HeldClaim], offered: frozenset[int]) -> frozenset[int]:
    """Return the CPUs of containers without a claim."""
    return _pin_claimed(tuple(containers), held, offered)[1]


def find_occupied(containers: Iterable[Container], held: Sequence[HeldClaim], taken: frozenset[int]) -> dict[int, str]:
    """Return the CPUs of containers whose variables no claim explains, with the container, such as another driver's.

    Those of CPUs that claims have `taken` are left out.
    """
    containers = tuple(containers)
    elsewhere = [one for one in containers if not one.cpus <= taken and one.variables]
    if not elsewhere:  # as usual, and to look at all takes longer than the rest of a plan
        return {}
    pins, _ = _pin_claimed(containers, held, frozenset())
    return {cpu: str(one) for one in elsewhere if isinstance(pins[one.id], PinRefused) for cpu in one.cpus}


def _pin_claimed(
    containers: Sequence[Container], held: Sequence[HeldClaim], offered: frozenset[int]
) -> tuple[dict[str, Pin | PinRefused], frozenset[int]]:
    """The pins of containers with a claim, and the CPUs that are left to the others."""
    claims = {one.claim.uid: one for one in held}
    pins: dict[str, Pin | PinRefused] = {}
    pool = set(offered)
    are_reported = any(one.cdi_devices for one in containers)
    for container in containers:
        if not container.variables:
            continue
        try:
            shares = [
                share
                for one in container.variables
                for share in _find_shares(container, one, claims, are_reported=are_reported)
            ]
        except PinRefused as error:
            pins[container.id] = error
            pool -= container.cpus
        else:
            pins[container.id] = _join(shares)
            pool -= {cpu for share in shares for cpu in parse_cpu_list(share.taken)}
    return pins, frozenset(pool)


def _find_shares(
    container: Container, variable: str, claims: Mapping[str, HeldClaim], *, are_reported: bool
) -> list[Share]:
    """The shares of the request that a variable names. `are_reported`: CDI devices are, so the claim has one there."""
    found = _VARIABLE.fullmatch(variable.partition("=")[0])
    one = claims.get(found["uid"]) if found is not None else None
    if one is None or one.claim.namespace != container.namespace:
        raise PinRefused(
            f"{container} has the variable {variable[:200]!a}, which is not of a claim that is prepared here; remove "
            "it from the pod or image"
        )
    name = f"claim {one.claim}"
    if are_reported and not any(f"={one.claim.uid}:" in device for device in container.cdi_devices):
        raise PinRefused(
            f"{container} has the variable {variable[:200]!a}, but no CDI device of {name}; name the claim in the "
            "container's resources.claims, or remove the variable from the pod or image"
        )
    if one.plan is None:
        raise PinRefused(f"the CPUs of {name} are not known, since its record cannot be read; delete the pod")
    shares = read_shares(one.plan)
    for request, found_shares in _group_shares(one.claim, shares).items():
        if "=".join(build_variable(one.claim, shares, request)) == variable:
            return found_shares
    raise PinRefused(
        f"{container} has the variable {variable[:200]!a}, which is not what {name} has; remove it from the pod or "
        "image"
    )


def _group_shares(claim: Claim, shares: Shares) -> Mapping[str, list[Share]]:
    """The shares of each request that has some."""
    requests: dict[str, list[Share]] = {}
    for device, share in zip(claim.devices, shares, strict=True):
        if share is not None:
            requests.setdefault(device.request, []).append(share)
    return requests


def _join(shares: Sequence[Share]) -> Pin:
    everywhere = any(not share.memory for share in shares)
    return Pin(
        cpus=frozenset(cpu for share in shares for cpu in parse_cpu_list(share.cpus)),
        memory=frozenset(() if everywhere else (node for share in shares for node in parse_cpu_list(share.memory))),
    )
