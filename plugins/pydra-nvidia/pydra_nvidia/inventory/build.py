"""The inventory of a node, from a reading of its hardware: GPUs, their partitions and counter sets, functions. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from pydra import AttributeValue, Capacity, CounterConsumption, CounterSet, Device, Inventory
from pydra_nvidia.device_names import counter_set_name, gpu_name, mig_name, passthrough_candidates, vfio_name
from pydra_nvidia.hardware_types import Gpu, LostGpu, Placement, Profile, Reading, SharedFabric
from pydra_nvidia.health.diagnosis import WELL, Diagnosis, join_assessments
from pydra_nvidia.inventory.attributes import (
    describe_fabric,
    describe_function,
    describe_gpu,
    describe_hardware,
    describe_links,
    describe_partition,
)
from pydra_nvidia.inventory.capacities import (
    build_capacities,
    build_quantity,
    profile_figures,
    round_up,
    share_capacities,
)
from pydra_nvidia.inventory.partitions import Adopted, Offer, Offering, build_table, decide_offering, with_removed
from pydra_nvidia.settings import Settings, Shares
from pydra_pci import Assessment, PciFunction, is_vfio

_DISPLAYS = ("DGX Display", "NVIDIA DGX Display")
"""Cards that only drive a workstation's screen; NVIDIA's driver does not count them either."""


def build_inventory(
    reading: Reading,
    *,
    settings: Settings,
    owned: Collection[tuple[str, Placement]],
    diagnosis: Diagnosis,
    removed: Collection[tuple[str, int, Placement]] = (),
) -> Inventory:
    """GPUs by minor number, each whole first and then its partitions, small ones first; functions for passthrough last.

    `owned` are the places on GPUs, by UUID, that claims made; `removed` are GPU, profile and place of partitions that
    claims have and that somebody removed. A lost GPU stays as it was last seen, so that
    what was allocated stays explicable; its health says that it is lost. One that was never seen is unreadable: a
    device without the attributes of the others would end the allocation of every claim whose selector reads them.
    """
    places: dict[str, set[Placement]] = defaultdict(set)
    for uuid, placement in owned:
        places[uuid].add(placement)
    passthrough = settings.vfio and reading.vfio.iommu
    gpus = _find_gpus(reading)
    links = describe_links(gpus)
    devices: list[Device] = []
    counter_sets: list[CounterSet] = []
    offerings: dict[str, tuple[Gpu, Offering]] = {}
    for gpu in gpus:
        offering = decide_offering(gpu, owned=places[gpu.uuid], dynamic=settings.dynamic_mig, passthrough=passthrough)
        offering = with_removed(offering, gpu, [one[1:] for one in removed if one[0] == gpu.uuid])
        offerings[gpu.pci] = gpu, offering
        counter_sets += build_counter_sets(gpu, offering)
        devices += build_devices(
            gpu,
            offering,
            hardware=describe_hardware(gpu, reading),
            links=links.get(gpu.uuid, {}) | describe_fabric(gpu.pci, reading.fabric),
            shares=settings.consumable_shares,
            diagnosis=diagnosis,
        )
    if passthrough:
        devices += build_functions(reading, offerings, diagnosis)
    return Inventory(
        devices=tuple(devices),
        counter_sets=tuple(counter_sets),
        unreadable=(*_list_unreadable(reading.lost, gpus), *_list_unseen(gpus), *_list_unknown(reading.fabric)),
    )


def _list_unreadable(lost: Iterable[LostGpu], published: Collection[Gpu]) -> Iterator[str]:
    """In words, the GPUs that are there and not among the devices."""
    for one in lost:
        if one.last is None or (one.last not in published and one.last.name not in _DISPLAYS):
            name = f"the GPU at {one.pci}" if one.pci else f"GPU {one.index} (NVML's index)"
            yield f"{name} is not published: {one.message}"


def _find_gpus(reading: Reading) -> list[Gpu]:
    """Those that answer and those that are lost, unless another has a lost one's place by now."""
    present = list(reading.gpus)
    known = {gpu.uuid for gpu in present} | {gpu.minor for gpu in present}
    lost = [one.last for one in reading.lost if one.last is not None and not known & {one.last.uuid, one.last.minor}]
    gpus = [gpu for gpu in (*present, *lost) if gpu.name not in _DISPLAYS]
    return sorted(gpus, key=lambda gpu: gpu.minor)


