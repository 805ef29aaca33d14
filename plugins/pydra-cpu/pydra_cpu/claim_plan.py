"""Plans which CPUs a claim gets, from what all claims that the node holds leave."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import msgspec

from pydra import AllocatedDevice, Claim, ClaimError, HeldClaim, UnknownDevice, parse_quantity
from pydra_cpu.claim_config import CpuConfig, find_config
from pydra_cpu.cpu_list import format_cpu_list, parse_cpu_list
from pydra_cpu.cpu_selection import first_of_cores, keep_whole_cores, select_cpus, select_evenly
from pydra_cpu.devices import CAPACITY, list_devices
from pydra_cpu.hardware_types import Cpu, Topology, by_cache, by_node
from pydra_cpu.settings import Settings


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim has of a device; lists in the kernel's format."""

    taken: str
    """The CPUs that nobody else gets."""
    cpus: str
    """Those of them that containers get."""
    memory: str = ""
    """The NUMA nodes that memory comes from; all if empty."""

    @property
    def count(self) -> int:
        """How many CPUs containers get."""
        return len(parse_cpu_list(self.cpus))


Shares: TypeAlias = tuple[Share | None, ...]
"""Of the devices of a claim, in their order; None for a device with admin access, of which a claim gets nothing."""


def plan_claim(
    claim: Claim,
    held: Sequence[HeldClaim],
    topology: Topology,
    settings: Settings,
    occupied: Mapping[int, str] = {},
) -> Shares:
    """Return the CPUs for each device of the claim; `occupied` are those that somebody else has, and who.

    Raises:
        ClaimError: the devices do not have so many CPUs, or none that the configuration asks for.
        UnknownDevice: the node does not have a device of that name any more.
    """
    devices = list_devices(topology, settings)
    taken = {**occupied, **_list_taken(held)}
    shares: list[Share | None] = []
    for device in claim.devices:
        cpus = devices.get(device.device)
        if device.admin_access:
            shares.append(None)
            continue
        if cpus is None:
            raise UnknownDevice(f"device {device.device} has no CPU that is online; delete the pod to get another")
        share = _plan_device(device, cpus, taken, topology)
        shares.append(share)
        taken |= dict.fromkeys(parse_cpu_list(share.taken), f"claim {claim}")
    return tuple(shares)


def read_shares(plan: object) -> Shares:
    """Return the shares of a plan; none of one that is not there. Raises msgspec.ValidationError for another's."""
    return msgspec.convert(plan or (), Shares)


def list_taken(held: Sequence[HeldClaim]) -> frozenset[int]:
    """Return the CPUs that claims have, without those whose record cannot be read."""
    return frozenset(_list_taken([one for one in held if one.plan is not None]))


def _list_taken(held: Sequence[HeldClaim]) -> dict[int, str]:
    """The CPUs that claims have, with the claim. Raises ClaimError for one of which that cannot be known."""
    taken: dict[int, str] = {}
    for one in held:
        name = f"claim {one.claim}"
        if one.plan is None:
            raise ClaimError(
                f"the CPUs of {name} are not known, since its record cannot be read; delete the pods of that claim"
            )
        for share in read_shares(one.plan):
            if share is not None:
                taken |= dict.fromkeys(parse_cpu_list(share.taken), name)
    return taken


def _plan_device(device: AllocatedDevice, cpus: tuple[Cpu, ...], taken: Mapping[int, str], topology: Topology) -> Share:
    config = find_config(device)
    count = _count(device, cpus)
    free = [cpu for cpu in cpus if cpu.id not in taken]
    if config.cpuset is not None:
        chosen = _find_exactly(parse_cpu_list(config.cpuset), count, cpus, taken)
    else:
        chosen = _choose(config, count, free, cpus, topology)
    if len(chosen) < count:
        raise ClaimError(
            f"{device.device} cannot give CPUs{_describe(config)}: asked for {count}, free are {len(free)} "
            f"({format_cpu_list(cpu.id for cpu in free) or 'none'}), of which {len(chosen)} can be used"
        )
    given = first_of_cores(chosen) if config.cores == "single" else chosen
    return Share(
        taken=format_cpu_list(cpu.id for cpu in chosen),
        cpus=format_cpu_list(cpu.id for cpu in given),
        memory="" if config.memory == "any" else format_cpu_list(topology.find_memory_nodes(given)),
    )


def _choose(
    config: CpuConfig, count: int, free: Sequence[Cpu], cpus: Sequence[Cpu], topology: Topology
) -> Sequence[Cpu]:
    whole = config.cores != "any"
    if whole:
        free = keep_whole_cores(free, topology.cpus)
    if config.spread == "none":
        chosen = select_cpus(free, count)
    elif config.spread == "cache":
        chosen = select_evenly(free, count, by_cache, {by_cache(cpu) for cpu in cpus})
    else:
        chosen = select_evenly(free, count, by_node, {by_node(cpu) for cpu in cpus})
    if whole and len(keep_whole_cores(chosen, topology.cpus)) < len(chosen):
        each = "" if config.spread == "none" else f" for each {config.spread}"
        raise ClaimError(f"CPUs{_describe(config)}: found {count}, allowed: a multiple of the CPUs of a core{each}")
    return chosen


def _find_exactly(wanted: Collection[int], count: int, cpus: Sequence[Cpu], taken: Mapping[int, str]) -> Sequence[Cpu]:
    if len(wanted) != count:
        raise ClaimError(f"cpuset: CPUs: found {len(wanted)}, the claim asks for {count}; both must be the same")
    own = {cpu.id: cpu for cpu in cpus}
    if missing := sorted(set(wanted) - own.keys()):
        raise ClaimError(f"cpuset: CPU {format_cpu_list(missing)} is reserved, off-line or not of this device")
    if used := sorted({taken[cpu] for cpu in wanted if cpu in taken}):
        raise ClaimError(f"cpuset: {', '.join(used)} has CPU {format_cpu_list(set(wanted) & taken.keys())}")
    return [own[cpu] for cpu in sorted(wanted)]


def _count(device: AllocatedDevice, cpus: Sequence[Cpu]) -> int:
    """The number of CPUs that the claim asks for; a device without a capacity is one CPU."""
    if device.share_id is None and not device.consumed_capacity:
        return len(cpus)
    text = device.consumed_capacity.get(CAPACITY)
    amount = parse_quantity(text) if text is not None else 0
    if amount <= 0 or amount.denominator != 1:
        raise ClaimError(
            f"the claim asks for {text or 'no'} CPUs of {device.device}; it must be a whole number, from 1"
        )
    return int(amount)


def _describe(config: CpuConfig) -> str:
    chosen = {"cores": config.cores, "spread": config.spread}
    default = CpuConfig()
    found = ", ".join(f"{name}: {value}" for name, value in chosen.items() if value != getattr(default, name))
    return f" with {found}" if found else ""
