"""The devices of one GPU: the whole and its partitions, and the counter set they draw from. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydra import AttributeValue, CounterConsumption, CounterSet, Device
from pydra_nvidia.devices import counter_set_name, gpu_name, mig_name
from pydra_nvidia.hardware_types import Gpu, Placement, Profile
from pydra_nvidia.health.assessments import WELL, Assessment, Diagnosis, join_assessments
from pydra_nvidia.inventory.attributes import describe_gpu, describe_partition
from pydra_nvidia.inventory.capacities import build_capacities, memory_figure, profile_figures, share_capacities
from pydra_nvidia.inventory.offering import Adopted, Offering
from pydra_nvidia.inventory.profiles import Offer, build_table
from pydra_nvidia.settings import Shares


def build_counter_sets(gpu: Gpu, offering: Offering) -> tuple[CounterSet, ...]:
    """The GPU's counter set, if something draws from it."""
    return (CounterSet(name=counter_set_name(gpu.minor), counters=offering.counters),) if offering.counters else ()


def draw_all(gpu: Gpu, offering: Offering) -> tuple[CounterConsumption, ...]:
    """What takes the GPU from everything else: all of every counter."""
    if not offering.counters:
        return ()
    return (CounterConsumption(counter_set=counter_set_name(gpu.minor), counters=offering.counters),)


def build_devices(
    gpu: Gpu,
    offering: Offering,
    *,
    hardware: Mapping[str, AttributeValue],
    links: Mapping[str, AttributeValue],
    shares: Shares | int,
    diagnosis: Diagnosis,
) -> Iterator[Device]:
    """The whole GPU, then partitions, small ones first; `hardware` are the attributes they have in common."""
    if offering.whole:
        yield _build_whole(gpu, offering, {**describe_gpu(gpu, hardware), **links}, shares, diagnosis)
    devices = [
        *((_size(one.profile), _build_offer(gpu, one, hardware, diagnosis)) for one in offering.offers),
        *((_size(one.profile), _build_adopted(gpu, one, hardware, shares, diagnosis)) for one in offering.adopted),
    ]
    yield from (device for _, device in sorted(devices, key=lambda pair: pair[0]))


def _build_whole(
    gpu: Gpu,
    offering: Offering,
    attributes: Mapping[str, AttributeValue],
    shares: Shares | int,
    diagnosis: Diagnosis,
) -> Device:
    figures = memory_figure(gpu.memory)
    plain = build_table(gpu.mig.profiles).capacities if offering.profiled and gpu.mig else build_capacities(figures)
    shared = None if offering.counters else share_capacities(figures, shares)
    assessment = _assess(gpu, None, diagnosis)
    return Device(
        name=gpu_name(gpu.minor),
        attributes=attributes,
        capacity=plain if shared is None else shared,
        consumes_counters=draw_all(gpu, offering),
        allow_multiple_allocations=shared is not None,
        health=assessment.health,
        taints=assessment.taints,
    )


def _build_offer(gpu: Gpu, offer: Offer, hardware: Mapping[str, AttributeValue], diagnosis: Diagnosis) -> Device:
    name = mig_name(gpu.minor, offer.profile.name, offer.profile.id, offer.placement.start)
    assessment = join_assessments(diagnosis.devices.get(name, WELL), _assess(gpu, offer.placement, diagnosis))
    return Device(
        name=name,
        attributes=describe_partition(gpu, offer.profile.name, hardware),
        capacity=offer.capacities,
        consumes_counters=(CounterConsumption(counter_set=counter_set_name(gpu.minor), counters=offer.draws),),
        health=assessment.health,
        taints=assessment.taints,
    )


def _build_adopted(
    gpu: Gpu,
    adopted: Adopted,
    hardware: Mapping[str, AttributeValue],
    shares: Shares | int,
    diagnosis: Diagnosis,
) -> Device:
    profile, placement = adopted.profile, adopted.instance.placement
    slices = range(placement.start, placement.start + placement.size)
    figures = profile_figures(profile) | {f"memorySlice{number}": 1 for number in slices}
    shared = share_capacities(figures, shares)
    name = mig_name(gpu.minor, profile.name, profile.id, placement.start)
    assessment = join_assessments(diagnosis.devices.get(name, WELL), _assess(gpu, placement, diagnosis))
    return Device(
        name=name,
        # A selector may read the UUID of what was removed: without the attribute, that would be an error.
        attributes={"uuid": "", **describe_partition(gpu, profile.name, hardware, uuid=adopted.uuid)},
        capacity=build_capacities(figures) if shared is None else shared,
        allow_multiple_allocations=shared is not None,
        health=assessment.health,
        taints=assessment.taints,
    )


def _assess(gpu: Gpu, placement: Placement | None, diagnosis: Diagnosis) -> Assessment:
    """An assessment on the GPU is one on its partitions, and one on a place is one on all that has a part of it.

    What was wrong with memory slices is wrong with them in whatever shape they are offered next.
    """
    parts = (
        assessment
        for (uuid, place), assessment in sorted(diagnosis.partitions.items(), key=lambda one: one[0])
        if uuid == gpu.uuid and (placement is None or placement.overlaps(place))
    )
    return join_assessments(diagnosis.gpus.get(gpu.uuid, WELL), *parts)


def _size(profile: Profile) -> tuple[int, int]:
    return profile.slices, profile.memory_mib
