"""Decides what a claim holds and what is done for it, before anything is touched. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydra import AllocatedDevice, Claim, ClaimError, DeviceInUse, InvalidConfig, TerminalError, UnknownDevice
from pydra_amd.claim_config import GpuConfig, VfioDeviceConfig
from pydra_amd.held_claims import PlanUnknown
from pydra_amd.offering import Offered, OfferedFunction
from pydra_amd.sharing import ShareRefused, choose_units
from pydra_amd.slicing.passthrough import plan_passthrough
from pydra_amd.steps import Entry, Hold, SetComputeMode, SetMemoryMode
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
    entries: Sequence[Entry],
    unread: Iterable[Claim] = (),
) -> Entry:
    """The claim's entry. `entries` is what the other claims hold, `unread` are those of which that is not known.

    `functions` are the devices for guests, by name, and `host` what the node can do for them.

    Raises:
        UnknownDevice: this node does not have one of the devices.
        DeviceInUse: another claim holds it, whatever the scheduler believed.
        ModeConflict: another claim holds a part of the GPU in another mode, or any GPU where a memory mode is to
            change; or this one asks for two modes of one GPU, or two memory modes.
        PlanUnknown: a claim whose plan cannot be read may hold a part of the GPU.
        ComputeUnitsTaken, ShareRefused: of a device that claims share.
    """
    wanted = [(one, _find_offered(one, {**offered, **functions})) for one in claim.devices]
    _refuse_misplaced(wanted)
    holds = tuple(_plan_hold(one, found, entries) for one, found in wanted)
    unread = tuple(unread)
    _refuse_conflicts(holds, entries)
    _refuse_mixed_shares(holds)
    _refuse_unread(holds, unread, {**offered, **functions})
    mine = [found for one, found in wanted if not one.admin_access and isinstance(found, Offered)]
    memory = _plan_memory(mine, offered, entries, unread)
    begun = [step for entry in entries for step in entry.steps if isinstance(step, SetComputeMode)]
    steps = _plan_compute(mine, begun, changes_memory=bool(memory))
    bound = plan_passthrough(wanted, host, entries)
    return Entry(uid=claim.uid, name=f"{claim.namespace}/{claim.name}", holds=holds, steps=(*memory, *steps, *bound))


def _plan_hold(device: AllocatedDevice, found: Offered | OfferedFunction, entries: Sequence[Entry]) -> Hold:
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
        units=choose_units(device, found.gpu, one, entries) if is_share and one is not None else None,
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


def _refuse_conflicts(holds: Sequence[Hold], entries: Sequence[Entry]) -> None:
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
        for entry in entries:
            for held in entry.holds:
                if held.admin or held.gpu != hold.gpu:
                    continue
                if held.passthrough or hold.passthrough:
                    raise DeviceInUse(hold.device, entry.name)
                if held.mode != hold.mode:
                    raise ModeConflict(
                        f"{hold.device} needs the mode {hold.mode} of GPU {hold.gpu}, and claim {entry.name} has "
                        f"{held.device}, which needs {held.mode}; the mode can change when that claim has ended"
                    )
                if held.index == hold.index and None in (held.units, hold.units):
                    raise DeviceInUse(hold.device, entry.name)


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
                    f"request {device.request} has a {type(config).__name__}, and {device.device} takes a "
                    f"{fitting.__name__}; name the requests in the claim's config that it is for"
                ]
            )


def _refuse_unread(
    holds: Sequence[Hold], unread: Iterable[Claim], offered: Mapping[str, Offered | OfferedFunction]
) -> None:
    mine = {hold.gpu: hold for hold in holds if not hold.admin}
    for address, claim, device in find_unread(unread, offered):
        if address in mine:
            raise PlanUnknown(
                f"{mine[address].device} cannot be prepared: the claim with uid {claim.uid} has {device} of the same "
                "GPU, and its plan cannot be read; delete the pods that use that claim"
            )


def find_unread(
    unread: Iterable[Claim], offered: Mapping[str, Offered | OfferedFunction]
) -> Iterator[tuple[str, Claim, str]]:
    """The addresses of the GPUs that claims have whose plans are not known, as far as their devices' names tell."""
    for claim in unread:
        for one in claim.devices:
            found = offered.get(one.device)
            if found is not None and not one.admin_access:
                address = found.function.address if isinstance(found, OfferedFunction) else found.gpu.address
                yield address, claim, one.device


