"""What is done where a process that uses the GPU is not seen: nothing, or for a limited time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pydra import LeftBehind
from pydra_nvidia.settings import Settings
from pydra_nvidia.vfio.apply_passthrough import BindVfioApplier
from pydra_nvidia.waiting import time_for
from pydra_pci import DeviceBusy, KernelWaits, KernelWork, ProcessesUnseen

NODE, CONTAINER = "pid:[4026531836]", "pid:[4026532999]"
UNBIND = 2


def see(node: Any, **namespaces: str) -> None:
    """The pid namespaces that the links of these processes name."""
    for process, namespace in namespaces.items():
        folder = node.root / "proc" / {"first": "1", "own": "self"}[process] / "ns"
        folder.mkdir(parents=True)
        (folder / "pid").symlink_to(namespace)


async def load(_module: str) -> None:
    """All modules are loaded."""


def make_applier(node: Any, *, limit: float = 15, deadline: float = 0.05) -> BindVfioApplier:
    settings = Settings(vfio=True, vfio_idle_deadline=deadline)
    return BindVfioApplier(node.tree, settings, node.session, load, KernelWork(limit))


@pytest.mark.parametrize(
    "namespaces",
    [{"first": CONTAINER, "own": CONTAINER}, {"own": CONTAINER}],
    ids=["the container's first process", "the first process may not be asked"],
)
async def test_a_gpu_stays_with_its_driver_where_only_the_containers_processes_are_seen(
    node: Any, namespaces: dict[str, str]
) -> None:
    see(node, **namespaces)
    before = node.picture()
    with pytest.raises(ProcessesUnseen, match="hostPID"):
        await make_applier(node).apply(node.step(), None, node.entry(node.step()))
    assert (node.picture(), node.tree.writes) == (before, [])


@pytest.mark.parametrize(
    "namespaces", [{"first": NODE, "own": NODE}, {"first": NODE, "own": CONTAINER}], ids=["here", "by a mount of /proc"]
)
async def test_where_all_processes_are_seen_a_gpu_can_be_taken(node: Any, namespaces: dict[str, str]) -> None:
    see(node, **namespaces)
    await make_applier(node).apply(node.step(), None, node.entry(node.step()))
    assert node.driver() == "vfio-pci"


@pytest.fixture
def free(node: Any) -> Iterator[threading.Event]:
    """The kernel takes the GPU from its driver only when this is set."""
    event = threading.Event()

    def wait(number: int) -> None:
        if number == UNBIND:
            event.wait(30)

    node.tree.before = wait
    yield event
    event.set()


async def test_a_kernel_that_waits_is_left_to_it_and_keeps_nobody_from_nvml(node: Any, free: threading.Event) -> None:
    applier, step = make_applier(node, limit=0.2), node.step()
    with pytest.raises(KernelWaits, match=r"has not moved 0000:53:00.0 from one driver to another after 0.2 s"):
        await applier.apply(step, None, node.entry(step))
    assert await node.session.run(lambda nvml: nvml.call("nvmlDeviceGetCount")) == 2
    writes = len(node.tree.writes)
    for again in (applier.apply, applier.undo):
        with pytest.raises(LeftBehind, match="still at work"):
            await again(step, None, node.entry(step))
    assert len(node.tree.writes) == writes, "nothing else was begun"
    await asyncio.to_thread(node.session.close)
    free.set()
    end = time.monotonic() + 20
    while node.driver() != "vfio-pci":
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_what_the_kernel_did_late_is_undone_by_the_next_call(node: Any, free: threading.Event) -> None:
    before, applier, step = node.picture(), make_applier(node, limit=0.2), node.step()
    with pytest.raises(KernelWaits):
        await applier.apply(step, None, node.entry(step))
    free.set()
    async with asyncio.timeout(20):
        while True:
            try:
                await applier.undo(step, None, node.entry(step))
                break
            except KernelWaits:
                await asyncio.sleep(0.01)
    assert node.picture() == before


async def test_all_functions_of_a_claim_wait_for_the_same_seconds(node: Any) -> None:
    node.run(7, "dcgm", "/dev/nvidia0", "/dev/nvidia1")
    applier, steps = make_applier(node, deadline=60), (node.step(), node.step(address=node.OTHER))
    with time_for(0.2):
        for step in steps:
            with pytest.raises(DeviceBusy, match=r"is still in use after 0(\.\d+)? s, by dcgm"):
                await applier.apply(step, None, node.entry(*steps))
