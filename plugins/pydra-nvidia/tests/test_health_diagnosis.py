"""What a GPU's condition and its XIDs mean for its device: one assessment, the worst signal first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_values import gpu as h100
from pydra import Health, HealthStatus, Taint, TaintEffect
from pydra_nvidia.hardware_types import Condition, Fabric, Gpu, LostGpu, Placement, Reading
from pydra_nvidia.health.diagnosis import WELL, diagnose
from pydra_nvidia.health.incident_store import Incident
from pydra_nvidia.settings import Settings, Signal
from pydra_pci import Assessment, Reaction, combine

NOW = 10_000.0
PLACE = Placement(2, 1)
DEFAULT = Settings()


def gpu(**condition: Any) -> Gpu:
    return h100(0, "0", "0000:19:00.0", condition=Condition(**condition))


def xid(code: int, *, age: float = 1.0, place: Placement | None = None) -> Incident:
    return Incident(gpu="GPU-0", xid=code, place=place, first=NOW - age, last=NOW - age)


def assessment(
    *incidents: Incident, settings: Settings = DEFAULT, fabric: Fabric | None = None, **condition: Any
) -> Assessment:
    one = replace(gpu(**condition), fabric=fabric)
    found = diagnose(Reading(gpus=(one,)), incidents, settings=settings, now=NOW)
    return found.gpus.get("GPU-0", WELL)


def sick(name: str, value: str, message: str, effect: TaintEffect | None = None) -> Health:
    return Health(
        status=HealthStatus.UNHEALTHY, message=message, reason=value, taint=f"gpu.nvidia.com/{name}", effect=effect
    )


def tells(name: str, value: str = "") -> Taint:
    return Taint(key=f"gpu.nvidia.com/{name}", value=value, effect=TaintEffect.NONE)


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 109])
def test_an_error_of_an_application_only_informs(code: int) -> None:
    assert assessment(xid(code)) == Assessment(taints=(tells("xid", str(code)),))


def test_any_other_xid_makes_the_device_unhealthy_under_the_vendors_key() -> None:
    assert assessment(xid(79)).health == sick("xid", "79", "XID 79: the GPU has fallen off the bus")
    assert assessment(xid(999)).health == sick("xid", "999", "XID 999")


def test_an_unhealthy_fabric_only_informs() -> None:
    assert assessment(fabric=Fabric(cluster="c", clique=1, healthy=None)) == WELL
    assert assessment(fabric=Fabric(cluster="c", clique=1, healthy=False)) == Assessment(taints=(tells("fabric"),))


def test_an_ignored_xid_never_weakens_a_fatal_one() -> None:
    assert assessment(xid(79, age=9), xid(13)) == Assessment(health=assessment(xid(79)).health)


def test_of_several_xids_the_latest_is_reported() -> None:
    assert assessment(xid(79, age=9), xid(95, age=2), xid(48, age=5)).health.reason == "95"


def test_the_admin_may_ignore_more_codes_and_count_those_of_applications() -> None:
    assert assessment(xid(94), settings=Settings(xids_ignored=(94,))).health == Health()
    assert assessment(xid(31), settings=Settings(xids_fatal=(31,))).health.reason == "31"


CONDITIONS = {
    "a recovery action": ({"recovery": 1}, "recovery-action", "GPU_RESET", "asks for the recovery action GPU_RESET"),
    "one that is not known yet": ({"recovery": 42}, "recovery-action", "42", "recovery action 42"),
    "a failed row remap": ({"remap_failed": True}, "row-remap-failed", "", "must be replaced"),
}


@pytest.mark.parametrize(("condition", "name", "value", "message"), CONDITIONS.values(), ids=CONDITIONS)
def test_a_condition_makes_the_device_unhealthy(condition: dict[str, Any], name: str, value: str, message: str) -> None:
    health = assessment(**condition).health
    assert (health.status, health.taint, health.reason) == (
        HealthStatus.UNHEALTHY,
        f"gpu.nvidia.com/{name}",
        value,
    )
    assert message in health.message


INFORMING = {
    "a pending row remap": ({"remap_pending": True}, "row-remap-pending"),
    "a pending page retirement": ({"retirement_pending": True}, "page-retirement"),
    "uncorrected errors": ({"ecc_uncorrected": 3}, "ecc"),
    "no events": ({"monitored": False}, "unmonitored"),
}


@pytest.mark.parametrize(("condition", "name"), INFORMING.values(), ids=INFORMING)
def test_a_condition_that_still_lets_the_device_work_only_informs(condition: dict[str, Any], name: str) -> None:
    assert assessment(**condition) == Assessment(taints=(tells(name),))


def test_a_gpu_without_reports_is_well() -> None:
    assert assessment() == WELL
    assert assessment(recovery=0, ecc_uncorrected=0, remap_failed=False, remap_pending=False) == WELL


def beside(name: str, value: str = "", effect: TaintEffect = TaintEffect.NO_SCHEDULE) -> Taint:
    return Taint(key=f"gpu.nvidia.com/{name}", value=value, effect=effect)


@pytest.mark.parametrize(
    ("reactions", "effect", "taints"),
    [
        pytest.param(
            {},
            None,
            {beside("recovery-action", "NODE_REBOOT"), beside("row-remap-failed"), tells("ecc")},
            id="by default",
        ),
        pytest.param(
            {Signal.RECOVERY_ACTION: Reaction.NO_EXECUTE},
            None,
            {
                beside("recovery-action", "NODE_REBOOT", TaintEffect.NO_EXECUTE),
                beside("row-remap-failed"),
                tells("ecc"),
            },
            id="one that evicts",
        ),
        pytest.param(
            {Signal.XID: Reaction.NO_EXECUTE, Signal.ROW_REMAP_FAILED: Reaction.IGNORE, Signal.ECC: Reaction.UNHEALTHY},
            TaintEffect.NO_EXECUTE,
            {beside("recovery-action", "NODE_REBOOT"), beside("ecc")},
            id="one that is ignored, and one that counts",
        ),
        pytest.param(
            {Signal.IGNORED_XID: Reaction.NO_SCHEDULE, Signal.RECOVERY_ACTION: Reaction.NONE},
            None,
            {tells("recovery-action", "NODE_REBOOT"), beside("row-remap-failed"), tells("ecc")},
            id="another of the same key that is not stronger",
        ),
        pytest.param(
            {Signal.IGNORED_XID: Reaction.NO_EXECUTE},
            TaintEffect.NO_EXECUTE,
            {beside("recovery-action", "NODE_REBOOT"), beside("row-remap-failed"), tells("ecc")},
            id="a stronger one of the same key",
        ),
    ],
)
def test_the_worst_signal_is_the_health_and_each_other_is_a_taint_of_its_own(
    reactions: dict[Signal, Reaction], effect: TaintEffect | None, taints: set[Taint]
) -> None:
    found = assessment(
        xid(119), xid(13), recovery=2, remap_failed=True, ecc_uncorrected=1, settings=Settings(signals=reactions)
    )
    assert found.health == sick("xid", "119", "XID 119: the GPU's system processor did not answer", effect)
    assert {taint.key: taint for taint in found.taints} == {taint.key: taint for taint in taints}
    assert len(found.taints) == len(taints)


def test_with_its_worst_signal_only_reported_the_next_one_is_the_health() -> None:
    found = assessment(xid(119), recovery=1, settings=Settings(signals={Signal.XID: Reaction.NONE}))
    assert found.health.taint == "gpu.nvidia.com/recovery-action"
    assert found.taints == (tells("xid", "119"),)


EFFECTS: list[TaintEffect | None] = [None, *TaintEffect]
KEYS = ("gpu.nvidia.com/xid", "gpu.nvidia.com/ecc", "gpu.nvidia.com/fabric")
HEALTHS = st.builds(
    Health,
    status=st.sampled_from(HealthStatus),
    reason=st.sampled_from(["", "79", "95"]),
    taint=st.sampled_from(KEYS),
    effect=st.sampled_from(EFFECTS),
)
TAINTS = st.builds(Taint, key=st.sampled_from(KEYS), effect=st.sampled_from(TaintEffect))
ORDER = [TaintEffect.NONE, TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE]


@given(healths=st.lists(HEALTHS, max_size=4), taints=st.lists(TAINTS, max_size=4))
def test_of_all_that_is_wrong_each_key_is_reported_once_with_its_strongest_effect(
    healths: list[Health], taints: list[Taint]
) -> None:
    found = combine(healths, taints)
    sick_ones = [one for one in healths if one.status is HealthStatus.UNHEALTHY]
    said = [(one.taint, one.effect or TaintEffect.NO_SCHEDULE) for one in sick_ones]
    said += [(one.key, one.effect) for one in taints]
    told = [(one.key, one.effect) for one in found.taints]
    if sick_ones:
        assert (found.health.status, found.health.taint) == (HealthStatus.UNHEALTHY, sick_ones[0].taint)
        told.append((found.health.taint, found.health.effect or TaintEffect.NO_SCHEDULE))
    else:
        assert found.health.status is not HealthStatus.UNHEALTHY
    strongest = {key: max((one for of, one in said if of == key), key=ORDER.index) for key, _ in said}
    assert sorted(told, key=repr) == sorted(strongest.items(), key=repr)


REACTIONS = {
    Reaction.UNHEALTHY: (HealthStatus.UNHEALTHY, None, ()),
    Reaction.NO_SCHEDULE: (HealthStatus.UNHEALTHY, TaintEffect.NO_SCHEDULE, ()),
    Reaction.NO_EXECUTE: (HealthStatus.UNHEALTHY, TaintEffect.NO_EXECUTE, ()),
    Reaction.NONE: (HealthStatus.HEALTHY, None, (tells("xid", "79"),)),
    Reaction.IGNORE: (HealthStatus.HEALTHY, None, ()),
}


@pytest.mark.parametrize("reaction", Reaction)
def test_what_follows_from_a_signal_is_a_policy(reaction: Reaction) -> None:
    found = assessment(xid(79), settings=Settings(signals={Signal.XID: reaction}))
    assert (found.health.status, found.health.effect, found.taints) == REACTIONS[reaction]


QUIET = Settings().quiet_period
RECOVERY = {
    "too early": (79, QUIET - 1, 0, True),
    "quiet, and the driver wants no action": (79, QUIET, 0, False),
    "before the clock was set back by a day": (79, -86400, 0, False),
    "quiet, but the driver wants a reset": (79, QUIET, 1, True),
    "quiet, and the driver is too old to tell": (79, 10 * QUIET, None, True),
    "that the driver wants no action any more": (154, 0, 0, False),
    "that the driver wants one, which the GPU reports": (154, 0, 1, False),
    "that the driver wants one, which the GPU cannot report": (154, 10 * QUIET, None, True),
    "one that passes by itself, on an old driver": (94, QUIET, None, False),
    "one of an application, on an old driver": (31, QUIET, None, False),
}


@pytest.mark.parametrize(("code", "age", "recovery", "counts"), RECOVERY.values(), ids=RECOVERY)
def test_an_incident_is_over_when_it_is_quiet_and_the_driver_agrees(
    code: int, age: float, recovery: int | None, counts: bool
) -> None:
    found = assessment(xid(code, age=age), recovery=recovery)
    keys = {found.health.reason, *(taint.value for taint in found.taints)}
    assert (str(code) in keys) is counts


def test_an_error_inside_a_partition_concerns_that_partition_only() -> None:
    found = diagnose(Reading(gpus=(gpu(),)), [xid(95, place=PLACE)], settings=Settings(), now=NOW)
    assert found.gpus == {}
    assert found.partitions["GPU-0", PLACE].health.reason == "95"


def test_a_partitions_verdict_has_the_gpus_signals_too() -> None:
    incidents = [xid(13, place=PLACE), xid(79)]
    found = diagnose(Reading(gpus=(gpu(),)), incidents, settings=Settings(), now=NOW)
    assert found.partitions["GPU-0", PLACE].health.reason == "79"


def test_a_lost_gpu_is_tainted_as_the_vendor_does() -> None:
    lost = LostGpu(index=0, code=15, message="NVML_ERROR_GPU_IS_LOST (15)", last=gpu())
    found = diagnose(Reading(lost=(lost,)), [], settings=Settings(), now=NOW)
    health = found.gpus["GPU-0"].health
    assert (health.taint, health.reason) == ("gpu.nvidia.com/gpu-lost", "")
    assert "NVML_ERROR_GPU_IS_LOST" in health.message


def test_incidents_of_a_gpu_that_is_not_there_are_kept() -> None:
    assert diagnose(Reading(), [xid(79)], settings=Settings(), now=NOW).gpus == {}


def test_a_gpu_that_is_silent_for_the_moment_is_neither_well_nor_sick() -> None:
    health = assessment(silence="NVML_ERROR_TIMEOUT (10)").health
    assert (health.status, health.message) == (
        HealthStatus.UNKNOWN,
        "the GPU does not answer: NVML_ERROR_TIMEOUT (10)",
    )
    assert assessment(xid(79), silence="NVML_ERROR_TIMEOUT (10)").health.reason == "79"
