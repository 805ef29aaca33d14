"""The connection between agent and backend at its edges: after the end, and before a call's first step."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading

import anyio
import anyio.lowlevel
import msgspec
import pytest

from pydra.backends.child.calls import CallServer, CallThreads
from pydra.backends.child.claim_values import BackendTypes
from pydra.backends.error_codec import FaultKind
from pydra.backends.wire import (
    FRAMES_PER_PERIOD,
    Call,
    Cancel,
    Channel,
    Failure,
    LogLine,
    Method,
    Pong,
    Reply,
    ToAgent,
    Waiting,
    WireError,
    build_frame,
    parse_to_agent,
)
from pydra.claim import Claim, PreparedDevice
from pydra.devices import Inventory


class Rested:
    """A backend that never gets a turn."""

    async def discover(self) -> Inventory:
        raise AssertionError("cancelled before its first step")


async def test_what_is_sent_after_the_end_is_dropped() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    channel: Channel[ToAgent] = Channel(parse_to_agent, lambda message: None, lambda error: None)
    await channel.open(ours)
    channel.finish()
    channel.send(Pong())
    channel.finish()
    assert theirs.recv(1) == b""
    theirs.close()
    channel.close()
    await channel.wait_closed()


async def test_of_a_flood_of_messages_a_bounded_number_is_handled_at_once_and_none_is_lost() -> None:
    handled: list[ToAgent] = []
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    channel: Channel[ToAgent] = Channel(parse_to_agent, handled.append, lambda error: None)
    await channel.open(ours)
    theirs.sendall(bytes(build_frame(Pong())) * (FRAMES_PER_PERIOD + 10))
    with anyio.fail_after(30):
        while len(handled) < FRAMES_PER_PERIOD:
            await anyio.lowlevel.checkpoint()
    assert len(handled) == FRAMES_PER_PERIOD
    with anyio.fail_after(30):
        while len(handled) < FRAMES_PER_PERIOD + 10:
            await anyio.sleep(0.001)
    theirs.close()
    channel.close()
    await channel.wait_closed()


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (
            bytes(build_frame(LogLine(level=20, logger="x", message="cafe"))).replace(b"cafe", b"caf\xe9"),
            "can't decode",
        ),
        (bytes(build_frame(Reply(id=1, result=msgspec.Raw(b"\x91" * 5000 + b"\xc0")))), "recursion"),
    ],
    ids=["text that is not UTF-8", "nested too deep"],
)
async def test_what_cannot_be_decoded_ends_the_connection(frame: bytes, problem: str) -> None:
    ends: list[WireError | None] = []
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    channel: Channel[ToAgent] = Channel(parse_to_agent, lambda message: None, ends.append)
    await channel.open(ours)
    theirs.sendall(frame)
    with anyio.fail_after(30):
        while not ends:
            await anyio.sleep(0.001)
    assert "bytes is not a message: " in str(ends[0])
    assert problem in str(ends[0])
    theirs.close()
    channel.close()
    await channel.wait_closed()


async def test_a_call_that_is_cancelled_before_its_first_step_is_answered() -> None:
    sent: list[ToAgent] = []
    async with asyncio.TaskGroup() as tasks:
        server = CallServer(Rested(), BackendTypes(configs={}), sent.append, tasks)
        server.receive(Call(id=7, method=Method.DISCOVER))
        server.receive(Cancel(id=7))
    with anyio.fail_after(30):
        while not sent:
            await anyio.lowlevel.checkpoint()
    (answer,) = sent
    assert isinstance(answer, Failure)
    assert (answer.id, answer.fault.kind) == (7, FaultKind.CANCELLED)


class Threaded:
    """A backend whose prepare is in a thread until `gate` opens; `done` is what happened in which order."""

    def __init__(self) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        self.done: list[str] = []

    async def prepare(self, claim: Claim, /) -> list[PreparedDevice]:
        await asyncio.to_thread(self._work, claim.uid)
        return []

    async def unprepare(self, claim: Claim, prepared: object, /) -> None:
        self.done.append(f"unprepare {claim.uid}")

    def _work(self, uid: str) -> None:
        self.begun.set()
        self.gate.wait(10)
        self.done.append(f"prepare {uid}")


async def test_a_claims_next_call_waits_for_the_threads_of_its_cancelled_ones_and_no_other_claims_does() -> None:
    sent: list[ToAgent] = []
    backend = Threaded()
    one, other = (Claim(uid=uid, namespace="ns", name="c", devices=()) for uid in ("one", "other"))
    asyncio.get_running_loop().set_default_executor(CallThreads())
    async with asyncio.TaskGroup() as tasks:
        server = CallServer(backend, BackendTypes(configs={}), sent.append, tasks)
        server.receive(Call(id=1, method=Method.PREPARE, claim=one))
        with anyio.fail_after(30):
            while not backend.begun.is_set():
                await asyncio.sleep(0.001)
        server.receive(Cancel(id=1))
        server.receive(Call(id=2, method=Method.PREPARE, claim=one))
        server.receive(Cancel(id=2))
        server.receive(Call(id=3, method=Method.UNPREPARE, claim=one))
        server.receive(Call(id=4, method=Method.UNPREPARE, claim=other))
        with anyio.fail_after(30):
            while len(sent) < 2:
                await asyncio.sleep(0.001)
        assert backend.done == ["unprepare other"]
        backend.gate.set()
    assert backend.done == ["unprepare other", "prepare one", "unprepare one"]
    assert {one.id: type(one) for one in sent if isinstance(one, Reply | Failure)} == {
        1: Failure,
        2: Failure,
        3: Reply,
        4: Reply,
    }


async def test_the_error_with_which_a_thread_of_a_cancelled_call_ends_is_not_reported_as_forgotten() -> None:
    class Overdue(Threaded):
        def _work(self, uid: str) -> None:
            super()._work(uid)
            raise TimeoutError("the vendor's tool has not answered")

    loop = asyncio.get_running_loop()
    sent: list[ToAgent] = []
    reported: list[str] = []
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    loop.set_default_executor(CallThreads())
    backend = Overdue()
    async with asyncio.TaskGroup() as tasks:
        server = CallServer(backend, BackendTypes(configs={}), sent.append, tasks)
        claim = Claim(uid="one", namespace="ns", name="c", devices=())
        server.receive(Call(id=1, method=Method.PREPARE, claim=claim))
        with anyio.fail_after(30):
            while not backend.begun.is_set():
                await asyncio.sleep(0.001)
        server.receive(Cancel(id=1))
        with anyio.fail_after(30):
            while not sent:  # where the cancelled call waits
                await asyncio.sleep(0.001)
        backend.gate.set()
    gc.collect()
    assert [type(one) for one in sent] == [Waiting, Failure]
    assert reported == []
