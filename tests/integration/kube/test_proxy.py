"""An API server behind an HTTP proxy, which alone can resolve its name and sees no more than that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from pydra.errors import SettingsError, Unavailable
from pydra.kube.api_resources import NAMESPACES
from pydra.kube.client import KubeClient
from pydra.kube.credentials import load_credentials
from pydra_dev.apiserver.server import ApiServer, serve_api
from tests.integration.kube.authority import NAME, Authority
from tests.integration.kube.test_credentials import write_kubeconfig


class Proxy:
    """What came to a proxy: the heads of requests. It leads every CONNECT to `port` on loopback, or refuses it."""

    def __init__(self, port: int, refusal: bytes) -> None:
        self.url = ""
        self.heads: list[bytes] = []
        self._port = port
        self._refusal = refusal

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            if self._refusal:
                writer.write(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % self._refusal)
                await writer.drain()
                return
            onward = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            try:
                await asyncio.gather(_pump(reader, onward[1]), _pump(onward[0], writer))
            finally:
                onward[1].close()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def serve_proxy(server: ApiServer, *, refusal: bytes = b"") -> AsyncIterator[Proxy]:
    proxy = Proxy(int(server.url.rpartition(":")[2]), refusal)
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as listening:
        proxy.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield proxy


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "token").write_text("secret-token")
    return Authority(tmp_path)


@pytest.mark.parametrize("place", ["environment", "kubeconfig"])
async def test_requests_and_watches_go_through_a_tunnel_whose_end_is_verified(
    authority: Authority, tmp_path: Path, place: str
) -> None:
    async with serve_api(tls=authority.context, token="secret-token") as server, serve_proxy(server) as proxy:
        environ = {"HTTPS_PROXY": proxy.url, "NO_PROXY": "10.0.0.0/8", "KUBERNETES_SERVICE_HOST": NAME}
        kubeconfig = ""
        if place == "kubeconfig":
            environ["HTTPS_PROXY"] = "http://127.0.0.1:1"
            cluster = {"certificate-authority": str(authority.ca), "proxy-url": proxy.url}
            kubeconfig = write_kubeconfig(
                tmp_path / "config", f"https://{NAME}:443", {"tokenFile": str(tmp_path / "token")}, **cluster
            )
        credentials = await load_credentials(environ=environ, kubeconfig=kubeconfig, service_account=str(tmp_path))
        async with KubeClient(credentials, retry_for=0.0) as client:
            found = await client.list(NAMESPACES)
            await client.create(NAMESPACES, {"metadata": {"name": "later"}})
            with anyio.fail_after(30):
                async with aclosing(client.watch(NAMESPACES, resource_version=found.resource_version)) as events:
                    event = await anext(events)
        assert event.object["metadata"]["name"] == "later"
        assert {head.partition(b" HTTP")[0] for head in proxy.heads} == {f"CONNECT {NAME}:443".encode()}
        assert not any(b"secret-token" in head for head in proxy.heads)


async def test_a_proxy_that_refuses_or_is_away_is_named_without_its_password(
    authority: Authority, tmp_path: Path
) -> None:
    refusal = b"407 Proxy Authentication Required"
    async with serve_api(tls=authority.context) as server, serve_proxy(server, refusal=refusal) as proxy:
        told = f"the proxy {proxy.url} answered 407 Proxy Authentication Required when asked for https://{NAME}:443"
        assert told in await refusal_of(proxy.url, tmp_path)
        assert b"Proxy-Authorization: Basic" in proxy.heads[0]
    assert f"no answer from the proxy {proxy.url.removeprefix('http://')}: Connection refused" in await refusal_of(
        proxy.url, tmp_path
    )


async def refusal_of(proxy: str, directory: Path) -> str:
    """The error of a request through a proxy with a password."""
    environ = {"HTTPS_PROXY": proxy.replace("//", "//user:hidden@"), "KUBERNETES_SERVICE_HOST": NAME}
    credentials = await load_credentials(environ=environ, service_account=str(directory))
    async with KubeClient(credentials, retry_for=0.0) as client:
        with pytest.raises(Unavailable) as refused:
            await client.get(NAMESPACES, "default")
    return str(refused.value)


async def test_a_proxy_of_another_kind_is_refused_at_the_start(authority: Authority, tmp_path: Path) -> None:
    environ = {"HTTPS_PROXY": "socks5://user:hidden@127.0.0.1:1", "KUBERNETES_SERVICE_HOST": NAME}
    with pytest.raises(SettingsError, match=r"the proxy 'socks5://127.0.0.1:1' must begin with https:"):
        await load_credentials(environ=environ, service_account=str(tmp_path))
