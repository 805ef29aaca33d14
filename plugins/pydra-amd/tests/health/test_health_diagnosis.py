"""What signals make of GPUs: health, and taints beside it."""

from __future__ import annotations

import re

import pytest

from amd_values import gpu_of, reading_of
from pydra import HealthStatus, Taint, TaintEffect
from pydra_amd.hardware_types import Condition, LostGpu, Reading
from pydra_amd.health.diagnosis import diagnose
from pydra_amd.settings import Settings, Signal
from pydra_pci import Assessment, Reaction

GPU = gpu_of()
DOMAIN = "gpu.amd.com"
SOUND = Condition()


def assess(condition: Condition = SOUND, *, reading: Reading | None = None, **settings: object) -> Assessment:
    chosen = Settings(**settings)  # type: ignore[arg-type]
    return diagnose(reading or reading_of(GPU), {GPU.address: condition}, chosen).get(GPU.address, Assessment())


@pytest.mark.parametrize(
    ("condition", "taint", "reason", "words"),
    [
        (Condition(uncorrectable={"umc": 2, "gfx": 1, "sdma": 0}), "ecc", "gfx.umc", "gfx 1, umc 2"),
        (Condition(uncorrectable={"xgmi_wafl": 3}), "xgmi-error", "", "xGMI links that could not be corrected: 3"),
        (Condition(is_resetting=True), "reset", "", "GPU 0000:05:00.0 is being reset"),
        (Condition(links=7, links_down=2), "xgmi-link", "", "2 of the 7 xGMI links"),
        (Condition(bad_pages=128, bad_page_limit=127), "bad-pages", "", "128 pages .* are out of use, 127 may be"),
    ],
)
def test_each_signal_makes_the_devices_unhealthy_with_a_taint_of_its_own(
    condition: Condition, taint: str, reason: str, words: str
) -> None:
    health = assess(condition).health
    assert (health.status, health.taint, health.reason) == (HealthStatus.UNHEALTHY, f"{DOMAIN}/{taint}", reason)
    assert re.search(words, health.message)


def test_throttling_is_told_by_a_taint_without_effect() -> None:
    found = assess(Condition(is_throttled=True))
    assert found.health.status is HealthStatus.HEALTHY
    assert found.taints == (Taint(key=f"{DOMAIN}/throttling", effect=TaintEffect.NONE),)


def test_a_gpu_that_is_lost_or_lacks_a_node_is_unhealthy() -> None:
    lost = Reading(lost=(LostGpu(gpu=GPU, why="it is gone from the PCI bus"),))
    assert "is lost: it is gone from the PCI bus" in assess(reading=lost).health.message
    missing = assess(reading=reading_of(GPU, missing=("/dev/dri/renderD128",))).health
    assert (missing.taint, missing.message) == (
        f"{DOMAIN}/node-gone",
        "/dev/dri/renderD128 of GPU 0000:05:00.0 is not there",
    )


def test_what_is_within_bounds_is_well() -> None:
    condition = Condition(uncorrectable={"umc": 0}, bad_pages=127, bad_page_limit=127)
    assert assess(condition) == Assessment()
    assert assess(condition, bad_page_threshold=100).health.status is HealthStatus.UNHEALTHY
    assert assess(Condition(bad_pages=5)) == Assessment(), "how many are tolerated is not known"


def test_the_worst_is_the_health_and_the_others_are_taints_with_the_reaction_that_the_admin_chose() -> None:
    condition = Condition(uncorrectable={"umc": 1, "xgmi_wafl": 1}, bad_pages=5, bad_page_limit=4)
    found = assess(condition, signals={Signal.XGMI_ERROR: Reaction.NO_EXECUTE, Signal.BAD_PAGES: Reaction.NONE})
    assert (found.health.taint, found.health.effect) == (f"{DOMAIN}/ecc", None)
    assert found.taints == (
        Taint(key=f"{DOMAIN}/xgmi-error", effect=TaintEffect.NO_EXECUTE),
        Taint(key=f"{DOMAIN}/bad-pages", effect=TaintEffect.NONE),
    )
    ignored = dict.fromkeys(Signal, Reaction.IGNORE)
    assert assess(condition, signals=ignored) == Assessment()
