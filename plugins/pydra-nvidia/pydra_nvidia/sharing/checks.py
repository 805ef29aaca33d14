"""What forbids the sharing that a config asks for: the node's settings, the hardware, devices that it names. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pydra_nvidia.claim_config import GpuSharing, parse_index, parse_limit
from pydra_nvidia.devices import Partition, WholeGpu
from pydra_nvidia.hardware_types import Gpu
from pydra_nvidia.settings import Settings, Shares
from pydra_nvidia.sharing.groups import Group, is_created

VOLTA = (7, 0)
GP100 = (6, 0)


def find_problems(group: Group, settings: Settings) -> Iterator[str]:
    """Everything that is wrong, each with its path and what is allowed."""
    if group.sharing.strategy == "TimeSlicing":
        yield from _check_time_slices(group)
    else:
        yield from _check_mps(group, settings)


def resolve_limits(group: Group, settings: Settings) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """Each member's memory limit in MiB, by device name, and what is wrong; who has none is left out.

    A device's own limit comes before the default.
    """
    limits: dict[str, int] = {}
    problems: list[str] = []
    config = group.mps
    if config.default_pinned_device_memory_limit is not None:
        default = parse_limit(config.default_pinned_device_memory_limit)
        limits = {one.allocated.device: default for one in group.members}
    by_key: dict[str, str] = {}
    for key, quantity in (config.default_per_device_pinned_memory_limit or {}).items():
        path = f'{group.where}.mpsConfig.defaultPerDevicePinnedMemoryLimit["{key}"]'
        device, problem = _select(key, group, settings)
        if problem:
            problems.append(f"{path}: {problem}")
        elif device in by_key:
            problems.append(f'{path}: {device} has a limit by the key "{by_key[device]}" already, allowed: one of them')
        else:
            by_key[device] = key
            limits[device] = parse_limit(quantity)
    return limits, tuple(problems)


def check_daemons(groups: Iterable[Group]) -> Iterator[str]:
    """More than one MPS daemon for a claim, told where the second comes in."""
    before = ""
    for group in groups:
        if group.sharing.strategy != "MPS":
            continue
        names = [one.allocated.device for one in group.members]
        daemons = [", ".join(names)] if isinstance(group.sharing, GpuSharing) else names
        needed = " and for ".join(daemons)
        if before or len(daemons) > 1:
            yield (
                f'{group.where}.strategy: found "MPS", which needs a daemon of its own for {needed}{before}; a claim'
                " has one MPS daemon at most, since a container may get all of the claim and is the client of one;"
                " allowed: a claim for each of them, or whole GPUs in requests of one config"
            )
        before = before or f", beside that for {needed}"


def _check_time_slices(group: Group) -> Iterator[str]:
    for one in group.members:
        if isinstance(one, WholeGpu) and not _has_time_slices(one.gpu):
            yield (
                f"{group.where}.strategy: {one.allocated.device} is a {_describe(one.gpu)}, whose time slice cannot be"
                f' set; allowed: "MPS", or no sharing'
            )


def _check_mps(group: Group, settings: Settings) -> Iterator[str]:
    if settings.consumable_shares is not Shares.DISABLED or any(one.allocated.share_id for one in group.members):
        yield (
            f'{group.where}.strategy: found "MPS", which is not possible where several claims have shares of one GPU;'
            ' allowed: "TimeSlicing", or an admin who sets PYDRA_NVIDIA_CONSUMABLE_SHARES=disabled'
        )
    if group.mps.multi_user:
        for one in group.members:
            if one.gpu.compute < VOLTA:
                yield (
                    f"{group.where}.mpsConfig.multiUser: {one.allocated.device} is a {_describe(one.gpu)};"
                    " allowed: false, or GPUs of compute capability 7.0 and above"
                )


def _has_time_slices(gpu: Gpu) -> bool:
    """Setting it needs preemption between instructions: GP100, and all from Volta on. (A P4, 6.1, refuses.)"""
    return gpu.compute >= VOLTA or gpu.compute == GP100


def _describe(gpu: Gpu) -> str:
    return f"{gpu.name} of compute capability {gpu.compute[0]}.{gpu.compute[1]}"


def _select(key: str, group: Group, settings: Settings) -> tuple[str, str]:
    """The device that a key means, or what is wrong with the key."""
    index = parse_index(key)
    if index is not None:
        if index < len(group.members):
            return group.members[index].allocated.device, ""
        return "", f"found index {index}, allowed: {_count(len(group.members))}"
    uuids: dict[str, str] = {}
    for one in group.members:
        if isinstance(one, WholeGpu):
            uuids[one.gpu.uuid] = one.allocated.device
        elif isinstance(one, Partition) and not is_created(one, settings):
            uuids[one.uuid] = one.allocated.device
    if key in uuids:
        return uuids[key], ""
    known = f", or {', '.join(uuids)}" if uuids else "; a partition that is made for a claim has no UUID before"
    return "", f"no such device has this config, allowed: index {_count(len(group.members))}{known}"


def _count(number: int) -> str:
    return "0" if number == 1 else f"0 to {number - 1}"
