"""What admins look at: the checks that a backend passes, and the numbers of its hardware."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conftest import Scene

Stage = Callable[..., "AbstractAsyncContextManager[Scene]"]
Ask = Callable[..., Any]


def test_the_backend_keeps_its_contract(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pydra.cli.tool", "check", "nvidia"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "PYDRA_NVIDIA_SCENARIO": "mixed", "PYDRA_NVIDIA_STATE": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert list((tmp_path / "run").rglob("claims/*.json*")) == []


async def test_numbers_of_every_gpu_and_partition_are_served(stage: Stage, ask_for: Ask) -> None:
    machine = [{"model": "h100-80gb", "minors": [0]}, {"model": "t4", "minors": [1]}]
    async with stage(machine, dynamic_mig=True) as scene:
        await scene.run("part", ask_for("mig", profile="3g.40gb"))
        (part,) = await scene.allocated("part")
        scene.inject.measure(1, temperature=61, power=45_500)
        scene.inject.count(1, ecc_corrected_volatile=7)
        found: dict[str, float] = {}

        async def served() -> bool:
            _, text = await scene.agent.get("/metrics")
            found.clear()
            for line in text.splitlines():
                if line.startswith("pydra_nvidia_"):
                    name, _, value = line.rpartition(" ")
                    found[name] = float(value)
            counted = any(value == 7 for name, value in found.items() if "_ecc_errors_total{" in name)
            return counted and any(f'device="{part}"' in name for name in found)

        await scene.until(served, "the partition has numbers, and the last count is among them")
        for name in found:
            assert re.fullmatch(r'pydra_nvidia_[a-z][a-z0-9_]*(\{([a-z_]+="[^"]*",?)+\})?', name), name
        of_t4 = {name: value for name, value in found.items() if 'device="gpu-1"' in name}
        families = {name.partition("{")[0].removeprefix("pydra_nvidia_") for name in of_t4}
        assert {
            "memory_used_bytes",
            "utilization_ratio",
            "temperature_celsius",
            "power_watts",
            "ecc_errors_total",
            "pcie_replays_total",
        } <= families
        assert value_of(of_t4, "temperature_celsius") == 61
        assert value_of(of_t4, "power_watts") == 45.5
        assert value_of(of_t4, "ecc_errors_total", 'error="corrected"', 'counter="volatile"') == 7
        assert value_of(found, "memory_free_bytes", f'device="{part}"') > 30 << 30
        assert value_of(found, "nvlink_links_up", 'device="gpu-0"') >= 0
        prepared = {
            kind: value_of(found, "prepared_devices", f'device_type="{kind}"') for kind in ("gpu", "mig", "vfio")
        }
        assert prepared == {"gpu": 0, "mig": 1, "vfio": 0}


def value_of(found: dict[str, float], family: str, *labels: str) -> float:
    """The only number of this family with these labels."""
    (value,) = [
        value
        for name, value in found.items()
        if name.startswith(f"pydra_nvidia_{family}{{") and all(label in name for label in labels)
    ]
    return value
