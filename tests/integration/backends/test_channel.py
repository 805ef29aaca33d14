"""The connection between agent and backend at its edges: after the end, and before a call's first step."""

from __future__ import annotations

import asyncio
import socket

import anyio
import anyio.lowlevel

from pydra.backends.channel import Channel
from pydra.backends.faults import FaultKind
from pydra.backends.serving import CallServer
from pydra.backends.wire import Call, Cancel, Failure, Heartbeat, Method, ToAgent, parse_to_agent
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
    channel.send(Heartbeat())
    channel.finish()
    assert theirs.recv(1) == b""
    theirs.close()
    channel.close()
    await channel.wait_closed()


async def test_a_call_that_is_cancelled_before_its_first_step_is_answered() -> None:
    sent: list[ToAgent] = []
    async with asyncio.TaskGroup() as tasks:
        server = CallServer(Rested(), {}, sent.append, tasks)
        server.receive(Call(id=7, method=Method.DISCOVER))
        server.receive(Cancel(id=7))
    with anyio.fail_after(5):
        while not sent:
            await anyio.lowlevel.checkpoint()
    (answer,) = sent
    assert isinstance(answer, Failure)
    assert (answer.id, answer.fault.kind) == (7, FaultKind.CANCELLED)
