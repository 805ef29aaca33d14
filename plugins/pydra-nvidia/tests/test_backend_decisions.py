"""How a claim's call becomes an entry of the journal: one claim at a time, whatever was written before."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pydra import AllocatedDevice, Claim, DeviceInUse
from pydra_nvidia.backend import NvidiaBackend
from pydra_nvidia.composition import open_backend
from pydra_nvidia.hardware import Placement
from pydra_nvidia.journal import Journal
from pydra_nvidia.simulation.install import open_simulation
from pydra_nvidia.steps import CreateMig, Entry, MigModeOn

SMALL, OTHER = "gpu-0-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-19-5"


def claim(uid: str, *devices: str) -> Claim:
    allocated = (AllocatedDevice(request=f"r{n}", pool="node", device=one) for n, one in enumerate(devices))
    return Claim(uid=uid, namespace="default", name=f"claim-{uid}", devices=tuple(allocated))


def wait_locked(lock: threading.Lock) -> None:
    deadline = time.monotonic() + 20
    while not lock.locked():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Node:
    """The backend over a simulated HGX H100, and the files that it keeps."""

    def __init__(self, backend: NvidiaBackend, state: Path) -> None:
        self.backend = backend
        self.claims = state / "run" / "claims"
        self.journal = Journal(str(self.claims))
        self.simulation = open_simulation("hgx-h100", str(state))

    def starts(self) -> list[int]:
        """Where GPU instances begin on the GPU with minor number 0."""
        view = self.simulation.machine.read()
        (uuid,) = [uuid for uuid, board in view.boards.items() if board.minor == 0]
        return sorted(one.start for one in view.state.gpus[uuid].instances)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    variables = {"PYDRA_NVIDIA_SCENARIO": "hgx-h100", "PYDRA_NVIDIA_STATE": str(tmp_path)}
    async with open_backend(variables) as backend:
        await backend.discover()
        yield Node(backend, tmp_path)


async def test_eight_gpus_of_one_claim_are_prepared_as_each_would_be(node: Node) -> None:
    names = [f"gpu-{minor}" for minor in range(8)]
    together = await node.backend.prepare(claim("all", *names))
    await node.backend.unprepare(claim("all", *names), together)
    assert [one.device for one in together] == names
    for one in together:
        (alone,) = await node.backend.prepare(claim(one.device, one.device))
        assert alone.edits == one.edits


async def test_what_was_begun_for_the_claim_and_is_not_what_it_has_now_is_undone(node: Node) -> None:
    await node.backend.prepare(claim("one", OTHER))
    before = node.journal.read("one")
    assert before is not None
    assert node.starts() == [5]
    await node.backend.prepare(claim("one", SMALL))
    assert node.starts() == [0]
    after = node.journal.read("one")
    assert after is not None
    assert [step.placement for step in after.steps if isinstance(step, CreateMig)] == [Placement(0, 1)]
    assert [type(step) for step in after.steps] == [MigModeOn, CreateMig]


async def test_what_is_written_already_is_not_written_again(node: Node) -> None:
    await node.backend.prepare(claim("one", SMALL))
    before = (node.claims / "one.json").stat().st_ino
    await node.backend.prepare(claim("one", SMALL))
    assert (node.claims / "one.json").stat().st_ino == before


async def test_the_thread_of_a_cancelled_call_decides_before_the_next_claim_does(node: Node) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def hold(_nvml: object) -> None:
        reached.set()
        assert go_on.wait(20)

    held = asyncio.create_task(node.backend._session.run(hold))
    await asyncio.to_thread(reached.wait, 20)
    cancelled = asyncio.create_task(node.backend.prepare(claim("first", "gpu-0")))
    await asyncio.to_thread(wait_locked, node.backend._planning)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    second = asyncio.create_task(node.backend.prepare(claim("second", "gpu-0")))
    await asyncio.sleep(0)
    go_on.set()
    await held
    with pytest.raises(DeviceInUse):
        await second
    entries: dict[str, Entry] = dict(node.journal.entries())
    assert list(entries) == ["first"]
