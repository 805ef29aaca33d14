"""What importing the client reads and loads, seen in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio.to_thread
import pytest

from pydra_dev.apiserver.server import serve_api
from tests.integration.kube.authority import Authority

PROGRAM = """
import asyncio, ssl, sys
{first}
from pydra.kube.lean_imports import LazySSLContext, aiohttp
from aiohttp.connector import _SSL_CONTEXT_VERIFIED as context
context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the authority here has no key identifier

def tell():
    assert "aiohttp" in {first!r} or context.minimum_version >= ssl.TLSVersion.TLSv1_2
    print(type(context) is LazySSLContext, context.cert_store_stats()["x509_ca"])

async def connect():
    try:
        async with aiohttp.ClientSession() as session, session.get(sys.argv[1] + "/version") as response:
            print(response.status)
    except aiohttp.ClientConnectorCertificateError as error:
        print("refused")

tell()
asyncio.run(connect())
tell()
"""


async def run(url: str, *, system: str, first: str = "") -> list[str]:
    def call() -> str:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM.format(first=first), url],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            env={"PYTHONPATH": ":".join(filter(None, sys.path)), "SSL_CERT_FILE": system, "SSL_CERT_DIR": "/proc/no"},
        ).stdout

    return (await anyio.to_thread.run_sync(call)).splitlines()


async def test_the_systems_authorities_are_read_at_the_first_connection(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with serve_api(tls=authority.context) as api:
        assert await run(api.url, system=str(authority.ca)) == ["True 0", "200", "False 1"]


async def test_a_server_that_the_system_does_not_trust_is_refused(tmp_path: Path) -> None:
    async with serve_api(tls=Authority(tmp_path).context) as api:
        assert await run(api.url, system="/dev/null") == ["True 0", "refused", "False 0"]


async def test_an_aiohttp_that_is_loaded_already_is_left_as_it_is(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with serve_api(tls=authority.context) as api:
        assert await run(api.url, system=str(authority.ca), first="import aiohttp") == ["False 1", "200", "False 1"]


@pytest.mark.parametrize(
    ("program", "modules"),
    [
        ("import pydra.kube.client, pydra.kube.informer", 0),
        (
            "import pydra.kube.lean_imports as t; t.import_kubeconfig_loader().KubeConfigLoader",
            0,
        ),
        ("import kubernetes_asyncio; import pydra.kube.lean_imports as t; t.import_kubeconfig_loader()", 700),
    ],
    ids=["the client", "a kubeconfig", "a program that uses the package itself"],
)
def test_kubernetes_asyncio_is_loaded_only_by_those_who_want_it(program: str, modules: int) -> None:
    count = "import sys; print(sum(name.startswith('kubernetes_asyncio') for name in sys.modules))"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{program}; {count}"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert int(run.stdout) in (range(1) if modules == 0 else range(modules, 10_000))
