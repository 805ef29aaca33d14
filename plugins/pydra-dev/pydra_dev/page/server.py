"""Serves the page: three files, a stream of what changes, questions about one claim or device, and operations.

A client can crash the backend and create pods, so it listens on loopback only, answers only under the names of its own
address (against DNS rebinding), and does something only for a POST from itself (against other sites in the same
browser) with the token in the address that the terminal shows (against other users of the machine). The page runs no
inline script, and shows texts as texts.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Any, TypeAlias

import msgspec
from aiohttp import ClientConnectionResetError, web
from anyio import CancelScope

from pydra.errors import SettingsError
from pydra.observability.connection_limits import Limits
from pydra.observability.http import serve_routes
from pydra_dev.apiserver.store import Signal
from pydra_dev.node import free_port
from pydra_dev.output.descriptions import Paragraph
from pydra_dev.page.operations import OperationError, Operations
from pydra_dev.scheduler.pools import DeviceKey

KEPT_PARAGRAPHS = 300
PAUSE = 0.05
"""Seconds in which changes are gathered before the next view is sent."""
KEEPALIVE = 10.0
RETRY = 500
"""Milliseconds after which a browser that has lost the stream asks for it again."""
MAX_BODY = 64 * 1024
FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_LIMITS = Limits()
_Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Address(msgspec.Struct, frozen=True):
    """Where to listen."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """What a browser opens."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`PORT`, `ADDRESS:PORT`, or nothing for a free port of 127.0.0.1.

    Raises SettingsError for anything else, OSError when no port is free.
    """
    host, _, port = text.rpartition(":")
    host = "127.0.0.1" if host in ("", "localhost") else host.removeprefix("[").removesuffix("]")
    if not text:
        return Address(host, free_port())
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if address is None or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SettingsError([f"--web: {text!r} is not an address: give PORT or ADDRESS:PORT, such as 127.0.0.1:8080"])
    if not address.is_loopback:
        raise SettingsError(
            [
                f"--web: {host} is not a loopback address, and anyone who can open the page can crash the backend; "
                f"listen on 127.0.0.1 and forward the port: ssh -L {port}:127.0.0.1:{port} ..."
            ]
        )
    return Address(str(address), int(port))


class Page:
    """What there is to see: the run that is shown, and the last paragraphs. `changed` wakes those who look.

    `entries` has the paragraphs, each with its number and the seconds since the start. Who has the `token` may do
    something.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self.changed = Signal()
        self.operations: Operations | None = None
        self.entries: deque[tuple[int, float, Paragraph]] = deque(maxlen=KEPT_PARAGRAPHS)

    def tell(self, paragraph: Paragraph, seconds: float) -> None:
        """Add a paragraph."""
        number = self.entries[-1][0] + 1 if self.entries else 1
        self.entries.append((number, seconds, paragraph))
        self.changed.notify()

    def show(self, operations: Operations | None) -> None:
        """Show this run from now on; None between two."""
        self.operations = operations
        self.changed.notify()


@asynccontextmanager
async def serve_page(page: Page, address: Address, title: str) -> AsyncIterator[None]:
    """Serve the page inside the block; `title` says what it shows. Raises SettingsError when the address is taken."""
    server = _Server(page, address, title)
    try:
        async with serve_routes(
            server.routes, address.host, address.port, setting="--web", limits=_LIMITS, largest_body=MAX_BODY
        ):
            try:
                yield
            finally:
                page.changed.close()
                with CancelScope(shield=True):
                    await server.wait_streams()
    except SettingsError as error:
        raise SettingsError([f"{one}; give another port, or none for a free one" for one in error.problems]) from error


