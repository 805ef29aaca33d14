"""A node as its users see it: the scheduler chooses the modes of a simulated machine, with the real agent between."""

from __future__ import annotations

import os
from pathlib import Path

from amd_node import run_scene
from tests.forked import run_forked

MANIFEST = Path(__file__).parents[2] / "examples" / "slice-and-gpu.yaml"


async def test_the_scheduler_chooses_each_gpus_mode_until_its_claims_have_ended_and_sees_when_a_gpu_is_lost(
    tmp_path: Path,
) -> None:
    async with run_scene(tmp_path) as node, node.agent(environ={"PYDRA_AMD_POLL_PERIOD": "0.2"}):
        node.fault("0000:05:00.0", *["EBUSY"] * 2)
        await node.run("waits", "cpx", count=8)
        assert node.errors() == [], "it is waited for in the call"
        await node.end_pods("waits")
        assert await node.run("whole", "spx") == ["renderD128"]
        assert await node.run("eighth", "cpx") == ["renderD136"]
        assert await node.run("quarters", "qpx", count=3) == ["renderD144", "renderD145", "renderD146"]
        assert await node.run("next", "cpx", count=7) == [f"renderD{137 + index}" for index in range(7)]
        assert node.modes() == ["SPX", "CPX", "QPX", *["SPX"] * 5]
        await node.run("halves", "dpx", count=10)
        await node.ask("late", "spx")
        assert "cannot allocate all claims" in await node.pending("late")
        await node.end_pods("eighth")
        assert node.modes()[1] == "CPX"
        await node.end_pods("next")
        assert node.modes()[:2] == ["SPX", "SPX"]

        async def is_tainted() -> bool:
            found = await node.taints()
            lost = found.get("gpu.amd.com/gpu-lost", set())
            return len(lost) == 1 + 2 + 4 + 8 and all(name.startswith("gpu-9-136") for name in lost)

        node.lose("0000:27:00.0")
        await node.until(is_tainted, "the lost GPU's devices are tainted")


def test_the_example_shows_a_slice_and_a_whole_gpu_side_by_side_and_the_mode_that_changes_and_changes_back() -> None:
    arguments = ["dev", "--backend", "amd", "--scenario", "mi300x-8", "--once", "-f", str(MANIFEST)]
    done = run_forked("pydra.cli.tool", arguments, {**os.environ, "PYDRA_AMD_PARTITIONING": "compute"})
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "published: 120 devices" in text, "eight GPUs, each with 14 partitions in three other modes"
    to, back = (text.index(f"changed from {change}") for change in ("spx_nps1 to cpx_nps1", "cpx_nps1 to spx_nps1"))
    both_run = max(text.index(f"running: pod default/{pod}") for pod in ("slice", "gpu"))
    assert to < text.index("running: pod default/slice") <= both_run < min(text.index("ended: pod"), back)
