"""A metadata server on loopback, whose attributes a test decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

PATH = "/computeMetadata/v1/instance/attributes/{name}"


class FakeMetadataServer:
    """It answers as Google's does, with `attributes`; not before `answers` is set, if it is cleared."""

    def __init__(self) -> None:
        self.address = ""
        self.attributes: dict[str, str] = {}
        self.headers = {"Metadata-Flavor": "Google"}
        self.status = 200
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked: asyncio.Queue[str] = asyncio.Queue()

    async def answer(self, request: web.Request) -> web.Response:
        """One attribute, for those who ask as one must."""
        name = request.match_info["name"]
        self.asked.put_nowait(name)
        await self.answers.wait()
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403)
        text = self.attributes.get(name)
        return web.Response(status=404 if text is None else self.status, text=text or "", headers=self.headers)

    async def be_asked(self, times: int) -> None:
        """Return when it has been asked so many times from now on."""
        while not self.asked.empty():
            self.asked.get_nowait()
        for _ in range(times):
            await asyncio.wait_for(self.asked.get(), 60)

    @asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator[str]:
        """Listen; the address."""
        application = web.Application()
        application.router.add_get(PATH, self.answer)
        runner = web.AppRunner(application, shutdown_timeout=0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", port)
            await site.start()
            host, actual = runner.addresses[0][:2]
            self.address = f"{host}:{actual}"
            yield self.address
        finally:
            self.answers.set()
            await runner.cleanup()
