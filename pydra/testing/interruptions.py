"""Conformance checks that interrupt a backend's coroutines wherever they wait."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator

import anyio

from pydra.backends.child.conformance_main import Interruption, Order
from pydra.backends.wire import Method
from pydra.errors import BackendDied, BackendTimeout, PydraError
from pydra.testing.session import Session

POINTS = 8
"""At how many of its waits a coroutine is interrupted at most: each crash costs a process."""


def choose_points(waits: int) -> list[int]:
    """Return which of so many waits to interrupt, from 1: all, or the first, the last and some between."""
    if waits <= POINTS:
        return list(range(1, waits + 1))
    return [1 + place * (waits - 1) // (POINTS - 1) for place in range(POINTS)]


def list_orders(session: Session, interruption: Interruption, *methods: Method) -> Iterator[tuple[Order, str]]:
    """Yield the orders that interrupt these coroutines, each with words that say where.

    `apply` and `undo` are interrupted in each step of a plan, and killed before it too.
    """
    for method in methods:
        is_step = method in (Method.APPLY, Method.UNDO)
        waits = session.waits(method)
        before = [0] if is_step and interruption is Interruption.KILL else []
        for skip in range(session.steps if is_step else 1):
            for at in [*before, *choose_points(waits)]:
                where = f"{method.value}" + (f" of step {skip + 1} of {session.steps}" if is_step else "")
                where = f"at wait {at} of {waits} in {where}" if at else f"before {where}"
                yield Order(method=method, interruption=interruption, at=at, skip=skip), where


async def crash_in_prepare(session: Session) -> list[str]:
    """Kill the process in each step and at the waits of prepare, and after its end; nothing is remembered then."""
    problems = []
    for number, (order, where) in enumerate(list_orders(session, Interruption.KILL, Method.APPLY, Method.PREPARE)):
        claim = session.claim(f"crash-{number}")
        with session.ordered(order):
            try:
                prepared = await session.hold(claim)
            except BackendDied:
                prepared = ()
        problems += await _try(f"after a crash {where}", session.release(claim, prepared))
    claim = session.claim("two")
    await session.hold(claim)
    await session.crash()
    problems += await _try("after a crash when prepare had ended", session.release(claim))
    return problems or await _try("the next claim, after crashes", session.use("after-crash"))


async def crash_in_unprepare(session: Session) -> list[str]:
    """Kill the process at the waits of unprepare and in the undoing of each step; both are called again."""
    problems = []
    for number, (order, where) in enumerate(list_orders(session, Interruption.KILL, Method.UNPREPARE, Method.UNDO)):
        claim = session.claim(f"undo-{number}")
        prepared = await session.hold(claim)
        with session.ordered(order):
            try:
                await session.release(claim, prepared)
            except BackendDied:
                problems += await _try(f"after a crash {where}", session.release(claim, prepared))
    return problems or await _try("the next claim, after crashes", session.use("after-undo"))


async def crash_in_restore(session: Session) -> list[str]:
    """Kill the process at the waits of restore while a claim is held, which must still be there."""
    claim = session.claim("restored")
    prepared = await session.hold(claim)
    await session.crash()
    again = await session.hold(claim)
    for at in choose_points(session.waits(Method.RESTORE)):
        with session.ordered(Order(method=Method.RESTORE, interruption=Interruption.KILL, at=at)):
            await session.crash()
            again = await session.hold(claim)
    await session.release(claim, prepared)
    return [] if again == prepared else [f"prepare answered {prepared}, and {again} after crashes in restore"]


async def cancel_everywhere(session: Session, limit: float) -> tuple[list[str], list[str]]:
    """Cancel prepare and unprepare, and the steps, at their waits.

    Return what could not be undone afterwards, and what went on for longer than `limit` seconds.
    """
    problems, late = [], []
    for number, (order, where) in enumerate(list_orders(session, Interruption.CANCEL, Method.APPLY, Method.PREPARE)):
        claim = session.claim(f"cancel-{number}")
        with session.ordered(order):
            late += await _time_cancelled(session, order.method, session.hold(claim), limit)
        held = session.records.get(claim.uid)
        undo = session.release(claim, held.prepared if held is not None else ())
        problems += await _try(f"after a call was cancelled {where}", undo)
    for number, (order, where) in enumerate(list_orders(session, Interruption.CANCEL, Method.UNPREPARE, Method.UNDO)):
        claim = session.claim(f"stay-{number}")
        prepared = await session.hold(claim)
        with session.ordered(order):
            late += await _time_cancelled(session, order.method, session.release(claim, prepared), limit)
        problems += await _try(f"after a call was cancelled {where}", session.release(claim, prepared))
    return problems or await _try("the next claim, after calls were cancelled", session.use("after-cancel")), late


async def _time_cancelled(session: Session, method: Method, call: Awaitable[object], limit: float) -> list[str]:
    """Make a call that is cancelled; whatever it answers, it must end soon."""
    before = len(session.observations())
    try:
        await call
    except BackendTimeout as error:
        session.note_timeout(error)
        return [f"{method.value} was cancelled, and did not end: {error}"]
    except PydraError:
        pass  # as it should be; that it can be undone is another rule
    ended = anyio.current_time()
    cancelled = max((one.cancelled for one in session.observations()[before:]), default=0.0)
    if not cancelled or ended - cancelled <= limit:
        return []
    seconds = f"{ended - cancelled:.1f} s"
    return [f"{method.value} went on for {seconds} after it was cancelled; at most {limit:g} s are allowed"]


async def _try(when: str, call: Awaitable[object]) -> list[str]:
    try:
        await call
    except PydraError as error:
        return [f"{when}: {error}"]
    return []
