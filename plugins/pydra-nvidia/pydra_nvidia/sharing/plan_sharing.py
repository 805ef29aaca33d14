"""From what a claim's devices are configured to be to the steps that share them so, and what forbids it. Pure.

The devices that one config is for are shared together. A config that reaches a device of another kind, as one without
requests does, does nothing there: whole GPUs have a GpuConfig, partitions a MigDeviceConfig. pydra decodes a config
once however many devices it is for, so one config is one object; equal configs that were written twice stay two.

The whole GPUs of one config have one MPS daemon between them; each partition has one of its own, since CUDA sees one
partition at most. A claim has one daemon at most: a container may get all of the claim, and is the client of one.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, device_state.go and sharing.go; NVIDIA's guide to MPS.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from pydra import InvalidConfig
from pydra_nvidia.claim_config import (
    GpuConfig,
    GpuSharing,
    MigDeviceConfig,
    MigDeviceSharing,
    MpsConfig,
    parse_index,
    parse_limit,
)
from pydra_nvidia.claim_targets import Partition, Target, WholeGpu
from pydra_nvidia.hardware_types import Gpu
from pydra_nvidia.settings import Settings, Shares
from pydra_nvidia.steps import SetTimeSlice, StartMps, Step

_Shared = WholeGpu | Partition
INTERVALS = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
VOLTA = (7, 0)
GP100 = (6, 0)


def plan_sharing(uid: str, targets: Sequence[Target], *, settings: Settings) -> tuple[Step, ...]:
    """Time slices, then the MPS daemon. Raises InvalidConfig with all problems of all devices."""
    groups = _find_groups(targets, settings)
    problems: list[str] = []
    slices: dict[str, SetTimeSlice] = {}
    daemons: list[StartMps] = []
    for group in groups:
        if group.sharing.strategy == "TimeSlicing":
            problems += _check_time_slices(group)
            slices |= {step.gpu: step for step in _set_time_slices(group)}
            continue
        problems += _check_mps(group, settings)
        limits, wrong = _resolve_limits(group, settings)
        problems += wrong
        daemons += _start_daemons(uid, group, limits, settings)
    problems += _check_daemons(groups)
    if problems:
        raise InvalidConfig(problems)
    return (*slices.values(), *daemons)


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one config, in the order in which its limits count them."""

    sharing: GpuSharing | MigDeviceSharing
    members: tuple[_Shared, ...]

    @property
    def mps(self) -> MpsConfig:
        """The settings of MPS; the defaults where none were given."""
        return self.sharing.mps_config or MpsConfig()

    @property
    def where(self) -> str:
        """The start of the path in an error: whose config, and where in it."""
        kind = "MigDeviceConfig" if isinstance(self.sharing, MigDeviceSharing) else "GpuConfig"
        names = ", ".join(one.allocated.device for one in self.members)
        return f"{kind} of {names}: sharing"


def _find_groups(targets: Sequence[Target], settings: Settings) -> tuple[_Group, ...]:
    """The groups that are configured to be shared. Devices with admin access only look, and are in none."""
    found: dict[int, tuple[GpuSharing | MigDeviceSharing, dict[str, _Shared]]] = {}
    for target in targets:
        config = _config_of(target)
        if config is not None and config.sharing is not None and isinstance(target, _Shared):
            _, members = found.setdefault(id(config), (config.sharing, {}))
            members.setdefault(_order(target, settings), target)
    return tuple(
        _Group(sharing=sharing, members=tuple(members[key] for key in sorted(members)))
        for sharing, members in found.values()
    )


def _find_uuid(target: _Shared, settings: Settings) -> str:
    """Empty for a partition that is made for its claim: its UUID is not known beforehand."""
    if isinstance(target, WholeGpu):
        return target.gpu.uuid
    return "" if settings.dynamic_mig else target.uuid


