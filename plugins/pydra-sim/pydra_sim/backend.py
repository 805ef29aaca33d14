"""The backend: the coroutines that pydra calls. `Machine` stands where a vendor's library stands in other backends.

Its calls are short; one that blocks would go through `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import pydra
from pydra_sim import SimConfig
from pydra_sim.hardware import Machine, Part, Work

SHARES = 64  # of a shared accelerator
POLL_SECONDS = 1.0
DEFAULT_TIME_SLICE = 10
NAMESPACE = uuid.UUID("4a1c6d0e-6f5b-5d6e-9a55-0b8d5f0c7a31")


class SimBackend:
    """It remembers nothing about claims: the truth is in the hardware and in what the agent hands over."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._seen: object = None

    async def discover(self) -> pydra.Inventory:
        """All devices, with their health. A partition has the health of its accelerator."""
        self._seen = self._machine.read_signature()  # first, so that a change while the rest is read is noticed
        version, ailments = self._machine.read_scenario().driver_version, self._machine.read_ailments()
        parts = self._machine.read_parts().values()
        boards = [part for part in parts if part.group.slices and not part.profile]
        return pydra.Inventory(
            devices=tuple(
                _build_device(part, version, ailments.get(part.name, ailments.get(part.accelerator))) for part in parts
            ),
            counter_sets=tuple(pydra.CounterSet(name=one.name, counters=_build_counters(one)) for one in boards),
        )

    async def wait_changed(self) -> None:
        """Return when the machine differs from what `discover` saw."""
        while (found := self._machine.read_signature()) == self._seen:  # noqa: ASYNC110 - files have no event
            await asyncio.sleep(POLL_SECONDS)
        self._seen = found

    async def plan(self, claim: pydra.Claim, held: Sequence[pydra.HeldClaim], /) -> dict[str, list[str]]:
        """The slots of its accelerator that each device takes; a shared accelerator has `SHARES`, any of which will do.

        The agent keeps the plan from before the first effect on, so that no journal is needed.
        """
        taken = {slot: one.claim.uid for one in held for slots in (one.plan or {}).values() for slot in slots}
        plan = {}
        for device in claim.devices:
            if device.admin_access:  # only looks at a device, which another claim may have
                continue
            part = self._find(device.device)
            slots = [f"{part.accelerator}.{number}" for number in (range(SHARES) if part.group.shared else part.slices)]
            free = [slot for slot in slots if slot not in taken]
            if part.group.shared and not free:
                raise pydra.ClaimError(f"all {SHARES} shares of {part.name} are in use; one is free when a claim ends")
            if not part.group.shared and len(free) < len(slots):  # whatever the scheduler believed
                raise pydra.DeviceInUse(part.name, f"uid {next(taken[slot] for slot in slots if slot in taken)}")
            plan[_key(device)] = free[:1] if part.group.shared else slots
            taken |= dict.fromkeys(plan[_key(device)], claim.uid)
        return plan

    async def prepare(self, claim: pydra.Claim, /) -> list[pydra.PreparedDevice]:
        """Put the devices to work. When one fails, the agent has `unprepare` undo the others."""
        return [self._prepare_device(claim, device) for device in claim.devices]

    async def unprepare(self, claim: pydra.Claim, _: Sequence[pydra.PreparedDevice], /) -> None:
        """Stop what the plan names, whether or not `prepare` came so far, and whether or not the device is there.

        A claim whose record was damaged has no plan, but its devices.
        """
        for key in claim.plan or _keys(claim):
            self._machine.stop(key)

    async def restore(self, held: Sequence[pydra.HeldClaim], /) -> None:
        """Stop what no held claim explains, such as work for a claim whose record was lost."""
        owned = {key for one in held for key in one.plan or _keys(one.claim)}
        for key in self._machine.read_work():
            if key not in owned:
                self._machine.stop(key)

    async def measure(self) -> list[pydra.Sample]:
        """How warm each accelerator is, and how much of its memory claims have taken."""
        used = {name: 0.0 for name, part in self._machine.read_parts().items() if not part.profile}
        for work in self._machine.read_work().values():
            used[work.accelerator] = used.get(work.accelerator, 0.0) + float(pydra.parse_quantity(work.memory))
        return [
            pydra.Sample(name=name, device=device, value=value, help=text)
            for device, memory in used.items()
            for name, value, text in (
                ("temperature_celsius", 55.0 if memory else 35.0, "Temperature of the accelerator."),
                ("memory_used_bytes", memory, "Memory of the accelerator that claims have taken."),
            )
        ]

    def _find(self, device: str) -> Part:
        part = self._machine.find(device)
        if part is None:
            raise pydra.UnknownDevice(f"this machine has no device {device}, or it was unplugged")
        return part

    def _prepare_device(self, claim: pydra.Claim, device: pydra.AllocatedDevice) -> pydra.PreparedDevice:
        part, config = self._find(device.device), device.config(SimConfig) or SimConfig()
        turns = config.sharing.interval or (DEFAULT_TIME_SLICE if config.sharing.strategy == "TimeSliced" else None)
        slots = [] if device.admin_access else claim.plan[_key(device)]
        memory = device.consumed_capacity.get("memory", f"{part.memory}Gi")
        facts = {
            "UUID": _uuid(part.name),
            "MEMORY": memory,
            "CORES": device.consumed_capacity.get("cores", part.cores),
            "SLOTS": ",".join(slots),
            "CLOCK_MHZ": config.clock or "",
            "TIME_SLICE_MS": turns or "",
            "ADMIN": "true" if device.admin_access else "",
        }
        # The device's name is part of every name, since a container may have several devices.
        prefix = "SIM_" + part.name.upper().replace("-", "_")
        env = {f"{prefix}_{name}": f"{fact}" for name, fact in facts.items() if fact}
        work = Work(claim=claim.uid, accelerator=part.accelerator, slots=slots, memory=memory, env=env)
        info = self._machine.start(_key(device), work) if slots else ""
        node = pydra.DeviceNode(path=f"/dev/sim/{part.name}", host_path=part.group.device_node)
        mount = pydra.Mount(host_path=info, container_path=f"/run/pydra-sim/{part.name}.json")
        return device.prepared(
            pydra.ContainerEdits(
                env={**config.env, **env},
                device_nodes=(node,) if part.group.device_node else (),
                mounts=(mount,) if part.group.info_file and info else (),
            ),
            status=pydra.DeviceStatus(data={"uuid": _uuid(part.name)}),
        )