class _Server:
    def __init__(self, page: Page, address: Address, title: str) -> None:
        self._page = page
        self._title = title
        self._streams: set[asyncio.Task[Any]] = set()
        self._instance = uuid.uuid4().hex  # a browser that comes back to another one loads its files again
        names = {address.host, "localhost"} if ":" not in address.host else {f"[{address.host}]", "localhost"}
        ports = [f":{address.port}", ""] if address.port == 80 else [f":{address.port}"]
        self._hosts = {name + port for name in names for port in ports}
        folder = files("pydra_dev.page")
        self._files = {path: (folder.joinpath(name).read_bytes(), kind) for path, (name, kind) in FILES.items()}
        self.routes = [
            *(web.get(path, self._guard(self._answer_file)) for path in FILES),
            web.get("/favicon.ico", self._guard(self._answer_nothing)),
            web.get("/stream", self._guard(self._answer_stream)),
            web.get("/claim", self._guard(self._answer_claim)),
            web.get("/device", self._guard(self._answer_device)),
            web.post("/operations/{operation}", self._guard(self._operate)),
        ]

    def _guard(self, handler: _Handler) -> _Handler:
        """Answer only this page in a browser on this machine."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            if request.host not in self._hosts:
                return _refuse(403, f"this page is at {' or '.join(sorted(self._hosts))}, not at {request.host}")
            if request.method == "POST" and request.headers.get("Origin") != f"http://{request.host}":
                return _refuse(403, "this is for the page itself: Origin must be its own")
            if request.method == "POST" and not self._has_token(request):
                return _refuse(403, "open the page at the address that `pydra dev` has printed: it has the token")
            try:
                return await handler(request)
            except OperationError as error:
                return _refuse(409, str(error))
            except (KeyError, ValueError, msgspec.MsgspecError) as error:
                return _refuse(400, f"bad request: {error}")

        return guarded

    def _has_token(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "")
        return secrets.compare_digest(given.encode(), f"Bearer {self._page.token}".encode())

    async def _answer_file(self, request: web.Request) -> web.Response:
        body, kind = self._files[request.path]
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=HEADERS)

    async def _answer_nothing(self, _: web.Request) -> web.Response:
        return web.Response(status=204, headers=HEADERS)

    async def _answer_claim(self, request: web.Request) -> web.Response:
        return _answer(self._operations.explain_claim(request.query["namespace"], request.query["name"]))

    async def _answer_device(self, request: web.Request) -> web.Response:
        query = request.query
        return _answer(self._operations.describe_device((query["driver"], query["pool"], query["name"])))

    async def _operate(self, request: web.Request) -> web.Response:
        """Do what the page asks for, and answer when it is done."""
        body = await request.read()
        operations = self._operations
        match request.match_info["operation"]:
            case "break-device":
                operations.break_device(msgspec.json.decode(body, type=DeviceKey))
            case "repair-device":
                operations.repair_device(msgspec.json.decode(body, type=DeviceKey))
            case "delete-pod":
                operations.delete_pod(*msgspec.json.decode(body, type=tuple[str, str]))
            case "start-pod":
                operations.start_pod()
            case "crash-backend":
                operations.crash_backend()
            case "apply":
                return _answer(operations.apply(body.decode()))
            case other:
                return _refuse(404, f"there is no operation {other}")
        return _answer({})

    @property
    def _operations(self) -> Operations:
        if self._page.operations is None:
            raise OperationError("the node is being started")
        return self._page.operations

    async def _answer_stream(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: `hello`, then each view that differs from the last one, and each paragraph."""
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            with suppress(ClientConnectionResetError):  # the reader has gone
                await self._stream(response)
        finally:
            self._streams.discard(task)
        return response

    async def wait_streams(self) -> None:
        """Wait for the end of all streams, which the server does not do for those whose reader has gone."""
        if self._streams:
            await asyncio.wait(self._streams)

    async def _stream(self, response: web.StreamResponse) -> None:
        page = self._page
        await response.write(b"retry: %d\n\n" % RETRY)
        await _send(response, "hello", {"instance": self._instance, "title": self._title})
        sent, told = b"", 0
        while True:
            wakeup, closed = page.changed.event, page.changed.closed
            for number, seconds, paragraph in [one for one in page.entries if one[0] > told]:
                await _send(response, "entry", {"seconds": seconds, **msgspec.structs.asdict(paragraph)})
                told = number
            view = msgspec.json.encode(page.operations.build_view() if page.operations is not None else None)
            if view != sent:
                await _send(response, "view", msgspec.Raw(view))
                sent = view
            if closed:
                return
            try:
                await asyncio.wait_for(wakeup.wait(), KEEPALIVE)
            except TimeoutError:
                await response.write(b": still here\n\n")
            await asyncio.sleep(PAUSE)


async def _send(response: web.StreamResponse, event: str, value: Any) -> None:
    # JSON has no line breaks outside of its strings, and escapes those inside: one line of data is enough.
    await response.write(b"event: %s\ndata: %s\n\n" % (event.encode(), msgspec.json.encode(value)))


def _answer(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", headers=HEADERS)


def _refuse(status: int, error: str) -> web.Response:
    body = msgspec.json.encode({"error": error})
    return web.Response(status=status, body=body, content_type="application/json", headers=HEADERS)
