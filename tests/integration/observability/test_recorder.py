"""The event recorder: never in the way, never silent about what it could not say."""

from __future__ import annotations

from typing import Any

import anyio

from pydra.errors import KubeError, NotFound, Unavailable
from pydra.observability.events import Create, EventBook, EventRecorder, Notice, Repeat, Subject


class Desk:
    """Keeps the Events that it is given to write, or refuses them."""

    def __init__(self, refusal: KubeError | None = None) -> None:
        self.created: list[dict[str, Any]] = []
        self.refusal = refusal

    async def write(self, event: Create | Repeat) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.created.append(event.body)


def notice(number: int = 0) -> Notice:
    subject = Subject(api_version="v1", kind="Node", name=f"node-{number}")
    return Notice(subject=subject, reason="BackendDied", note="SIGSEGV", action="Prepare")


async def results(desk: Desk, notices: int, expected: int) -> list[str]:
    said: list[str] = []
    book = EventBook(controller="pydra-agent", instance="pydra-agent-n", default_namespace="default")
    recorder = EventRecorder(desk.write, book, report=said.append)
    for number in range(notices):
        recorder.record(notice(number))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.run)
        with anyio.fail_after(30):
            while len(said) < expected:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    return said


async def test_what_was_recorded_before_the_start_is_sent_afterwards() -> None:
    desk = Desk()
    assert await results(desk, notices=2, expected=2) == ["ok", "ok"]
    assert [body["regarding"]["name"] for body in desk.created] == ["node-0", "node-1"]


async def test_an_api_server_that_refuses_costs_the_event_and_nothing_else() -> None:
    assert await results(Desk(Unavailable("down")), notices=2, expected=2) == ["failed", "failed"]


async def test_an_event_for_a_namespace_that_is_gone_is_not_a_failure() -> None:
    assert await results(Desk(NotFound("no such namespace", status=404)), notices=1, expected=1) == ["gone"]


async def test_more_trouble_than_can_be_told_is_dropped_and_counted() -> None:
    desk = Desk()
    said = await results(desk, notices=300, expected=300)
    assert said.count("dropped") == 300 - 256
    assert len(desk.created) == 256
