"""From what a claim's devices are configured to be to the steps that share them so. Pure.

The whole GPUs of one config have one MPS daemon between them; each partition has one of its own, since CUDA sees one
partition at most. A claim has one daemon at most: a container may get all of the claim, and is the client of one.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, sharing.go; NVIDIA's guide to MPS.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from pydra import InvalidConfig
from pydra_nvidia.devices import Partition, Target, WholeGpu
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.checks import check_daemons, find_problems, resolve_limits
from pydra_nvidia.sharing.groups import Group, find_groups, is_created
from pydra_nvidia.steps import SetTimeSlice, StartMps, Step

INTERVALS = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}


def plan_sharing(uid: str, targets: Sequence[Target], *, settings: Settings) -> tuple[Step, ...]:
    """Time slices, then the MPS daemon. Raises InvalidConfig with all problems of all devices."""
    groups = find_groups(targets, settings)
    problems: list[str] = []
    slices: dict[str, SetTimeSlice] = {}
    daemons: list[StartMps] = []
    for group in groups:
        problems += find_problems(group, settings)
        if group.sharing.strategy == "TimeSlicing":
            slices |= {step.gpu: step for step in _set_time_slices(group)}
            continue
        limits, wrong = resolve_limits(group, settings)
        problems += wrong
        daemons += _start_daemons(uid, group, limits, settings)
    problems += check_daemons(groups)
    if problems:
        raise InvalidConfig(problems)
    return (*slices.values(), *daemons)


def _set_time_slices(group: Group) -> Iterator[SetTimeSlice]:
    """Of whole GPUs only: the processes in a partition take turns by the default."""
    config = getattr(group.sharing, "time_slicing_config", None)
    interval = INTERVALS[(config.interval if config else None) or "Default"]
    for one in group.members:
        if isinstance(one, WholeGpu):
            yield SetTimeSlice(gpu=one.gpu.uuid, interval=interval)


def _start_daemons(uid: str, group: Group, limits: Mapping[str, int], settings: Settings) -> Iterator[StartMps]:
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
            created = is_created(one, settings)
            place = f"{one.gpu.uuid}/{one.placement.start}+{one.placement.size}"
            yield StartMps(
                id=_name(uid, place if created else one.uuid),
                devices=() if created else (one.uuid,),
                partition=(one.gpu.uuid, one.placement) if created else None,
                thread_percentage=percentage,
                default_pinned_mib=limits.get(one.allocated.device),
                multi_user=multi_user,
            )


def _name(uid: str, devices: str) -> str:
    """The daemon's id, as the vendor makes it: the claim, and five digits of the digest of its devices."""
    return f"{uid}-{hashlib.sha256(devices.encode()).hexdigest()[:5]}"
