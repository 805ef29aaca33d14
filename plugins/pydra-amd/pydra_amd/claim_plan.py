"""Decides what a claim holds and what is done for it, before anything is touched. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from pydra import (
    AllocatedDevice,
    Claim,
    ClaimError,
    DeviceInUse,
    HeldClaim,
    InvalidConfig,
    Plan,
    TerminalError,
    UnknownDevice,
)
from pydra_amd.claim_config import GpuConfig, VfioDeviceConfig
from pydra_amd.claim_records import Hold, PlanUnknown, build_data, find_begun, list_steps, read_holds
from pydra_amd.devices import Offered, OfferedFunction, name_gpu
from pydra_amd.sharing import ShareRefused, choose_units
from pydra_amd.steps import SetComputePartition, SetMemoryPartition, Step
from pydra_amd.vfio.plan_passthrough import plan_passthrough
from pydra_pci import VfioHost


class ModeConflict(ClaimError):
    """The GPU is in use in another partition mode than the claim needs."""

    reason = "ModeConflict"


def plan_claim(
    claim: Claim,
    offered: Mapping[str, Offered],
    functions: Mapping[str, OfferedFunction] = {},
    *,
    host: VfioHost = VfioHost(),  # noqa: B008 - frozen
    held: Sequence[HeldClaim],
) -> Plan:
    """The claim's steps, and what it holds. `held` are the other claims of the node.

    `functions` are the devices for guests, by name, and `host` what the node can do for them.

    Raises:
        UnknownDevice: this node does not have one of the devices.
        DeviceInUse: another claim has the same hardware under another name.
        ModeConflict: another claim holds a part of the GPU in another mode, or any GPU where a memory mode is to
            change; or this one asks for two modes of one GPU, or two memory modes.
        ComputeUnitsTaken, ShareRefused: of a device that claims share.
    """
    wanted = [(one, _find_offered(one, {**offered, **functions})) for one in claim.devices]
    _refuse_misplaced(wanted)
    holds = tuple(_plan_hold(one, found, held) for one, found in wanted)
    _refuse_own_conflicts(holds)
    _refuse_conflicts(holds, held)
    _refuse_mixed_shares(holds)
    mine = [found for one, found in wanted if not one.admin_access and isinstance(found, Offered)]
    memory = _plan_memory(mine, offered, held)
    steps = _plan_compute(mine, find_begun(held), changes_memory=bool(memory))
    bound = plan_passthrough(wanted, functions.values(), host, held)
    return Plan(steps=(*memory, *steps, *bound), data=build_data(holds))


def _plan_hold(device: AllocatedDevice, found: Offered | OfferedFunction, held: Sequence[HeldClaim]) -> Hold:
    """A device with a share id is shared; one that cannot be any more is held as a whole."""
    if isinstance(found, OfferedFunction):
        admin = device.admin_access
        return Hold(device=found.name, gpu=found.function.address, admin=admin, passthrough=True)
    one = found.partition
    is_share = device.share_id is not None and not device.admin_access
    return Hold(
        device=found.name,
        gpu=found.gpu.address,
        mode=found.mode,
        index=found.index,
        admin=device.admin_access,
        units=choose_units(device, found.gpu, one, held) if is_share and one is not None else None,
    )


def _find_offered(
    device: AllocatedDevice, offered: Mapping[str, Offered | OfferedFunction]
) -> Offered | OfferedFunction:
    """What the device means. Raises UnknownDevice."""
    found = offered.get(device.device)
    if found is None:
        names = ", ".join(sorted(offered)) or "none"
        raise UnknownDevice(f"this node has no device {device.device}; it has {names}")
    return found


def _refuse_own_conflicts(holds: Sequence[Hold]) -> None:
    mine = [hold for hold in holds if not hold.admin]
    for position, hold in enumerate(mine):
        for other in mine[:position]:
            if other.gpu == hold.gpu and other.passthrough != hold.passthrough:
                raise TerminalError(
                    f"devices {other.device} and {hold.device} of this claim are one GPU ({hold.gpu}), which is either "
                    "passed through or used by containers"
                )
            if other.gpu == hold.gpu and other.mode != hold.mode:
                raise ModeConflict(
                    f"devices {other.device} and {hold.device} of this claim are of one GPU ({hold.gpu}) and need "
                    f"different modes of it ({other.mode}, {hold.mode}); ask for partitions of one mode"
                )


def _refuse_conflicts(holds: Sequence[Hold], held: Iterable[HeldClaim]) -> None:
    """Refuse what another claim has under another name: names and counters differ by the settings of the backend.

    Devices and counters are compared by the agent.
    """
    mine = [hold for hold in holds if not hold.admin]
    for other in held:
        name = str(other.claim)
        for theirs in _read_known_holds(other):
            for hold in mine:
                if hold.gpu != theirs.gpu:
                    continue
                if theirs.passthrough or hold.passthrough:
                    raise DeviceInUse(hold.device, name)
                if theirs.mode != hold.mode:
                    raise ModeConflict(
                        f"{hold.device} needs the mode {hold.mode} of GPU {hold.gpu}, and claim {name} has "
                        f"{theirs.device}, which needs {theirs.mode}; the mode can change when that claim has ended"
                    )
                if theirs.index == hold.index and None in (theirs.units, hold.units):
                    raise DeviceInUse(hold.device, name)


def _read_known_holds(one: HeldClaim) -> Sequence[Hold]:
    """Nothing of a claim that has ended, or whose plan cannot be read: the agent holds its devices."""
    if one.left_over:
        return ()
    try:
        return [hold for hold in read_holds(one.claim) if not hold.admin]
    except PlanUnknown:
        return ()


def _refuse_mixed_shares(holds: Sequence[Hold]) -> None:
    """A mask names GPUs as a container counts them, which for several devices depends on which of them it has."""
    for hold in holds:
        if hold.units and len(holds) > 1:
            others = ", ".join(other.device for other in holds if other is not hold)
            raise ShareRefused(
                f"the claim has a share of {hold.device}, and {others}; ask for a share in a claim of its own, which "
                "no container uses beside another GPU"
            )


def _refuse_misplaced(wanted: Iterable[tuple[AllocatedDevice, Offered | OfferedFunction]]) -> None:
    for device, found in wanted:
        fitting = VfioDeviceConfig if isinstance(found, OfferedFunction) else GpuConfig
        for config in device.misplaced(fitting):
            raise InvalidConfig(
                [
                    f"{device.position(config)}: found a {type(config).__name__}, and {device.device} takes a "
                    f"{fitting.__name__}; name the requests in the claim's config that it is for"
                ]
            )


def _plan_memory(
    wanted: Sequence[Offered], offered: Mapping[str, Offered], held: Sequence[HeldClaim]
) -> tuple[SetMemoryPartition, ...]:
    """The change of the node's memory mode that these devices need, if any; one that was begun is this claim's too.

    A claim with admin access has it as well: it may be the last that ends.
    """
    asked = {one.mode.memory: one for one in wanted if one.mode is not None}
    begun = find_memory_step(held)
    if begun is not None:
        for memory, one in asked.items():
            if memory != begun.target:
                holder = next(other.claim for other in held if begun in list_steps(other.claim))
                raise ModeConflict(
                    f"{one.name} needs the memory mode {memory}, and all GPUs of this node are in {begun.target} as "
                    f"long as claims need it, such as {holder}; ask for a device of {begun.target}, or "
                    "for another node"
                )
        return (begun,)
    changing = [one for one in asked.values() if one.gpu.mode and one.mode and one.mode.memory != one.gpu.mode.memory]
    if not changing:
        return ()
    if len(asked) > 1:
        names = ", ".join(f"{one.name} ({memory})" for memory, one in sorted(asked.items()))
        raise ModeConflict(f"all GPUs of a node have one memory mode, and this claim asks for several: {names}")
    ((target, one),) = asked.items()
    _refuse_reload(one, target, held)
    gpus = {every.gpu.address: every.gpu for every in offered.values()}
    modes = {address: gpu.mode for address, gpu in sorted(gpus.items()) if gpu.mode is not None}
    names_held = tuple(sorted(name_gpu(gpus[address]) for address in modes))
    return (SetMemoryPartition(before=modes, target=target, holds=names_held),)


def _refuse_reload(one: Offered, target: str, held: Iterable[HeldClaim]) -> None:
    """Nothing may have any GPU of the node, since all of them lose the driver for a moment."""
    if others := sorted({str(other.claim) for other in held if not other.left_over}):
        raise ModeConflict(
            f"{one.name} needs the memory mode {target}, for which amdgpu is reloaded for all GPUs of this node, "
            f"and claims have some of them: {', '.join(others)}; it can change when they have ended, or ask for a "
            "device of the present memory mode, or for another node"
        )


def find_memory_step(held: Iterable[HeldClaim]) -> SetMemoryPartition | None:
    """The change of the memory mode that claims need now; they all have the same."""
    return next((step for step in find_begun(held).values() if isinstance(step, SetMemoryPartition)), None)


def _plan_compute(
    wanted: Sequence[Offered], begun: Mapping[str, Step], *, changes_memory: bool
) -> Iterator[SetComputePartition]:
    """A step for each GPU whose mode is not what it must be, or is so by the step of another claim.

    That claim may end before this one is recorded, so its state before is copied here already. Which mode a
    GPU has after a change of the memory mode is the driver's choice, so that there is always a step then.
    """
    for address, one in sorted({one.gpu.address: one for one in wanted}.items()):
        if one.mode is None or one.gpu.mode is None:
            continue
        step = SetComputePartition(
            gpu=address,
            before=None if changes_memory else one.gpu.mode.compute,
            target=one.mode.compute,
            holds=tuple(other.name for other in wanted if other.gpu.address == address),
        )
        if isinstance(known := begun.get(step.key), SetComputePartition):
            yield replace(step, before=known.before)
        elif changes_memory or one.mode != one.gpu.mode:
            yield step