def _list_unseen(gpus: Iterable[Gpu]) -> Iterator[str]:
    """In words, GPUs of which there may be partitions that are not among the devices."""
    for gpu in gpus:
        if gpu.mig is not None and gpu.mig.enabled and gpu.mig.unseen:
            yield f"not all partitions of {gpu_name(gpu.minor)} can be read: {gpu.mig.unseen}"


def _list_unknown(fabric: SharedFabric | None) -> Iterator[str]:
    if fabric is not None and fabric.problem:
        yield f"Fabric Manager's partitions cannot be read: {fabric.problem}"


def build_functions(
    reading: Reading, offerings: Mapping[str, tuple[Gpu, Offering]], diagnosis: Diagnosis
) -> Iterator[Device]:
    """The functions that can be passed through; `offerings` are the node's GPUs by PCI address.

    A function is offered when it can be bound to vfio-pci, and by the nvidia driver only where the whole GPU is
    offered: the two, and the GPU's partitions, draw from one counter set. A function that is bound to vfio already is
    known to nobody but sysfs, and draws from nothing. One that the nvidia driver has without showing it as a GPU is
    left alone.
    """
    for index, function in passthrough_candidates(reading).items():
        name = vfio_name(index)
        gpu, offering = offerings.get(function.address, (None, None))
        if not _can_bind(function) or (function.driver == "nvidia" and (offering is None or not offering.whole)):
            continue
        assessment = join_assessments(
            diagnosis.devices.get(name, WELL),
            diagnosis.functions.get(function.address, WELL),
            diagnosis.gpus.get(gpu.uuid, WELL) if gpu else WELL,
        )
        yield Device(
            name=name,
            attributes={
                **describe_function(
                    function, iommufd=reading.vfio.iommufd, module=reading.modules.get(function.address)
                ),
                **describe_fabric(function.address, reading.fabric),
            },
            capacity={"addressableMemory": Capacity(build_quantity(round_up(function.addressable)))},
            consumes_counters=draw_all(gpu, offering) if gpu and offering else (),
            health=assessment.health,
            taints=assessment.taints,
        )


def _can_bind(function: PciFunction) -> bool:
    """Without virtual functions in use, in an IOMMU group, and in the hands of a driver that can be left."""
    can_leave = is_vfio(function.driver) or function.driver in ("", "nvidia")
    return bool(function.group) and not function.has_virtual and can_leave


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
    figures = {} if gpu.memory is None else {"memory": gpu.memory}
    plain = build_table(gpu.mig.profiles).capacities if offering.profiled and gpu.mig else build_capacities(figures)
    shared = None if offering.counters else share_capacities(figures, shares)
    name = gpu_name(gpu.minor)
    assessment = _assess(name, gpu, None, diagnosis)
    return Device(
        name=name,
        attributes=attributes,
        capacity=plain if shared is None else shared,
        consumes_counters=draw_all(gpu, offering),
        allow_multiple_allocations=shared is not None,
        health=assessment.health,
        taints=assessment.taints,
    )


def _build_offer(gpu: Gpu, offer: Offer, hardware: Mapping[str, AttributeValue], diagnosis: Diagnosis) -> Device:
    name = mig_name(gpu.minor, offer.profile.name, offer.profile.id, offer.placement.start)
    assessment = _assess(name, gpu, offer.placement, diagnosis)
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
    assessment = _assess(name, gpu, placement, diagnosis)
    return Device(
        name=name,
        # A selector may read the UUID of what was removed: without the attribute, that would be an error.
        attributes={"uuid": "", **describe_partition(gpu, profile.name, hardware, uuid=adopted.uuid)},
        capacity=build_capacities(figures) if shared is None else shared,
        allow_multiple_allocations=shared is not None,
        health=assessment.health,
        taints=assessment.taints,
    )


def _assess(device: str, gpu: Gpu, placement: Placement | None, diagnosis: Diagnosis) -> Assessment:
    """An assessment on the GPU is one on its partitions, and one on a place is one on all that has a part of it.

    What was wrong with memory slices is wrong with them in whatever shape they are offered next.
    """
    own, whole = diagnosis.devices.get(device, WELL), diagnosis.gpus.get(gpu.uuid, WELL)
    parts = (
        assessment
        for (uuid, place), assessment in sorted(diagnosis.partitions.items(), key=lambda one: one[0])
        if uuid == gpu.uuid and (placement is None or placement.overlaps(place))
    )
    return join_assessments(own, whole, *parts)


def _size(profile: Profile) -> tuple[int, int]:
    return profile.slices, profile.memory_mib
