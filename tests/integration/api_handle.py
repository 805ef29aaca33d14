"""An API server to test against: the embedded one, or the real one that KUBECONFIG names.

A test that holds on both proves the double equal to the original. What only the double can do
(injected faults, gates, history) is asked for through `embedded` or through options, and skips the
test on a real cluster. What needs a feature gate that a supported release has off has the marker `gates`.
"""

from __future__ import annotations

import base64
import os
import secrets
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml

from pydra.kube.api_resources import build_path
from pydra_dev.apiserver.server import ApiServer, serve_api
from tests.integration.gates import PROBES, is_kept

JsonObject = dict[str, Any]
DRA = "/apis/resource.k8s.io/v1"
SLICES = f"{DRA}/resourceslices"
CLASSES = f"{DRA}/deviceclasses"
REAL_KUBECONFIG = os.environ.get("KUBECONFIG", "")


class Answer(msgspec.Struct, frozen=True):
    """What the server said; `body` is the decoded JSON, or None for an answer in another form."""

    status: int
    body: Any
    text: str
    headers: Mapping[str, str]


class RawClient:
    """Bare HTTP, so that what the server does is seen and not what a client makes of it.

    Paths begin at `server`, a URL that may have a path itself.
    """

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self.session = session
        self.server = server.rstrip("/")

    async def request(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        headers = {"Content-Type": "application/json", **options.pop("headers", {})}
        data = msgspec.json.encode(body) if body is not None and not isinstance(body, bytes) else body
        async with self.session.request(method, self.server + path, data=data, headers=headers, **options) as response:
            text = await response.text()
            kind = response.headers.get("Content-Type", "")
            decoded = msgspec.json.decode(text) if kind.startswith("application/json") else None
            return Answer(response.status, decoded, text, response.headers)

    async def get(self, path: str, **params: str) -> Answer:
        return await self.request("GET", path, params=params)

    async def create(self, path: str, body: Any) -> JsonObject:
        answer = await self.request("POST", path, body)
        assert answer.status == 201, answer.text
        created: JsonObject = answer.body
        return created

    async def patch(self, path: str, body: Any, kind: str = "merge") -> Answer:
        return await self.request("PATCH", path, body, headers={"Content-Type": f"application/{kind}-patch+json"})

    async def apply(self, path: str, manager: str, fields: JsonObject, **options: str) -> Answer:
        """Server-side apply to a ResourceClaim."""
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **fields}
        headers = {"Content-Type": "application/apply-patch+yaml"}
        return await self.request("PATCH", path, body, headers=headers, params={"fieldManager": manager, **options})

    @asynccontextmanager
    async def watch(
        self, path: str, accept: str = "application/json", **params: str
    ) -> AsyncIterator[AsyncIterator[JsonObject]]:
        """The events of a watch, as they come, until the server ends it."""
        everything = {"watch": "1", "timeoutSeconds": "10", **params}
        async with self.session.get(self.server + path, params=everything, headers={"Accept": accept}) as response:
            assert response.status == 200, await response.text()
            yield _read_events(response)


async def _read_events(response: aiohttp.ClientResponse) -> AsyncIterator[JsonObject]:
    async for line in response.content:
        yield msgspec.json.decode(line)


class Scratch(msgspec.Struct, frozen=True):
    """Names of this test alone: a namespace that exists, and a driver and node that nobody else uses."""

    namespace: str
    driver: str
    node: str

    @property
    def claims(self) -> str:
        return f"{DRA}/namespaces/{self.namespace}/resourceclaims"

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def events(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/events"


class ApiHandle:
    """The server under test: `kubeconfig` is how a client reaches it."""

    def __init__(self, kubeconfig: Path, server: ApiServer | None) -> None:
        self.kubeconfig = kubeconfig
        self._server = server

    @property
    def embedded(self) -> ApiServer:
        """The embedded server, for faults and for looking inside; skips the test on a real cluster."""
        if self._server is None:
            pytest.skip("needs the embedded API server (injected faults or a look inside), and KUBECONFIG is set")
        return self._server

    async def require(self, test: pytest.Item) -> None:
        """Skip a test where the server does not keep what one of the gates in its marker `gates` is for."""
        wanted = [gate for marker in test.iter_markers("gates") for gate in marker.args]
        if not wanted:
            return
        async with self.connect() as client:
            for gate in wanted:
                resource, spec = PROBES[gate]
                body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
                path = build_path(resource, namespace="default" if resource.namespaced else "")
                named = {**body, "metadata": {"generateName": "probe-"}}
                answer = await client.request("POST", path, named, params={"dryRun": "All"})
                if answer.status in (404, 422):
                    pytest.skip(f"the cluster refuses what feature gate {gate} is for: {answer.text.strip()}")
                assert answer.status == 201, answer.text
                if not is_kept(spec, answer.body["spec"]):
                    pytest.skip(f"feature gate {gate} is off: the cluster drops what it is for")

    @asynccontextmanager
    async def connect(self, server: str = "") -> AsyncIterator[RawClient]:
        """A bare HTTP client with the kubeconfig's credentials; with `server`, to that one, whoever it says it is."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        context = next(one["context"] for one in config["contexts"] if one["name"] == config["current-context"])
        cluster = next(one["cluster"] for one in config["clusters"] if one["name"] == context["cluster"])
        if server:
            cluster = {"server": server, "insecure-skip-tls-verify": True}
        user = next(one["user"] for one in config["users"] if one["name"] == context["user"]) or {}
        headers = {"Authorization": f"Bearer {user['token']}"} if user.get("token") else {}
        tls = _build_tls(cluster, user) if cluster["server"].startswith("https:") else None
        connector = aiohttp.TCPConnector(ssl=tls) if tls is not None else None
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(
            headers=headers, connector=connector, timeout=timeout, read_bufsize=2**21
        ) as session:
            yield RawClient(session, cluster["server"])

    @asynccontextmanager
    async def scratch(self, client: RawClient) -> AsyncIterator[Scratch]:
        """A namespace and names for one test; what was made under them is deleted at the end."""
        name = f"pydra-test-{secrets.token_hex(4)}"
        await client.create("/api/v1/namespaces", {"metadata": {"name": name}})
        try:
            yield Scratch(name, f"{name}.example.com", f"{name}-node")
        finally:
            selector = {"fieldSelector": f"spec.driver={name}.example.com"}
            await client.request("DELETE", SLICES, params=selector)
            await client.request("DELETE", f"/api/v1/namespaces/{name}")


def _build_tls(cluster: JsonObject, user: JsonObject) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=_read_data(cluster, "certificate-authority"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _read_data(user, "client-certificate"), _read_data(user, "client-key")
    if certificate and key:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(f"{certificate}\n{key}")
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _read_data(entry: JsonObject, name: str) -> str | None:
    if f"{name}-data" in entry:
        return base64.b64decode(entry[f"{name}-data"]).decode()
    return Path(entry[name]).read_text() if name in entry else None


@asynccontextmanager
async def open_api(**options: Any) -> AsyncIterator[ApiHandle]:
    """The API server under test; `options` of `serve_api` skip the test on a real cluster."""
    if not REAL_KUBECONFIG:
        async with serve_api(**{"bookmark_period": 0.05, **options}) as server:
            yield ApiHandle(server.kubeconfig, server)
    elif options:
        pytest.skip(f"needs an embedded API server with {', '.join(options)}, and KUBECONFIG is set")
    else:
        yield ApiHandle(Path(REAL_KUBECONFIG), None)
