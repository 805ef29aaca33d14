"""Asks Google's metadata server, beside all calls: what it tells is a change of the machine, whenever it tells it.

Source: Google Cloud's page on the metadata server: paths, and the header that requests and answers must have.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, cast

from pydra_tpu.slice_facts.parse import ATTRIBUTES

DEADLINE: Final = 2.0
"""Seconds for all attributes together; the server is on the same machine."""
FIRST_PAUSE: Final = 1.0
"""Seconds until it is asked again, twice as many after each time, up to LAST_PAUSE: attributes can come and change."""
LAST_PAUSE: Final = 300.0
LIMIT: Final = 1024 * 1024
"""Bytes of one answer. Attributes have at most 256 KiB."""
FLAVOR: Final = ("Metadata-Flavor", "Google")

_logger = logging.getLogger(__name__)


class NoAnswer(Exception):
    """The server did not answer in time, or not as the metadata server does."""


class MetadataServer:
    """What the server at `address` (`host` or `host:port`) has answered last; nothing where there is no address."""

    def __init__(self, address: str, *, first_pause: float = FIRST_PAUSE, deadline: float = DEADLINE) -> None:
        self._address = address
        self._pause = first_pause
        self._deadline = deadline
        self._changed = asyncio.Event()
        self.answers: Mapping[str, str] = {}

    async def run(self) -> None:
        """Ask it for as long as the backend lives. An answer stays until there is another one."""
        was_silent = False
        while self._address:
            try:
                answers = await fetch_attributes(self._address, self._deadline)
            except NoAnswer as error:
                if not was_silent:
                    _logger.info("the metadata server at %s does not answer, will ask again: %s", self._address, error)
                was_silent = True
            else:
                was_silent = False
                if answers != self.answers:
                    self.answers = answers
                    self._changed.set()
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, LAST_PAUSE)

    async def wait_changed(self, seconds: float) -> None:
        """Return when it has answered something else than before, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()


async def fetch_attributes(address: str, deadline: float) -> Mapping[str, str]:
    """The attributes that the server has, of ATTRIBUTES. Raises NoAnswer."""
    try:
        async with asyncio.timeout(deadline):
            answers = [(name, await _fetch(address, name)) for name in ATTRIBUTES]
    except TimeoutError:
        raise NoAnswer(f"timed out after {deadline:g} s") from None
    except (OSError, ValueError, HTTPException) as error:
        raise NoAnswer(str(error) or type(error).__name__) from error
    return {name: text for name, text in answers if text is not None}


async def _fetch(address: str, attribute: str) -> str | None:
    """The attribute's text; None where the server does not have it."""
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port or 80))
    try:
        lines = (
            f"GET /computeMetadata/v1/instance/attributes/{attribute} HTTP/1.1",
            f"Host: {address}",
            f"{FLAVOR[0]}: {FLAVOR[1]}",
            "Connection: close",
        )
        writer.write("\r\n".join((*lines, "", "")).encode("ascii"))
        received = bytearray()
        while part := await reader.read(LIMIT):
            received += part
            if len(received) > LIMIT:
                raise NoAnswer(f"more than {LIMIT} bytes for {attribute}")
    finally:
        writer.close()
    return _parse_answer(bytes(received), attribute)


def _parse_answer(received: bytes, attribute: str) -> str | None:
    response = HTTPResponse(cast("Any", _Received(received)))
    response.begin()
    if response.getheader(FLAVOR[0]) != FLAVOR[1]:
        raise NoAnswer(f"an answer without {FLAVOR[0]}: {FLAVOR[1]}: it is not the metadata server")
    if response.status == 404:
        return None
    if response.status != 200:
        raise NoAnswer(f"status {response.status} for {attribute}")
    return response.read().decode("utf-8", errors="replace").strip()


class _Received(io.BytesIO):
    """The bytes that were received, as the socket that `HTTPResponse` makes a file of."""

    def makefile(self, _mode: str) -> io.BytesIO:
        return self
