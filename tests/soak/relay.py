"""A way to the API server that can fail: TLS by an authority of its own, which can be replaced, and outages."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from pydra.kube.credentials import Credentials
from tests.integration.kube.authority import Authority

CHUNK = 65536


class Relay:
    """Passes bytes between clients with `kubeconfig` and the API server, which sees the credentials' certificate.

    `accepted` counts the connections that clients have opened since the start.
    """

    def __init__(self, credentials: Credentials, scratch: Path) -> None:
        address = urlsplit(credentials.server)
        self.accepted = 0
        self.kubeconfig = scratch / "relay.kubeconfig"
        self._host, self._port = address.hostname or "", address.port or 443
        self._credentials = credentials
        self._scratch = scratch
        self._bundle = scratch / "relay-ca.crt"
        self._authority = Authority(scratch / "authority-0")
        self._rotations = 0
        self._closed = False
        self._open: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Accept clients until the end of the block."""
        self._bundle.write_bytes(self._authority.ca.read_bytes())
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0, ssl=self._authority.context)
        self._write_kubeconfig(server.sockets[0].getsockname()[1])
        try:
            yield
        finally:
            server.close()
            self._disconnect()

    def rotate(self) -> None:
        """Replace the authority: clients trust only the new one, and only it has issued what the server shows."""
        self._rotations += 1
        authority = Authority(self._scratch / f"authority-{self._rotations}")
        draft = self._bundle.with_suffix(".draft")
        draft.write_bytes(authority.ca.read_bytes())
        draft.replace(self._bundle)
        self._authority.context.load_cert_chain(authority.server)
        self._disconnect()

    def open(self) -> None:
        """Serve again."""
        self._closed = False

    def close(self) -> None:
        """Break all connections, and each one that comes, until `open`."""
        self._closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        for writer in tuple(self._open):
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            writer.transport.abort()
            return
        self.accepted += 1
        self._open.add(writer)
        try:
            with suppress(OSError):
                context = self._credentials.access.ssl
                server_name = self._host if isinstance(context, ssl.SSLContext) else None
                upstream = await asyncio.open_connection(
                    self._host, self._port, ssl=context, server_hostname=server_name
                )
                try:
                    await asyncio.gather(_copy(reader, upstream[1]), _copy(upstream[0], writer))
                finally:
                    upstream[1].transport.abort()
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    def _write_kubeconfig(self, port: int) -> None:
        cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(self._bundle)}
        token = self._credentials.access.headers.get("Authorization", "").removeprefix("Bearer ")
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "relay", "cluster": cluster}],
            "users": [{"name": "soak", "user": {"token": token} if token else {}}],
            "contexts": [{"name": "relay", "context": {"cluster": "relay", "user": "soak"}}],
            "current-context": "relay",
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Until either end closes; the other direction ends with it."""
    with suppress(OSError):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
    target.transport.abort()
