"""The requests that reached the API server, for tests that count them."""

from __future__ import annotations

import anyio
import msgspec


class Call(msgspec.Struct, kw_only=True):
    """One request.

    `verb` is the API's word: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or
    `deletecollection`. `resource` is the plural without its group; empty for `/version` and its like. `status` is 0
    until the request is answered.
    """

    verb: str
    resource: str
    path: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    user_agent: str = ""
    dry_run: bool = False
    status: int = 0


class RequestLog:
    """Every request that reached the server, in order of arrival."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._arrived = anyio.Event()

    def record(self, call: Call) -> None:
        """A request arrived."""
        self.calls.append(call)
        self._arrived.set()
        self._arrived = anyio.Event()

    async def wait_count(self, count: int, verb: str = "", resource: str = "") -> None:
        """Return when at least `count` such requests have arrived; the caller sets the deadline."""
        while self.count(verb, resource) < count:
            await self._arrived.wait()

    def select(self, verb: str = "", resource: str = "", subresource: str | None = None) -> tuple[Call, ...]:
        """The calls of a verb and resource, empty meaning any."""
        return tuple(
            call
            for call in self.calls
            if verb in {"", call.verb}
            and resource in {"", call.resource}
            and (subresource is None or subresource == call.subresource)
        )

    def count(self, verb: str = "", resource: str = "") -> int:
        """How many there were."""
        return len(self.select(verb, resource))

    def writes(self) -> tuple[Call, ...]:
        """The calls that were meant to change something."""
        reads = {"get", "list", "watch"}
        return tuple(call for call in self.calls if call.verb not in reads and not call.dry_run)

    def clear(self) -> None:
        """Forget what came so far."""
        self.calls.clear()
