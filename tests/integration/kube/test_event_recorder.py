"""The event recorder: never in the way, never silent about what it could not say."""

from __future__ import annotations

from typing import Any, cast

import anyio

from pydra.errors import KubeError, NotFound, Unavailable
from pydra.kube.event_recorder import EventRecorder, EventRequest, Subject


class Desk:
    """A client that keeps the Events that it is given to write, or refuses them."""

    def __init__(self, refusal: KubeError | None = None) -> None:
        self.created: list[dict[str, Any]] = []
        self.refusal = refusal

    async def create(self, *event: Any, namespace: str) -> None:
        assert namespace == "default"
        if self.refusal is not None:
            raise self.refusal
        self.created.append(event[-1])

    patch = create


def request(number: int = 0) -> EventRequest:
    subject = Subject(api_version="v1", kind="Node", name=f"node-{number}")
    return EventRequest(subject=subject, reason="BackendDied", note="SIGSEGV", action="Prepare")


async def results(desk: Desk, requests: int, expected: int) -> list[str]:
    written: list[str] = []
    recorder = EventRecorder(cast("Any", desk), controller="test", instance="n", report=written.append)
    for number in range(requests):
        recorder.record(request(number))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.run)
        with anyio.fail_after(30):
            while len(written) < expected:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    return written


async def test_what_was_recorded_before_the_start_is_sent_afterwards() -> None:
    desk = Desk()
    assert await results(desk, requests=2, expected=2) == ["ok", "ok"]
    assert [body["regarding"]["name"] for body in desk.created] == ["node-0", "node-1"]


async def test_an_api_server_that_refuses_costs_the_event_and_nothing_else() -> None:
    assert await results(Desk(Unavailable("down")), requests=2, expected=2) == ["failed", "failed"]


async def test_an_event_that_was_refused_is_created_when_it_is_repeated() -> None:
    """An API server that has too much to do refuses Events first, and a claim is tried again each minute."""
    times, desk, written = [0.0], Desk(Unavailable("too many requests", status=429)), list[str]()
    recorder = EventRecorder(cast("Any", desk), controller="test", instance="n", report=written.append, clock=times.pop)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.run)
        for refusal, now in (
            (desk.refusal, 0.0),
            (None, 60.0),
            (desk.refusal, 90.0),
            (None, 105.0),
            (NotFound("expired"), 120.0),
            (None, 180.0),
        ):
            desk.refusal, times[:] = refusal, [now]
            recorder.record(request())
            with anyio.fail_after(30):
                while times:
                    await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    recorder.record(request())
    assert written == ["failed", "ok", "failed", "ok", "gone", "ok", "dropped"]
    assert [body.get("note") for body in desk.created] == ["SIGSEGV", None, "SIGSEGV"], (
        "a series of the Event that is there, and of no other"
    )


async def test_an_event_for_a_namespace_that_is_gone_is_not_a_failure() -> None:
    assert await results(Desk(NotFound("no such namespace", status=404)), requests=1, expected=1) == ["gone"]


async def test_more_trouble_than_can_be_written_is_dropped_and_counted() -> None:
    desk = Desk()
    written = await results(desk, requests=300, expected=300)
    assert written.count("dropped") == 300 - 256
    assert len(desk.created) == 256
