"""Which partition of Fabric Manager a claim's GPUs are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydra import ClaimError, TerminalError
from pydra_nvidia.claim_records import Entry
from pydra_nvidia.claim_targets import Passthrough, Target, WholeGpu
from pydra_nvidia.hardware_types import FabricPartition, Gpu, Reading
from pydra_nvidia.nvfm import Group, Member
from pydra_nvidia.nvml.gpus import parse_bus_id
from pydra_nvidia.steps import ActivateFabric


def match_members(
    groups: Sequence[Group], gpus: Iterable[Gpu], modules: Mapping[str, int]
) -> tuple[FabricPartition, ...]:
    """The partitions whose GPUs all are known, with their PCI addresses. `modules` are positions by address.

    Where Fabric Manager identifies GPUs anywhere, only that counts: on A100 its numbers are not NVML's module IDs.
    """
    by_uuid = {gpu.uuid: gpu.pci for gpu in gpus}
    by_module = {module: address for address, module in modules.items()}
    identified = any(member.uuid or member.has_bus_id for group in groups for member in group.members)

    def find(member: Member) -> str | None:
        if not identified:
            return by_module.get(member.module)
        return by_uuid.get(member.uuid) or (parse_bus_id(member.bus_id) if member.has_bus_id else None)

    found = ((group, [find(member) for member in group.members]) for group in groups)
    return tuple(
        FabricPartition(
            id=group.id,
            gpus=tuple(sorted(one for one in gpus if one is not None)),
            members=group.identities,
            active=group.active,
        )
        for group, gpus in found
        if gpus and None not in gpus
    )


def find_group(groups: Iterable[Group], step: ActivateFabric) -> Group | None:
    """The partition of the step's GPUs, whatever its ID is by now."""
    return next((one for one in groups if one.identities == step.members), None)


def plan_fabric(targets: Sequence[Target], reading: Reading) -> tuple[ActivateFabric, ...]:
    """The step that activates the partition of the claim's whole GPUs and functions; none where there are none.

    Raises:
        TerminalError: they are not the members of one partition.
        ClaimError: the partitions are not known.
    """
    wanted = _list_users(targets)
    if reading.fabric is None or not wanted:
        return ()
    if not reading.fabric.partitions:
        raise ClaimError(f"Fabric Manager's partitions are not known: {reading.fabric.problem or 'it reports none'}")
    for partition in reading.fabric.partitions:
        if partition.gpus == wanted:
            return (_build_step(partition, reading),)
    size = len(wanted)
    gpus = f"{size} GPU{'s' if size > 1 else ''}"
    offered = "; ".join(
        f"{one.id} has {', '.join(one.gpus)}" for one in reading.fabric.partitions if len(one.gpus) == size
    )
    raise TerminalError(
        f"the GPUs of the claim ({', '.join(wanted)}) are not a partition of Fabric Manager, which connects"
        f" {f'of {gpus} only these: {offered}' if offered else f'no {gpus}'}; request all GPUs of a partition"
        f" in one claim: a count of {size} with the constraint matchAttribute: gpu.nvidia.com/partition{size}"
    )


def find_activated(targets: Iterable[Target], reading: Reading) -> tuple[ActivateFabric, ...]:
    """The step that NVIDIA's driver has done for a claim: the partition of exactly its GPUs is active."""
    partitions = reading.fabric.partitions if reading.fabric is not None else ()
    users = _list_users(targets)
    return tuple([_build_step(one, reading) for one in partitions if one.active and one.gpus == users])


def _build_step(partition: FabricPartition, reading: Reading) -> ActivateFabric:
    persistent = tuple(sorted(gpu.pci for gpu in reading.gpus if gpu.persistence and gpu.pci in partition.gpus))
    return ActivateFabric(partition=partition.id, gpus=partition.gpus, members=partition.members, persistent=persistent)


def explain_disconnected(entries: Iterable[Entry], reading: Reading) -> dict[str, str]:
    """By device, that the partition of a prepared claim is not active, or is none any more."""
    if reading.fabric is None or reading.fabric.problem:
        return {}
    known = reading.functions.keys() & (reading.modules.keys() | {gpu.pci for gpu in reading.gpus})
    found = {one.gpus: one for one in reading.fabric.partitions}
    return {
        hold.device: f"claim {entry.name} has Fabric Manager's partition {_explain_lost(step, found.get(step.gpus))};"
        " delete the claim's pods"
        for entry in entries
        for step in entry.begun
        if isinstance(step, ActivateFabric)
        and (not found[step.gpus].active if step.gpus in found else known.issuperset(step.gpus))
        for hold in entry.holds
        if hold.hardware in step.gpus and not hold.admin
    }


def _explain_lost(step: ActivateFabric, found: FabricPartition | None) -> str:
    if found is None:
        return f"{step.partition}, but none of exactly {', '.join(step.gpus)} is in its table of partitions any more"
    why = "was restarted without FABRIC_MODE_RESTART=1, or somebody deactivated it"
    return f"{found.id}, which is not active: Fabric Manager {why}"


def _list_users(targets: Iterable[Target]) -> tuple[str, ...]:
    """The PCI addresses of whole GPUs and functions, sorted. Who has admin access only looks."""
    found = {
        one.gpu.pci if isinstance(one, WholeGpu) else one.function.address
        for one in targets
        if isinstance(one, WholeGpu | Passthrough) and not one.allocated.admin_access
    }
    return tuple(sorted(found))