def _config_of(target: Target) -> GpuConfig | MigDeviceConfig | None:
    if target.allocated.admin_access:
        return None
    match target:
        case WholeGpu():
            return target.allocated.config(GpuConfig)
        case Partition():
            return target.allocated.config(MigDeviceConfig)
    return None


def _order(target: _Shared, settings: Settings) -> str:
    """By UUID, as the vendor counts; partitions that do not exist yet by their GPU and place."""
    uuid = _find_uuid(target, settings)
    if uuid or isinstance(target, WholeGpu):
        return uuid
    return f"{target.gpu.uuid}/{target.placement.start:03}+{target.placement.size}"


def _resolve_limits(group: _Group, settings: Settings) -> tuple[Mapping[str, int], tuple[str, ...]]:
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


def _check_daemons(groups: Iterable[_Group]) -> Iterator[str]:
    """More than one MPS daemon for a claim, reported where the second comes in."""
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
        before = f", beside that for {needed}"


def _check_time_slices(group: _Group) -> Iterator[str]:
    for one in group.members:
        if not _has_time_slices(one.gpu):
            yield (
                f"{group.where}.strategy: {one.allocated.device} is a {_describe(one.gpu)}, whose time slice cannot be"
                f' set; allowed: "MPS", or no sharing'
            )


def _check_mps(group: _Group, settings: Settings) -> Iterator[str]:
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


def _select(key: str, group: _Group, settings: Settings) -> tuple[str, str]:
    """The device that a key means, or what is wrong with the key."""
    index = parse_index(key)
    if index is not None:
        if index < len(group.members):
            return group.members[index].allocated.device, ""
        return "", f"found index {index}, allowed: {_count(len(group.members))}"
    uuids = {uuid: one.allocated.device for one in group.members if (uuid := _find_uuid(one, settings))}
    if key in uuids:
        return uuids[key], ""
    known = f", or {', '.join(uuids)}" if uuids else "; a partition that is made for a claim has no UUID before"
    return "", f"no such device has this config, allowed: index {_count(len(group.members))}{known}"


def _count(number: int) -> str:
    return "0" if number == 1 else f"0 to {number - 1}"


def _set_time_slices(group: _Group) -> Iterator[SetTimeSlice]:
    """Of whole GPUs only: the processes in a partition take turns by the default."""
    if isinstance(group.sharing, GpuSharing):
        interval = INTERVALS[group.sharing.interval]
        yield from (SetTimeSlice(gpu=one.gpu.uuid, interval=interval) for one in group.members)


def _start_daemons(uid: str, group: _Group, limits: Mapping[str, int], settings: Settings) -> Iterator[StartMps]:
    percentage, multi_user = group.mps.default_active_thread_percentage, bool(group.mps.multi_user)
    gpus = {one.gpu.uuid: one.allocated.device for one in group.members if isinstance(one, WholeGpu)}
    if gpus:
        yield StartMps(
            id=_name(uid, ",".join(gpus)),
            devices=tuple(gpus),
            exclusive=tuple(gpus),
            thread_percentage=percentage,
            pinned_mib={gpu: limits[device] for gpu, device in gpus.items() if device in limits},
            multi_user=multi_user,
        )
    for one in group.members:
        if isinstance(one, Partition):
            uuid, place = _find_uuid(one, settings), f"{one.gpu.uuid}/{one.placement.start}+{one.placement.size}"
            yield StartMps(
                id=_name(uid, uuid or place),
                devices=(uuid,) if uuid else (),
                partition=None if uuid else (one.gpu.uuid, one.placement),
                thread_percentage=percentage,
                default_pinned_mib=limits.get(one.allocated.device),
                multi_user=multi_user,
            )


def _name(uid: str, devices: str) -> str:
    """The daemon's id, as the vendor makes it: the claim, and five digits of the digest of its devices."""
    return f"{uid}-{hashlib.sha256(devices.encode()).hexdigest()[:5]}"
