"""What importing aiohttp through the client reads, and that it still trusts whom the system trusts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio.to_thread

from pydra_dev.apiserver import serve_api
from tests.integration.kube.test_auth import Authority

PROGRAM = """
import asyncio, ssl, sys
{first}
from pydra.kube.transport import LateContext, aiohttp
from aiohttp.connector import _SSL_CONTEXT_VERIFIED as context
context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the authority here has no key identifier

def tell():
    print(type(context) is LateContext, context.cert_store_stats()["x509_ca"])

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
            timeout=30,
            env={"PYTHONPATH": ":".join(filter(None, sys.path)), "SSL_CERT_FILE": system, "SSL_CERT_DIR": "/nowhere"},
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
