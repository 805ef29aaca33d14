"""How each GPU and partition is, from its condition and the incidents. Pure.

A device has one assessment: of several signals the worst is its health, and each other is a taint beside it. An ignored
XID never weakens what another signal says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from pydra import Health, HealthStatus, Taint, TaintEffect
from pydra_nvidia.device_names import DRIVER
from pydra_nvidia.hardware_types import Gpu, Placement, Reading
from pydra_nvidia.health.incident_store import Incident
from pydra_nvidia.health.xid_catalogue import APPLICATION_XIDS, PASSING_XIDS, RECOVERY_XID, explain
from pydra_nvidia.host.device_nodes import UVM_NOT_LOADED
from pydra_nvidia.settings import Settings, Signal
from pydra_pci import Assessment, Finding, Reaction, assess, combine

WELL = Assessment()


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Assessments by GPU UUID, by partition (its GPU's UUID and place), by PCI address, and by the name of a device.

    What is missing is well.
    """

    gpus: Mapping[str, Assessment] = {}
    partitions: Mapping[tuple[str, Placement], Assessment] = {}
    functions: Mapping[str, Assessment] = {}
    devices: Mapping[str, Assessment] = {}


def join_assessments(*assessments: Assessment) -> Assessment:
    """The assessment of a device from those of the hardware it is made of: the worst health, and all other taints."""
    if all(assessment is WELL for assessment in assessments):
        return WELL
    return combine((one.health for one in assessments), (taint for one in assessments for taint in one.taints))


MAINTENANCE = f"{DRIVER}/maintenance"
"""The taint of all devices while the admin has the driver for himself."""

DEFAULT_REACTIONS: Mapping[Signal, Reaction] = {
    Signal.GPU_LOST: Reaction.UNHEALTHY,
    Signal.UNREADABLE: Reaction.UNHEALTHY,
    Signal.PARTITION_GONE: Reaction.UNHEALTHY,
    Signal.XID: Reaction.UNHEALTHY,
    Signal.RECOVERY_ACTION: Reaction.UNHEALTHY,
    Signal.ROW_REMAP_FAILED: Reaction.UNHEALTHY,
    Signal.ROW_REMAP_PENDING: Reaction.NONE,
    Signal.PAGE_RETIREMENT: Reaction.NONE,
    Signal.ECC: Reaction.NONE,
    Signal.FABRIC: Reaction.NONE,
    Signal.UNMONITORED: Reaction.NONE,
    Signal.UVM_NOT_LOADED: Reaction.NONE,
    Signal.IGNORED_XID: Reaction.NONE,
}
"""Worst first: the first that makes a device unhealthy is its health."""

RECOVERY_ACTIONS = {
    1: "GPU_RESET",
    2: "NODE_REBOOT",
    3: "DRAIN_P2P",
    4: "DRAIN_AND_RESET",
    5: "RECOVER_IMEX_DOMAIN",
    6: "BUS_RESET",
    7: "SYSTEM_REBOOT",
}
"""NVML field 230."""


def diagnose(reading: Reading, incidents: Iterable[Incident], *, settings: Settings, now: float) -> Diagnosis:
    """The assessment on everything in the reading; `now` in seconds since the epoch."""
    counting = [one for one in incidents if not is_settled(one, reading, settings=settings, now=now)]
    node = [Finding(Signal.UVM_NOT_LOADED, UVM_NOT_LOADED)] if reading.lacks_uvm else []
    gpus: dict[str, Assessment] = {}
    partitions: dict[tuple[str, Placement], Assessment] = {}
    for gpu in reading.gpus:
        mine = [one for one in counting if one.gpu == gpu.uuid]
        whole = [*_condition(gpu), *node, *_xids((one for one in mine if one.place is None), settings)]
        gpus[gpu.uuid] = _assess(whole, settings, silence=gpu.condition.silence)
        for place in sorted({one.place for one in mine if one.place is not None}):
            own = list(_xids((one for one in mine if one.place == place), settings))
            partitions[gpu.uuid, place] = _assess([*whole, *own], settings, silence=gpu.condition.silence)
    for lost in reading.lost:
        if lost.last is not None:
            finding = Finding(Signal.GPU_LOST, f"the GPU is lost: {lost.message}")
            gpus[lost.last.uuid] = _assess([finding], settings)
    return Diagnosis(
        gpus={uuid: assessment for uuid, assessment in gpus.items() if assessment != WELL},
        partitions={place: assessment for place, assessment in partitions.items() if assessment != WELL},
    )


