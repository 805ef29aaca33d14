"""AMD GPUs through the chart, with no right more than it gives: a machine whose admin has partitioned one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pydra_amd import DRIVER
from pydra_amd.host.amdgpu import BOUND, COMPUTE
from pydra_amd.simulation.machine import Driver
from pydra_amd.simulation.machine_types import MACHINE_TYPES
from pydra_amd.simulation.tree import build_tree
from tests.e2e.hardware import open_hardware
from tests.e2e.release import IMAGE
from tests.e2e.test_chart_node import create_plain_pod

pytestmark = pytest.mark.skipif(not IMAGE, reason="PYDRA_E2E_CHART_IMAGE names no image that is on the node")

LABEL = ("feature.node.kubernetes.io/amd-gpu", "true")
LOOK = "ls /dev/kfd /dev/dri/* | sort >/dev/termination-log"


def build_host(tree: Path) -> Mapping[str, Any]:
    """The files of a host with eight MI300X, the first in CPX mode, and the values by which the agent finds them."""
    machine = MACHINE_TYPES["mi300x-8"]
    build_tree(str(tree), machine)
    Driver(str(tree), machine).react(f"{tree}/sys/{BOUND}/{machine.addresses[0]}/{COMPUTE}", "CPX")
    return {
        "amd": {
            "enabled": True,
            "settings": {"devRoot": f"{tree}/dev", "pollPeriod": 0.5},
            "env": [{"name": "PYDRA_AMD_SYS_ROOT", "value": f"/host{tree}/sys"}],
        }
    }


async def test_a_partition_and_a_whole_gpu_are_used_side_by_side() -> None:
    async with open_hardware(DRIVER, LABEL, build_host) as (cluster, release, _):
        await release.install()
        await cluster.wait("devices are published", cluster.devices)
        assert len(await cluster.devices()) == 8 + 7
        cpx = f"device.attributes['{DRIVER}'].computePartition == 'cpx'"
        part = {"deviceClassName": DRIVER, "selectors": [{"cel": {"expression": cpx}}]}
        whole = {"deviceClassName": f"{DRIVER}-spx"}
        requests = [{"name": "part", "exactly": part}, {"name": "whole", "exactly": whole}]
        await cluster.create_claim("both", requests=requests)
        containers = {name: [{"name": "both", "request": name}] for name in ("part", "whole")}
        found = await cluster.run_pod("app", LOOK, claims={"both": "both"}, containers=containers)
        assert found["part"] == ["/dev/dri/card1", "/dev/dri/renderD128", "/dev/kfd"]
        assert found["whole"] == ["/dev/dri/card9", "/dev/dri/renderD136", "/dev/kfd"]
        await create_plain_pod(cluster, "plain", {"amd.com/gpu": 2})
        await cluster.wait_phase("plain", "Succeeded")
