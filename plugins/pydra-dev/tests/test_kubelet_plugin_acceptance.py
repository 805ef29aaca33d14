"""With which of its services the kubelet uses a plugin, and how long it waits until it tries again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pydra_dev.kubelet.plugin_acceptance import HealthService, Plugin, accept_plugin
from pydra_dev.kubelet.settings import Backoff

V1 = "v1.DRAPlugin"
HEALTH_V1, HEALTH_V1ALPHA1 = "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"


def accept(versions: Sequence[str], minor: int = 36) -> Plugin:
    given = {"socket": "/r.sock", "type_": "DRAPlugin", "name": "gpu.example.com", "endpoint": "/d.sock"}
    return accept_plugin(versions=versions, minor=minor, **given)


@pytest.mark.parametrize(
    ("minor", "versions", "health"),
    [
        (34, (V1,), HealthService.V1ALPHA1),
        (36, (V1, HEALTH_V1), HealthService.V1ALPHA1),
        (37, (V1,), None),
        (37, (V1, HEALTH_V1ALPHA1), HealthService.V1ALPHA1),
        (37, (V1, HEALTH_V1ALPHA1, HEALTH_V1), HealthService.V1),
    ],
)
def test_the_health_service_depends_on_the_release(
    minor: int, versions: tuple[str, ...], health: HealthService | None
) -> None:
    assert accept(versions, minor=minor).health is health


def test_pauses_grow_to_a_limit_and_stay_there() -> None:
    backoff = Backoff(first=0.5, factor=2, longest=122)
    assert [backoff.pause(failures) for failures in (1, 2, 3, 8, 9, 10_000)] == [0.5, 1, 2, 64, 122, 122]