def suspend(last: Diagnosis, reading: Reading, why: str) -> Diagnosis:
    """The diagnosis during maintenance: no health is known, and no new pod should come to where no claim is prepared.

    What was unhealthy before stays unhealthy.
    """
    taint = Taint(key=MAINTENANCE, effect=TaintEffect.NO_SCHEDULE)

    def leave_alone(assessment: Assessment) -> Assessment:
        health = assessment.health
        if health.status is HealthStatus.HEALTHY:
            health = Health(status=HealthStatus.UNKNOWN, message=why)
        return Assessment(health=health, taints=(taint, *assessment.taints))

    uuids = [*(gpu.uuid for gpu in reading.gpus), *last.gpus]
    return Diagnosis(
        gpus={uuid: leave_alone(last.gpus.get(uuid, WELL)) for uuid in uuids},
        partitions={place: leave_alone(assessment) for place, assessment in last.partitions.items()},
        functions={address: leave_alone(last.functions.get(address, WELL)) for address in reading.functions},
    )


def add_vanished(diagnosis: Diagnosis, vanished: Mapping[str, str], *, settings: Settings) -> Diagnosis:
    """With partitions that are gone: `vanished` has, by the names of claims' devices, what is said of it."""
    devices = {
        device: _assess([Finding(Signal.PARTITION_GONE, message)], settings) for device, message in vanished.items()
    }
    return replace(diagnosis, devices=devices)


def is_settled(incident: Incident, reading: Reading, *, settings: Settings, now: float) -> bool:
    """Whether the incident no longer counts, as far as its GPU can tell.

    A changed recovery action is none where the action is known, since it may have changed to none. Else quiet is needed
    in any case. Beyond that the driver's word is taken: no recovery action is wanted. A driver too old to say so is
    believed for what passes by itself only; anything else lasts until the GPU is known to be reset.
    """
    gpu = reading.gpu(incident.gpu)
    if gpu is None:
        return False
    recovery = gpu.condition.recovery
    if incident.xid == RECOVERY_XID and recovery is not None:
        return True
    if abs(now - incident.last) < settings.quiet_period:  # a clock that was set back counts as quiet
        return False
    passes = recovery is None and incident.xid in PASSING_XIDS
    return recovery == 0 or passes or _is_ignored(incident.xid, settings)


def _is_ignored(xid: int, settings: Settings) -> bool:
    """Whether the code says nothing about the GPU's health."""
    return xid not in settings.xids_fatal and (xid in APPLICATION_XIDS or xid in settings.xids_ignored)


def _condition(gpu: Gpu) -> Iterator[Finding]:
    condition = gpu.condition
    if gpu.unread:
        yield Finding(Signal.UNREADABLE, f"it cannot be read how the GPU is partitioned: {gpu.unread}")
    if condition.recovery:
        action = RECOVERY_ACTIONS.get(condition.recovery, str(condition.recovery))
        yield Finding(Signal.RECOVERY_ACTION, f"the driver asks for the recovery action {action}", action)
    if condition.remap_failed:
        yield Finding(Signal.ROW_REMAP_FAILED, "a memory row could not be remapped; the GPU must be replaced")
    if condition.remap_pending:
        yield Finding(Signal.ROW_REMAP_PENDING, "a memory row is remapped at the next reset of the GPU")
    if condition.retirement_pending:
        yield Finding(Signal.PAGE_RETIREMENT, "a memory page is retired at the next reboot")
    if condition.ecc_uncorrected:
        count = condition.ecc_uncorrected
        yield Finding(Signal.ECC, f"uncorrectable memory errors since the last reset: {count}")
    if gpu.fabric is not None and gpu.fabric.healthy is False:
        yield Finding(Signal.FABRIC, "the NVLink fabric is unhealthy")
    if not condition.monitored:
        yield Finding(Signal.UNMONITORED, "the driver reports no events for this GPU")


def _xids(incidents: Iterable[Incident], settings: Settings) -> Iterator[Finding]:
    """The latest first: it is the one that is reported."""
    for one in sorted(incidents, key=lambda one: (-one.last, one.xid)):
        signal = Signal.IGNORED_XID if _is_ignored(one.xid, settings) else Signal.XID
        # The vendor has one key for all XIDs, whether they are ignored or not.
        yield Finding(signal, explain(one.xid), str(one.xid), taint=Signal.XID.value)


def _assess(findings: Iterable[Finding], settings: Settings, *, silence: str = "") -> Assessment:
    found = assess(findings, settings.signals, DEFAULT_REACTIONS, DRIVER)
    if silence and found.health.status is HealthStatus.HEALTHY:
        message = f"the GPU does not answer: {silence}"
        return replace(found, health=Health(status=HealthStatus.UNKNOWN, message=message))
    return found