def _keys(claim: pydra.Claim) -> list[str]:
    return [_key(device) for device in claim.devices if not device.admin_access]


def _key(device: pydra.AllocatedDevice) -> str:
    return f"{device.device}~{device.share_id}" if device.share_id else device.device


def _uuid(name: str) -> str:
    return f"SIM-{uuid.uuid5(NAMESPACE, name)}"


def _build_device(part: Part, version: str, ailment: str | None) -> pydra.Device:
    node, shared = part.index * part.group.numa_nodes // part.group.count, part.group.shared
    domain, slot = divmod(part.ordinal, 128)
    kind: dict[str, pydra.AttributeValue] = (
        {"type": "partition", "parentUUID": _uuid(part.accelerator), "profile": part.profile}
        if part.profile
        else {"type": "accelerator", "uuid": _uuid(part.name), "index": part.index}
    )
    return pydra.Device(
        name=part.name,
        attributes={
            **kind,
            "productName": part.group.product,
            "driverVersion": pydra.Version(version),
            "resource.kubernetes.io/pcieRoot": f"pci{domain:04x}:{node:02x}",
            "resource.kubernetes.io/pciBusID": f"{domain:04x}:{0x40 + slot:02x}:00.0",
            "resource.kubernetes.io/numaNode": node,
        },
        capacity={
            "memory": _build_capacity(f"{part.memory}Gi", "1Gi", shared=shared),
            "cores": _build_capacity(part.cores, 1, shared=shared),
        },
        consumes_counters=(
            (pydra.CounterConsumption(counter_set=part.accelerator, counters=_build_counters(part)),)
            if part.group.slices
            else ()
        ),
        allow_multiple_allocations=shared,
        health=pydra.Health(
            status=pydra.HealthStatus.HEALTHY if ailment is None else pydra.HealthStatus.UNHEALTHY,
            message=ailment or "",
        ),
    )


def _build_capacity(value: pydra.Quantity, step: pydra.Quantity, *, shared: bool) -> pydra.Capacity:
    policy = pydra.RequestPolicy(default=value, valid_range=pydra.CapacityRange(min=step, step=step))
    return pydra.Capacity(value, policy if shared else None)


def _build_counters(part: Part) -> dict[str, pydra.Quantity]:
    """Each slice by itself, so that the scheduler gives out only placements that the hardware can make."""
    return {"memory": f"{part.memory}Gi", "cores": part.cores, **{f"slice-{number}": 1 for number in part.slices}}
