"""The embedded API server: `serve_api` speaks the Kubernetes HTTP API on a socket, from memory.

It has the same paths, bodies, refusals and watches as a real server for the kinds in `api.kinds`, and no authorization
(who has the token may do all) or managed fields: a request for those is refused with the reason. Nothing outlives the
`async with` block.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import MappingProxyType

import yaml
from aiohttp import web

from pydra_dev.api.errors import JsonObject
from pydra_dev.api.feature_gates import build_gates
from pydra_dev.api.kinds import KINDS, NAMESPACES
from pydra_dev.apiserver.custom_kinds import parse_definition
from pydra_dev.apiserver.discovery import DEFAULT_VERSION, FIRST_DRA_MINOR, build_documents, parse_release
from pydra_dev.apiserver.faults import Faults
from pydra_dev.apiserver.handlers import MAX_BODY, Handlers
from pydra_dev.apiserver.request_log import RequestLog
from pydra_dev.apiserver.store import DEFAULT_HISTORY, Store
from pydra_dev.apiserver.verbs import Api

_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_SHUTDOWN_SECONDS = 1.0


class ApiServer:
    """A running server.

    `url` and `kubeconfig` say how to reach it, `api` is its verbs without HTTP; `requests`
    remembers every call and `faults` makes trouble.
    """

    def __init__(self, handlers: Handlers, listener: _Listener, kubeconfig: Path) -> None:
        self.api: Api = handlers.api
        self.faults: Faults = handlers.faults
        self.requests: RequestLog = handlers.requests
        self.url = listener.url
        self.kubeconfig = kubeconfig
        self._handlers = handlers
        self._listener = listener

    @property
    def store(self) -> Store:
        """The objects and their history."""
        return self.api.store

    @property
    def token(self) -> str:
        """The bearer token that requests must carry; empty: none. It may be changed at any time."""
        return self._handlers.token

    @token.setter
    def token(self, token: str) -> None:
        self._handlers.token = token

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return len(self._handlers.watches)

    def break_watches(self) -> None:
        """Reset the connection of every watch that is open."""
        self._handlers.break_watches()

    def compact(self) -> None:
        """Forget the history: a watch that resumes from an older version is answered 410."""
        self.store.compact()

    @asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        """Inside the block nothing listens and every connection is reset; what is stored stays."""
        await self._listener.close()
        try:
            yield
        finally:
            await self._listener.open()


class _Listener:
    """One address that can be opened and closed again."""

    def __init__(self, runner: web.AppRunner, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._runner = runner
        self._host = host
        self._port = port
        self._tls = tls
        self._site: web.TCPSite | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self._port}"

    async def open(self) -> None:
        """Listen; a port of 0 becomes the one that was free and stays it."""
        self._site = web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls, reuse_address=True)
        await self._site.start()
        self._port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening and reset every connection."""
        if self._site is not None:
            await self._site.stop()
            self._site = None
        server = self._runner.server
        for connection in server.connections if server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()


@asynccontextmanager
async def serve_api(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    version: str = DEFAULT_VERSION,
    gates: Mapping[str, bool] = MappingProxyType({}),
    token: str = "",
    tls: ssl.SSLContext | None = None,
    kubeconfig: Path | None = None,
    history: int = DEFAULT_HISTORY,
    bookmark_period: float = 60.0,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    random: Random | None = None,
    definitions: Sequence[JsonObject] = (),
) -> AsyncIterator[ApiServer]:
    """Serve the API inside the block.

    Args:
        host: Address to listen on.
        port: 0 takes a free one.
        version: The release to be: it decides the feature gates and the rules for slices, and below 1.34 there is no
            resource.k8s.io/v1.
        gates: Feature gates that differ from that release's defaults.
        token: Bearer token that every request must carry; empty: none is needed.
        tls: Serve HTTPS with this context.
        kubeconfig: Where to write the kubeconfig file; None: in a directory that is removed at the end.
        history: How many changes a watch can resume over.
        bookmark_period: Seconds between the bookmarks of a watch.
        clock: The time in UTC.
        random: Makes uids and generated names.
        definitions: CustomResourceDefinitions whose objects are served too.

    Raises ValueError for a version, gate or keyword of a schema that does not exist, OSError when the address is taken.
    """
    release = parse_release(version)
    custom = [parse_definition(one) for one in definitions]
    kinds = (*KINDS, *(one.kind for one in custom))
    served = tuple(kind for kind in kinds if kind.group != "resource.k8s.io" or release.minor >= FIRST_DRA_MINOR)
    random = random or Random()  # noqa: S311 - names and uids of a double, not secrets
    api = Api(
        store=Store(history=history),
        minor=release.minor,
        gates=build_gates(release.minor, gates),
        clock=clock,
        random=random,
        custom=custom,
    )
    for name in _NAMESPACES:
        api.create(NAMESPACES, {"metadata": {"name": name}})
    handlers = Handlers(
        api,
        served=served,
        documents=build_documents(release, served),
        faults=Faults(),
        requests=RequestLog(),
        token=token,
        bookmark_period=bookmark_period,
    )
    app = web.Application(client_max_size=MAX_BODY)
    app.router.add_route("*", "/{path:.*}", handlers.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_SECONDS)
    async with AsyncExitStack() as stack:
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        listener = _Listener(runner, host, port, tls)
        await listener.open()
        stack.callback(handlers.stop)
        if kubeconfig is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pydra-"))
            kubeconfig = Path(directory, "kubeconfig")
        kubeconfig.write_bytes(build_kubeconfig(listener.url, token))
        yield ApiServer(handlers, listener, kubeconfig)


def build_kubeconfig(url: str, token: str) -> bytes:
    """A kubeconfig file for one server; over HTTPS it does not check the server's certificate.

    The token is in the server's path: kubectl sends none of a user over HTTP.
    """
    cluster: dict[str, object] = {"server": f"{url}/{token}" if token else url}
    if url.startswith("https:"):
        cluster["insecure-skip-tls-verify"] = True
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "embedded", "cluster": cluster}],
        "users": [{"name": "embedded", "user": {}}],
        "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": "embedded"}}],
        "current-context": "embedded",
    }
    return yaml.safe_dump(document, sort_keys=False).encode()