def _plan_memory(
    wanted: Sequence[Offered], offered: Mapping[str, Offered], entries: Sequence[Entry], unread: Sequence[Claim]
) -> tuple[SetMemoryMode, ...]:
    """The change of the node's memory mode that these devices need, if any; one that was begun is this claim's too.

    A claim with admin access has it as well: it may be the last that ends.
    """
    asked = {one.mode.memory: one for one in wanted if one.mode is not None}
    begun = find_memory_step(entries)
    if begun is not None:
        for memory, one in asked.items():
            if memory != begun.target:
                holder = next(entry.name for entry in entries if begun in entry.steps)
                raise ModeConflict(
                    f"{one.name} needs the memory mode {memory}, and all GPUs of this node are in {begun.target} as "
                    f"long as claims need it, such as {holder}; ask for a device of {begun.target}, or for another node"
                )
        return (begun,)
    changing = [one for one in asked.values() if one.gpu.mode and one.mode and one.mode.memory != one.gpu.mode.memory]
    if not changing:
        return ()
    if len(asked) > 1:
        names = ", ".join(f"{one.name} ({memory})" for memory, one in sorted(asked.items()))
        raise ModeConflict(f"all GPUs of a node have one memory mode, and this claim asks for several: {names}")
    ((target, one),) = asked.items()
    _refuse_reload(one, target, entries, unread)
    modes = {every.gpu.address: every.gpu.mode for every in offered.values() if every.gpu.mode is not None}
    return (SetMemoryMode(before=dict(sorted(modes.items())), target=target),)


def _refuse_reload(one: Offered, target: str, entries: Sequence[Entry], unread: Sequence[Claim]) -> None:
    """Nothing may have any GPU of the node, since all of them lose the driver for a moment."""
    if unread:
        raise PlanUnknown(
            f"{one.name} needs the memory mode {target} of all GPUs, and the plan of the claim with uid "
            f"{unread[0].uid} cannot be read; delete the pods that use that claim"
        )
    if others := sorted({entry.name for entry in entries if entry.holds}):
        raise ModeConflict(
            f"{one.name} needs the memory mode {target}, for which amdgpu is loaded anew for all GPUs of this node, "
            f"and claims have some of them: {', '.join(others)}; it can change when they have ended, or ask for a "
            "device of the present memory mode, or for another node"
        )


def find_memory_step(entries: Iterable[Entry]) -> SetMemoryMode | None:
    """The change of the memory mode that claims need now; they all have the same."""
    return next((step for entry in entries for step in entry.steps if isinstance(step, SetMemoryMode)), None)


def _plan_compute(
    wanted: Sequence[Offered], begun: Sequence[SetComputeMode], *, changes_memory: bool
) -> Iterator[SetComputeMode]:
    """A step for each GPU whose mode is not what it must be; one that another claim began is this claim's too.

    So the mode before is remembered as long as any claim needs the other, whichever of them ends last. Which mode a
    GPU has after a change of the memory mode is the driver's choice, so that there is always a step then.
    """
    known = {step.gpu: step for step in begun}
    for address, one in sorted({one.gpu.address: one for one in wanted}.items()):
        if one.mode is None or one.gpu.mode is None:
            continue
        if (step := known.get(address)) is not None and step.target == one.mode.compute:
            yield step
        elif changes_memory:
            yield SetComputeMode(gpu=address, before=None, target=one.mode.compute)
        elif one.mode != one.gpu.mode:
            yield SetComputeMode(gpu=address, before=one.gpu.mode.compute, target=one.mode.compute)
