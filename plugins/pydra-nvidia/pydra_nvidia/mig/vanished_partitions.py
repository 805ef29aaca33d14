"""Which partitions that claims have are gone from the hardware, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pydra_nvidia.claim_records import Entry
from pydra_nvidia.device_names import MigName, parse_name
from pydra_nvidia.hardware_types import Gpu, Placement, Reading
from pydra_nvidia.steps import CreateMig


def find_owned(entries: Iterable[Entry], reading: Reading) -> frozenset[tuple[str, Placement]]:
    """The places whose partitions were made here, by their GPU's UUID: not where one of another profile is by now."""
    gpus = {gpu.uuid: gpu for gpu in reading.gpus}
    return frozenset(
        (step.gpu, step.placement)
        for entry in entries
        for step in entry.steps
        if isinstance(step, CreateMig) and not _is_replaced(step, gpus.get(step.gpu))
    )


class Vanished(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that a prepared claim has and that exists no more; `claim` is `namespace/name`."""

    device: str
    claim: str
    gpu: str
    profile: int
    placement: Placement


def find_vanished(entries: Iterable[Entry], reading: Reading) -> tuple[Vanished, ...]:
    """Partitions of completed claims that somebody else removed; of a GPU that is not read nothing is known."""
    gpus = {gpu.pci: gpu for gpu in reading.gpus if _is_read(gpu)}
    found: dict[str, Vanished] = {}
    for entry in entries:
        for hold in entry.holds:
            name, gpu = parse_name(hold.device), gpus.get(hold.hardware)
            if gpu is None or hold.place is None or hold.admin or not isinstance(name, MigName):
                continue
            if (name.profile, hold.place) not in _usable_places(gpu):
                found[hold.device] = Vanished(
                    device=hold.device,
                    claim=entry.name,
                    gpu=gpu.uuid,
                    profile=name.profile,
                    placement=hold.place,
                )
    return tuple(found[device] for device in sorted(found))


def explain_vanished(vanished: Iterable[Vanished]) -> dict[str, str]:
    """The same in words, by device."""
    return {
        one.device: f"claim {one.claim} has this partition, and somebody removed it or reset the GPU; delete the"
        " claim's pods"
        for one in vanished
    }


def _is_read(gpu: Gpu) -> bool:
    return not (gpu.unread or gpu.condition.silence or (gpu.mig is not None and gpu.mig.unseen))


def _usable_places(gpu: Gpu) -> frozenset[tuple[int, Placement]]:
    instances = gpu.mig.instances if gpu.mig is not None else ()
    return frozenset((one.profile, one.placement) for one in instances if one.compute)


def _is_replaced(step: CreateMig, gpu: Gpu | None) -> bool:
    instances = gpu.mig.instances if gpu is not None and gpu.mig is not None else ()
    return any(one.placement == step.placement and one.profile != step.profile for one in instances)
