"""A backend's connection to the container runtime, which is opened again whenever it ends."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

from pydra import ClaimError
from pydra_nri.event_handlers import Handlers, Updates
from pydra_nri.session import REQUEST_TIMEOUT, Sent, Session

SOCKET = "/var/run/nri/nri.sock"
"""A runtime creates it at each start, so a container must mount the directory."""

_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
_BUFFER = 1 << 20
_logger = logging.getLogger(__name__)


class RuntimeUnavailable(ClaimError):
    """The container runtime does not call this plugin now."""

    reason = "ContainerRuntimeUnavailable"


class Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds between connections: the first pause, doubled with each failure of a runtime that listens up to a limit.

    A registration blocks the node's pods while one of them is being stopped, so it is repeated less often than an
    attempt at which nothing listens. That is soon, since what a runtime begins before it knows this plugin begins
    without it. After a connection that lasted `lasting` seconds, the pauses begin with the first again.
    `patience` is how long a claim waits for a runtime that registers this plugin, or that is starting again.
    """

    first: float = 0.2
    not_lasting: float = 60.0
    lasting: float = 60.0
    patience: float = 2.0

    def choose(self, failures: int, *, reached: bool) -> float:
        """The pause after so many failures in a row; `reached` if something listened at the last."""
        return min(self.first * 2.0 ** min(failures, 32), self.not_lasting) if reached else self.first


class Attempts(msgspec.Struct, frozen=True, kw_only=True):
    """The last attempts to connect that ended alike: `failures` before the last, `reached` if something listened.

    Only those count: how long nothing listened must not make the pauses longer when a runtime that listens ends a
    connection, as by a second restart.
    """

    failures: int = -1
    reached: bool = False

    def add(self, *, reached: bool, lasted: bool) -> Attempts:
        """With one more; `lasted` if it was a connection that lasted."""
        alike = reached == self.reached and not lasted
        return Attempts(failures=self.failures + 1 if alike else 0, reached=reached)


class Plugin:
    """What a backend has of the connection."""

    def __init__(self, name: str, index: int, handlers: Handlers, socket: str, pauses: Pauses) -> None:
        self._name = name
        self._index = index
        self._handlers = handlers
        self._socket = socket
        self._pauses = pauses
        self._session: Session | None = None
        self._problem = f"{name} has not reached the container runtime at {socket} yet"
        self._synchronized = asyncio.Event()
        self._settled = asyncio.Event()
        """The runtime's events come, or are not expected soon."""
        self._patience: asyncio.TimerHandle | None = None

    @property
    def request_timeout(self) -> float:
        """The seconds after which the runtime goes on without an answer; it has told them when it registered this."""
        return self._session.request_timeout if self._session else REQUEST_TIMEOUT

    def require_synchronized(self) -> None:
        """Check that the runtime's events come, before a claim is prepared that depends on them.

        Raises:
            RuntimeUnavailable: they do not, and why.
        """
        if not self._synchronized.is_set():
            raise RuntimeUnavailable(self._problem)

    async def check_synchronized(self) -> None:
        """The same, but waits for some seconds at the start and after the end of a connection.

        Where nothing listens at the start, this does not wait. Raises RuntimeUnavailable.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pauses.patience):
                await self._settled.wait()
        self.require_synchronized()

    async def wait_synchronized(self) -> None:
        """Wait until the runtime's events come."""
        await self._synchronized.wait()

    async def update(self, updates: Updates) -> Sent:
        """Change containers without an event: now if the runtime allows it, else with the next answer that can.

        Only the newest update of a container is sent. Without a connection none is: `synchronize` returns what to
        correct.

        Raises:
            CallFailed: the runtime refused, or the connection ended.
        """
        return await self._session.update(updates) if self._session else Sent(now=False)

    async def run(self) -> None:
        """Connect, again and again. What keeps it from that is logged when it changes."""
        clock = asyncio.get_running_loop().time
        attempts, is_known, logged = Attempts(), False, ""
        while True:
            began = clock()
            reached = await self._attempt()
            self._session = None
            was_synchronized = self._synchronized.is_set()
            if was_synchronized:
                is_known = True
                self._synchronized.clear()
                self._await_restart()
            elif not reached and not is_known:
                self._settled.set()
            if was_synchronized or self._problem != logged:
                logged = self._problem
                _logger.warning("%s", logged)
            lasted = was_synchronized and clock() - began >= self._pauses.lasting
            attempts = attempts.add(reached=reached, lasted=lasted)
            pause = self._pauses.choose(attempts.failures, reached=reached)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311

    def _await_restart(self) -> None:
        """Let claims wait for the runtime from now on, until it has been away for too long."""
        self._settled.clear()
        if self._patience is not None:
            self._patience.cancel()
        self._patience = asyncio.get_running_loop().call_later(self._pauses.patience, self._settled.set)

    def _on_synchronized(self) -> None:
        self._synchronized.set()
        self._settled.set()

    async def _attempt(self) -> bool:
        """One connection, until it ends; whether something listened."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._socket, limit=_BUFFER)
        except OSError as error:
            self._problem = _explain(self._socket, error)
            return False
        self._session = Session(reader, writer, self._name, self._handlers, self._on_synchronized)
        self._problem = (
            f"{self._name} waits for the container runtime to register it at {self._socket}, which takes as long as"
            " pods that are being stopped"
        )
        self._problem = f"{self._socket}: {await self._session.run(self._index)}"
        return True


def _explain(socket: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return (
            f"there is no {socket}: the container runtime is not running, NRI is disabled in its configuration (as by"
            " default before containerd 2.0 and CRI-O 1.30), or the socket's directory is not mounted; to enable NRI,"
            " set disable = false in [plugins.'io.containerd.nri.v1.nri'] of containerd's configuration, or"
            " enable_nri = true in [crio.nri] of CRI-O's, and restart the runtime"
        )
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens at {socket}: the container runtime is not running, or is just starting"
    if isinstance(error, PermissionError):
        return (
            f"cannot connect to {socket}: {error.strerror}; only root may: leave out runAsUser of the backend's"
            " process, and let the node's security modules, such as SELinux, allow it"
        )
    return f"cannot connect to {socket}: {error.strerror}"


@asynccontextmanager
async def connect(
    name: str, *, index: int, handlers: Handlers, socket: str = SOCKET, pauses: Pauses | None = None
) -> AsyncIterator[Plugin]:
    """Be a plugin of the container runtime as long as the context lasts.

    Plugins are called in the order of `index`, from 0 to 99. This returns at once, whether the runtime runs or not.

    Raises:
        ValueError: the runtime would refuse `name` or `index`.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name is {name!r}, and may only have the letters A-Z and a-z, digits, and _ . + -")
    if not 0 <= index <= 99:
        raise ValueError(f"the index is {index}, and must be from 0 to 99")
    plugin = Plugin(name, index, handlers, socket, pauses or Pauses())
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(plugin.run(), name="nri")
        try:
            yield plugin
        finally:
            running.cancel()
