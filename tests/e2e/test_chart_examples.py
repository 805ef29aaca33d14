"""The examples of values, installed with what a plain cluster lacks left out, beside simulated accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from pydra_nvidia import DEVICE_CLASSES as NVIDIA_CLASSES
from pydra_tpu import DEVICE_CLASSES as TPU_CLASSES
from tests.chart.rendering import CHART
from tests.e2e.release import IMAGE, open_place

pytestmark = pytest.mark.skipif(not IMAGE, reason="PYDRA_E2E_CHART_IMAGE names no image that is on the node")

EXAMPLES = {path.stem: path for path in sorted((CHART / "examples").glob("*.yaml"))}
DEVICE_CLASSES = {"nvidia": NVIDIA_CLASSES, "tpu": TPU_CLASSES}
EXTENDED = {"nvidia": "gpu.nvidia.com", "tpu": "tpu.google.com"}
"""The class of each that stands for an extended resource."""
MONITORING = {"monitor": {"create": False}, "alerts": {"create": False}}
LEFT_OUT: Mapping[str, Mapping[str, Any]] = {
    "eks": {**MONITORING, "webhook": {"tls": {"mode": "generated"}}},
    "openshift": {**MONITORING, "openshift": {"enabled": False}},
}
"""What needs kinds that are not part of Kubernetes: Prometheus' operator, cert-manager, OpenShift's."""


@pytest.mark.parametrize("name", EXAMPLES)
async def test_an_example_is_installed_and_claims_are_served_beside_what_it_brings(name: str) -> None:
    """With simulated accelerators, which every release of these tests has: the node has no other hardware."""
    values = yaml.safe_load(EXAMPLES[name].read_text())
    del values["image"]
    async with open_place() as (cluster, release):
        # The cluster may have classes of these names from somewhere else, and other tests their extended resources:
        # kube-scheduler 1.36 does not go back to an older class for one when the newer class is deleted.
        ours = {
            backend: {
                "deviceClasses": {
                    "names": {one: f"{one}.{cluster.driver}" for one in DEVICE_CLASSES[backend]},
                    "extendedResourceNames": {EXTENDED[backend]: ""},
                }
            }
            for backend in values["backends"].keys() & DEVICE_CLASSES
        }
        await release.install(values, {"backends": ours}, LEFT_OUT.get(name, {}))
        await cluster.wait("devices are published", cluster.devices)
        await cluster.create_claim("one")
        found = await cluster.run_pod("app", resourceClaimName="one")
        assert any(line.startswith("SIM_ACCEL_") for line in found["main"])
