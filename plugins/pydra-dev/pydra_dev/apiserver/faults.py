"""Faults on demand, for tests of clients of the API server: slow, failing, frozen, cut off.

A fault applies to the calls that it names; what it names nothing of, it applies to all of.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import msgspec

from pydra_dev.api.errors import StatusError
from pydra_dev.apiserver.request_log import Call


class Fault(msgspec.Struct, kw_only=True):
    """What happens to the next `times` matching calls (None: to all, until it is cleared).

    First `delay` seconds pass; then `reset` cuts the connection, or `status` is answered (0: the
    call goes on as usual), with `retry_after` seconds in the `Retry-After` header and `body` in
    place of a Status object.
    """

    verb: str = ""
    resource: str = ""
    name: str = ""
    times: int | None = 1
    delay: float = 0
    status: int = 0
    retry_after: int | None = None
    body: str | None = None
    reset: bool = False

    def matches(self, call: Call) -> bool:
        """Whether the call is one of those this fault is for."""
        return (
            self.times != 0
            and self.verb in {"", call.verb}
            and self.resource in {"", call.resource}
            and self.name in {"", call.name}
        )


class ConnectionCutError(Exception):
    """The connection is to be reset without an answer."""


class RawAnswerError(Exception):
    """An answer that is not a Status object, as from a proxy or a broken server."""

    def __init__(self, status: int, body: str) -> None:
        self.status = status
        self.body = body
        super().__init__(f"{status} {body}")


_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Faults:
    """The faults in force. All methods act on calls that come after them, except those already frozen."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._thawed: anyio.Event | None = None

    def add(self, fault: Fault) -> None:
        """Put a fault in force, after those already there."""
        self._faults.append(fault)

    def clear(self) -> None:
        """End every fault, a freeze included."""
        self._faults.clear()
        self.thaw()

    def freeze(self) -> None:
        """Take requests and answer none of them until `thaw`."""
        if self._thawed is None:
            self._thawed = anyio.Event()

    def thaw(self) -> None:
        """Answer what was frozen."""
        if self._thawed is not None:
            self._thawed.set()
            self._thawed = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Frozen inside the block."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def permits(self, call: Call) -> bool:
        """Whether no fault forbids such a call: with the status 403, as RBAC would."""
        return not any(fault.status == 403 and fault.matches(call) for fault in self._faults)

    async def apply(self, call: Call) -> None:
        """Let the faults have their way with a call; raises ConnectionCutError, RawAnswerError or StatusError."""
        if self._thawed is not None:
            await self._thawed.wait()
        fault = next((fault for fault in self._faults if fault.matches(call)), None)
        if fault is None:
            return
        if fault.times is not None:
            fault.times -= 1
        if fault.delay:
            await anyio.sleep(fault.delay)
        if fault.reset:
            raise ConnectionCutError
        if fault.body is not None:
            raise RawAnswerError(fault.status, fault.body)
        if fault.status:
            reason = _REASONS.get(fault.status, "")
            raise StatusError(fault.status, reason, f"injected fault {fault.status}", retry_after=fault.retry_after)
