"""Fabric Manager is restarted under claims: it gets the list of what they have, and what it has lost is reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

Stage = Callable[..., AbstractAsyncContextManager[Any]]
Ask = Callable[..., dict[str, Any]]
GPUS = [{"model": "h100-80gb", "count": 4}]
PAIR = [{"requests": ["it"], "matchAttribute": "gpu.nvidia.com/partition2"}]


def shared(first: int = 0) -> dict[str, Any]:
    return {"host": {}, "driver": {"fabricMode": 1, "fabricFirst": first}}


def rewrite(scene: Any, scenario: dict[str, Any]) -> None:
    path = Path(scene.machine.scenario.path)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"gpus": GPUS, **scenario}))
    draft.replace(path)


def active(scene: Any) -> list[int]:
    found: list[int] = scene.machine.read().state.fabric
    return found


async def test_a_restarted_fabric_manager_gets_the_list_of_partitions_that_claims_have(
    stage: Stage, ask_for: Ask
) -> None:
    async with stage(GPUS, scenario=shared(), vfio=True, fabric_partitions=True) as scene:
        await scene.run("pods", ask_for("gpu", count=2), constraints=PAIR)
        before = active(scene)
        scene.inject.restart_fabric_manager()
        await scene.until(lambda: is_active(scene, before), lambda: f"{before} are active: {active(scene)}")
        await scene.tainted()
        scene.inject.restart_fabric_manager()
        await scene.run("guests", ask_for("vfio", count=2), constraints=PAIR)
        assert len(active(scene)) == 2
        assert set(before) < set(active(scene))
        scene.inject.restart_fabric_manager()
        await scene.end("pods", "guests")
        await scene.undone()


async def is_active(scene: Any, wanted: list[int]) -> bool:
    return active(scene) == wanted


async def test_a_partition_that_a_restart_deactivated_is_reported_until_the_claim_ends(
    stage: Stage, ask_for: Ask
) -> None:
    async with stage(GPUS, scenario=shared(), vfio=True, fabric_partitions=True) as scene:
        given = await scene.run("pods", ask_for("gpu", count=2), constraints=PAIR)
        scene.inject.restart_fabric_manager(cold=True)
        await scene.tainted(*given)
        (key,) = {taint["key"] for one in (await scene.devices()).values() for taint in one.get("taints", ())}
        assert key == "gpu.nvidia.com/partition-gone"
        await scene.end("pods")
        await scene.tainted()
        await scene.run("again", ask_for("gpu", count=2), constraints=PAIR)
        assert len(active(scene)) == 1
        await scene.end("again")


async def test_ending_a_claim_leaves_a_partition_alone_that_has_its_id_by_now(stage: Stage, ask_for: Ask) -> None:
    async with stage(GPUS, scenario=shared(), vfio=True, fabric_partitions=True) as scene:
        await scene.run("one", ask_for("gpu", count=2), constraints=PAIR)
        last = await scene.run("two", ask_for("gpu", count=2), constraints=PAIR)
        await scene.end("one")
        rewrite(scene, shared(1))
        scene.inject.restart_fabric_manager(cold=True)
        await scene.tainted(*last)
        await scene.run("three", ask_for("gpu", count=2), constraints=PAIR)
        before = active(scene)
        assert len(before) == 1
        await scene.end("two")
        await scene.tainted()
        assert active(scene) == before
        await scene.end("three")
        assert active(scene) == []
        rewrite(scene, shared())
