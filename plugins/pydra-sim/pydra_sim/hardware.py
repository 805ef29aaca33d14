"""From a scenario to devices, counters and attributes. Pure: no file is read, nothing is remembered."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping

import msgspec

from pydra import (
    Capacity,
    CapacityRange,
    CounterConsumption,
    CounterSet,
    Device,
    Health,
    HealthStatus,
    Inventory,
    RequestPolicy,
    Version,
)
from pydra.devices import HEALTHY, AttributeValue
from pydra_sim.scenario import Group, Scenario

UUID_NAMESPACE = uuid.UUID("4a1c6d0e-6f5b-5d6e-9a55-0b8d5f0c7a31")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """An accelerator, or `size` of its slices from `start` on; `ordinal` counts accelerators over all groups."""

    group: Group
    index: int
    ordinal: int
    start: int = 0
    size: int

    @property
    def accelerator(self) -> str:
        """The name of the accelerator that this is, or is a part of."""
        return f"{self.group.name}-{self.index}"

    @property
    def whole(self) -> bool:
        """Whether this is a whole accelerator."""
        return self.size == max(self.group.slices, 1)

    @property
    def profile(self) -> str:
        """The size of a partition in words: `2of4`."""
        return f"{self.size}of{self.group.slices}"

    @property
    def name(self) -> str:
        """The device's name: `accel-0`, or `accel-0-2of4-2` for a partition that starts at slice 2."""
        return self.accelerator if self.whole else f"{self.accelerator}-{self.profile}-{self.start}"

    @property
    def memory(self) -> int:
        """Memory in GiB."""
        return self.group.memory * self.size // max(self.group.slices, 1)

    @property
    def cores(self) -> int:
        """Compute cores."""
        return self.group.cores * self.size // max(self.group.slices, 1)

    @property
    def uuid(self) -> str:
        """The accelerator's lasting identity; partitions get their own when they are created."""
        return f"SIM-{uuid.uuid5(UUID_NAMESPACE, self.accelerator)}"

    def overlaps(self, other: Part) -> bool:
        """Whether both need the same slice of the same accelerator."""
        return (
            self.accelerator == other.accelerator
            and self.start < other.start + other.size
            and other.start < self.start + self.size
        )


def find_parts(scenario: Scenario) -> Mapping[str, Part]:
    """Everything that the machine could give to a claim if nothing were unplugged, by device name."""
    return {part.name: part for part in _parts(scenario)}


def build_inventory(scenario: Scenario, *, unhealthy: Mapping[str, str], unplugged: frozenset[str]) -> Inventory:
    """What the machine has now. A device is gone or sick when it, or its accelerator, is named so."""
    sick = {**scenario.unhealthy, **unhealthy}
    gone = unplugged.union(scenario.unplugged)
    present = [part for part in _parts(scenario) if part.name not in gone and part.accelerator not in gone]
    return Inventory(
        devices=tuple(_device(part, scenario.driver_version, _health(part, sick)) for part in present),
        counter_sets=tuple(_counter_set(part) for part in present if part.whole and part.group.slices),
    )


def _parts(scenario: Scenario) -> Iterator[Part]:
    ordinal = 0
    for group in scenario.groups:
        for index in range(group.count):
            yield Part(group=group, index=index, ordinal=ordinal, size=max(group.slices, 1))
            for size in sorted(set(group.partitions)) if group.slices else ():
                for start in range(0, group.slices - size + 1, size):
                    yield Part(group=group, index=index, ordinal=ordinal, start=start, size=size)
            ordinal += 1


def _health(part: Part, sick: Mapping[str, str]) -> Health:
    message = sick.get(part.name, sick.get(part.accelerator))
    return HEALTHY if message is None else Health(status=HealthStatus.UNHEALTHY, message=message)


def _device(part: Part, driver_version: str, health: Health) -> Device:
    return Device(
        name=part.name,
        attributes=_attributes(part, driver_version),
        capacity=_capacity(part),
        consumes_counters=(_consumption(part),) if part.group.slices else (),
        allow_multiple_allocations=part.group.shared,
        health=health,
    )


def _attributes(part: Part, driver_version: str) -> dict[str, AttributeValue]:
    """Names as most vendors have them, and the standard ones of `resource.kubernetes.io`."""
    node = part.index * part.group.numa_nodes // part.group.count
    domain, slot = divmod(part.ordinal, 128)
    own: dict[str, AttributeValue] = (
        {"type": "accelerator", "uuid": part.uuid, "index": part.index}
        if part.whole
        else {"type": "partition", "parentUUID": part.uuid, "profile": part.profile}
    )
    return own | {
        "productName": part.group.product,
        "driverVersion": Version(driver_version),
        "resource.kubernetes.io/pcieRoot": f"pci{domain:04x}:{node:02x}",
        "resource.kubernetes.io/pciBusID": f"{domain:04x}:{0x40 + slot:02x}:00.0",
        "resource.kubernetes.io/numaNode": node,
    }


def _capacity(part: Part) -> dict[str, Capacity]:
    memory, cores = f"{part.memory}Gi", part.cores
    if not part.group.shared:
        return {"memory": Capacity(memory), "cores": Capacity(cores)}
    return {
        "memory": Capacity(memory, RequestPolicy(default=memory, valid_range=CapacityRange(min="1Gi", step="1Gi"))),
        "cores": Capacity(cores, RequestPolicy(default=cores, valid_range=CapacityRange(min=1, step=1))),
    }


def _counter_set(whole: Part) -> CounterSet:
    return CounterSet(name=whole.accelerator, counters=_counters(whole))


def _consumption(part: Part) -> CounterConsumption:
    return CounterConsumption(counter_set=part.accelerator, counters=_counters(part))


def _counters(part: Part) -> dict[str, int | str]:
    """Memory and cores, and each slice by itself, so that only a placement that the hardware can make is allocated."""
    slices = {f"slice-{number}": 1 for number in range(part.start, part.start + part.size)}
    return {"memory": f"{part.memory}Gi", "cores": part.cores, **slices}
