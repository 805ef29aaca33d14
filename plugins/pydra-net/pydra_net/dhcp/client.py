"""Gets an address that nobody else has, and keeps it. Source: RFC 2131, section 4.4."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, suppress

import msgspec

from pydra_net.dhcp.messages import (
    ACK,
    DECLINE,
    DISCOVER,
    LEAST,
    NAK,
    OFFER,
    RELEASE,
    REQUEST,
    Lease,
    Reply,
    Request,
    decode,
    encode,
)
from pydra_net.kernel import Packets
from pydra_net.network_types import FOREVER

_FIRST, _LONGEST = 1.0, 64.0
"""Seconds until a message is repeated: twice as long each time."""
_REPEATS = 4
"""Of a request for an address that a server has offered, or that was the client's."""
_PATIENCE = 10.0
_AFTER_CONFLICT = 10.0
"""Seconds after an address that somebody else has, for which a server might be asked again and again."""

_log = logging.getLogger(__name__)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks: the interface's name, for messages, and its MAC address.

    With an `identifier`, servers know the client by that.
    """

    name: str
    mac: str
    identifier: bytes = b""


class Client:
    """The client of one interface. `open_packets` opens its sockets, for the address that it uses, if there is one.

    `find_user` returns the MAC address of somebody else who has an address. `problem` says why there is no lease, if
    that is known.
    """

    def __init__(
        self,
        identity: Identity,
        open_packets: Callable[[str], Awaitable[Packets]],
        find_user: Callable[[str], Awaitable[str]],
        set_lease: Callable[[Lease | None], Awaitable[None]],
        *,
        after_conflict: float = _AFTER_CONFLICT,
    ) -> None:
        self._identity = identity
        self._open_packets = open_packets
        self._find_user = find_user
        self._set_lease = set_lease
        self._after_conflict = after_conflict
        self._used = ""
        self._declined = ""
        self.problem = ""

    async def run(self, used: str = "", seconds: float = FOREVER, earlier: str = "") -> None:
        """Get a lease, renew it, and get another when it ends, for ever.

        `used` is the address that the interface has for these seconds if nobody answers, `earlier` one that it had.
        """
        lease = None
        self._used = used
        known = used or (earlier if earlier != self._declined else "")
        if known:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    lease = await self._request(known, "", 0) or await self._acquire(known)
            if lease is None:
                await self._use(None)
        while True:
            if lease is None:
                lease = await self._acquire(known)
            known = lease.ip
            await self._use(lease)
            lease = await self._keep(lease)
            if lease is None:
                await self._use(None)

    async def _use(self, lease: Lease | None) -> None:
        self._used, self.problem = lease.ip if lease else "", ""
        await self._set_lease(lease)

    async def release(self, lease: Lease) -> None:
        """Tell the server that the address is not used any more; if that fails, the lease ends by itself."""
        if lease.server:
            with suppress(OSError):
                async with self._packets(lease.ip) as packets:
                    await packets.send(self._encode(RELEASE, address=lease.ip, server=lease.server), lease.server)

    async def _acquire(self, wish: str) -> Lease:
        for seconds in _delays():
            transaction = random.getrandbits(32)
            discover = self._encode(DISCOVER, transaction, requested=wish if wish != self._declined else "")
            offer = await self._exchange(discover, transaction, (OFFER,), seconds)
            if offer is not None and offer.lease.server:
                lease = await self._request(offer.lease.ip, offer.lease.server, transaction)
                if lease is not None:
                    return lease
                wish = ""
                await asyncio.sleep(_FIRST)
        raise AssertionError("there are always more delays")

    async def _request(self, address: str, server: str, transaction: int) -> Lease | None:
        """Ask for an address; None if it is refused, nobody answers, or somebody else has it."""
        transaction = transaction or random.getrandbits(32)
        request = self._encode(REQUEST, transaction, requested=address, server=server)
        for _, seconds in zip(range(_REPEATS), _delays(), strict=False):
            reply = await self._exchange(request, transaction, (ACK, NAK), seconds)
            if reply is not None and reply.kind == NAK and address == self._used:
                await self._use(None)  # at once (RFC 2131, 3.2)
            if reply is not None:
                return reply.lease if reply.kind == ACK and await self._is_free(reply.lease) else None
        return None

    async def _is_free(self, lease: Lease) -> bool:
        """Whether nobody else has the address; else it is declined, and the server given time (RFC 2131, 3.1)."""
        if lease.ip == self._used:
            return True
        user = ""
        try:
            user = await self._find_user(lease.ip)
            if user and lease.server:
                async with self._packets("") as packets:
                    await packets.send(self._encode(DECLINE, requested=lease.ip, server=lease.server), "")
        except OSError as error:
            _log.info("%s: %s", self._identity.name, error.strerror or error)
        if not user:
            return True
        problem = f"the DHCP server {lease.server or 'of its network'} gives it {lease.ip}, which {user} has already"
        if problem != self.problem:
            _log.warning("%s: %s; it is declined", self._identity.name, problem)
        self.problem, self._declined = problem, lease.ip
        await asyncio.sleep(self._after_conflict)
        return False

    async def _keep(self, lease: Lease) -> Lease | None:
        """Return the lease that follows it: by renewal, or None if it has ended."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if lease.seconds == FOREVER:
            await asyncio.Event().wait()
        await asyncio.sleep(lease.renew)
        while (passed := loop.time() - began) < lease.seconds:
            renews = passed < lease.rebind and bool(lease.server)
            left = (lease.rebind if renews else lease.seconds) - passed
            transaction = random.getrandbits(32)
            request = self._encode(REQUEST, transaction, address=lease.ip)
            waits = max(left / 2, min(LEAST, left))
            patience = min(_PATIENCE, waits)
            reply = await self._exchange(
                request, transaction, (ACK, NAK), patience, address=lease.ip, server=lease.server if renews else ""
            )
            if reply is not None:
                return reply.lease if reply.kind == ACK else None
            await asyncio.sleep(max(began + passed + waits - loop.time(), 0))
        _log.warning(
            "the lease of %s for %s has ended, since no DHCP server answered", lease.address, self._identity.name
        )
        return None

    async def _exchange(
        self,
        message: bytes,
        transaction: int,
        kinds: Collection[int],
        seconds: float,
        *,
        address: str = "",
        server: str = "",
    ) -> Reply | None:
        """Send a message, and wait for an answer of these kinds. An interface that is down is one without answers."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                try:
                    async with self._packets(address) as packets:
                        await packets.send(message, server)
                        return await self._receive(packets, transaction, kinds)
                except OSError as error:
                    _log.info("%s: %s", self._identity.name, error.strerror or error)
                    await asyncio.Event().wait()
        return None

    async def _receive(self, packets: Packets, transaction: int, kinds: Collection[int]) -> Reply:
        while True:
            message = await packets.receive()
            await asyncio.sleep(0)  # else nothing runs, not even the timeout, while there always is another message
            try:
                reply = decode(message)
            except ValueError as error:
                _log.debug("%s: an answer by DHCP cannot be read: %s", self._identity.name, error)
                continue
            if (reply.transaction, reply.mac) == (transaction, self._identity.mac) and reply.kind in kinds:
                return reply

    def _encode(self, kind: int, transaction: int = 0, **fields: str) -> bytes:
        transaction = transaction or random.getrandbits(32)
        own = self._identity
        return encode(Request(kind=kind, transaction=transaction, mac=own.mac, identity=own.identifier, **fields))

    @asynccontextmanager
    async def _packets(self, address: str) -> AsyncIterator[Packets]:
        packets = await self._open_packets(address)
        try:
            yield packets
        finally:
            packets.close()


def _delays() -> Iterator[float]:
    """Yield seconds to wait for answers, without end; clients that start together are not in step."""
    seconds = _FIRST
    while True:
        yield seconds + random.uniform(0, seconds / 8)  # noqa: S311
        seconds = min(2 * seconds, _LONGEST)
