"""Which claims the devices of a node can have at the same time."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from pydra import Capacity, CounterConsumption, CounterSet, Device, DeviceInUse, UnknownDevice
from pydra.claims.device_use import PublishedPool
from tests.integration.claims.node import DRIVER, POOL, Node, ref


async def test_a_device_that_is_not_published_is_refused(node: Node) -> None:
    node.api.allocate("a", "gpu-7")
    node.published = {"gpu-0"}
    async with node.running() as agent:
        (outcome,) = await agent.prepare("a")
        assert isinstance(outcome, UnknownDevice)
        assert f"device gpu-7 of pool {POOL} is not published" in str(outcome)
        assert agent.hardware.calls == []


async def test_a_device_is_refused_while_another_claim_holds_it(node: Node) -> None:
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-0")
    node.api.allocate("c", "gpu-0", admin=True)
    async with node.running() as agent:
        await agent.prepare("a")
        other, admin = await agent.prepare("b", "c")
        assert isinstance(other, DeviceInUse)
        assert "claim ns/claim-a" in str(other)
        assert isinstance(admin, tuple)
        assert await agent.unprepare("a") == [None]
        assert isinstance((await agent.prepare("b"))[0], tuple)


@pytest.mark.parametrize(
    ("before", "groups", "why"),
    [
        ({}, {}, "the counter memory of gpu is used up"),
        ({"memory": 4}, {}, "the counter memory of gpu is used up"),
        ({"memory": 5}, {"gpu-0": ("mig",), "gpu-1": ("vgpu",)}, "by their compatibility groups"),
    ],
)
async def test_a_held_device_that_is_published_with_other_counters_or_groups_consumes_these(
    node: Node, before: dict[str, int], groups: dict[str, tuple[str, ...]], why: str
) -> None:
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-1")
    async with node.running() as agent:
        agent.preparer.set_published({POOL: _publish({"gpu-0": before})})
        await agent.prepare("a")
        now = {"gpu-0": {"memory": 5 if groups else 8}, "gpu-1": {"memory": 5}}
        agent.preparer.set_published({POOL: _publish(now, groups)})
        (refused,) = await agent.prepare("b")
        assert isinstance(refused, DeviceInUse)
        assert why in str(refused)
        await agent.unprepare("a")
        assert isinstance((await agent.prepare("b"))[0], tuple)


def _publish(consumed: Mapping[str, Mapping[str, int]], groups: Mapping[str, tuple[str, ...]] = {}) -> PublishedPool:
    devices = {}
    for name, counters in consumed.items():
        one = CounterConsumption(counter_set="gpu", counters=counters, compatibility_groups=groups.get(name, ()))
        devices[name] = Device(name=name, consumes_counters=(one,) if counters else ())
    return PublishedPool(devices=devices, counter_sets=(CounterSet(name="gpu", counters={"memory": 10}),))


async def test_claims_with_shares_of_their_own_hold_one_device(node: Node) -> None:
    node.api.allocate("a", "gpu-0", share="s1")
    node.api.allocate("b", "gpu-0", share="s2")
    node.api.allocate("c", "gpu-0", share="s2")
    async with node.running() as agent:
        one, two, same = await agent.prepare("a", "b", "c")
        assert isinstance(one, tuple)
        assert isinstance(two, tuple)
        assert isinstance(same, DeviceInUse)


async def test_a_share_has_the_published_name_of_its_capacity_whichever_form_the_scheduler_writes(node: Node) -> None:
    device = Device(name="gpu-0", capacity={f"{DRIVER}/memory": Capacity("8Gi")}, allow_multiple_allocations=True)
    for uid, written in (("a", "memory"), ("b", f"{DRIVER}/memory")):
        node.api.allocate(uid, "gpu-0", share=uid)
        results = node.api.claims[uid]["status"]["allocation"]["devices"]["results"]
        results[0]["consumedCapacity"] = {written: "1Gi"}
    async with node.running() as agent:
        agent.preparer.set_published({POOL: PublishedPool(devices={"gpu-0": device})})
        prepared = await agent.prepare("a", "b")
        records = [json.loads(path.read_text())["record"]["claim"] for path in (node.root / "records").glob("*.json")]
        assert [one["devices"][0]["consumed_capacity"] for one in records] == [{f"{DRIVER}/memory": "1Gi"}] * 2
    async with node.running() as agent:
        assert await agent.prepare("a", "b") == prepared, "also while the names are not known yet"
        assert agent.hardware.calls == []


async def test_devices_that_are_published_while_a_record_is_written_take_none_from_its_claim(tmp_path: Path) -> None:
    node = Node(tmp_path, durable=True)
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-0")
    loop, writes = asyncio.get_running_loop(), asyncio.Event()
    published = threading.Event()

    def wait(effect: str) -> None:
        if effect == "records: create":
            loop.call_soon_threadsafe(writes.set)
            assert published.wait(20)

    node.record_file("a").parent.mkdir()
    node.record_file("a").write_text("{")
    async with node.running() as agent:
        node.step = wait
        prepared = agent.preparer.prepare(ref("a"))
        await writes.wait()
        agent.preparer.set_published({POOL: _publish({"gpu-0": {}})})
        published.set()
        assert isinstance(await prepared, tuple)
        assert isinstance((await agent.prepare("b"))[0], DeviceInUse)
