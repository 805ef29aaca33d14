"""Takeover from another driver on this node: whether it still serves, and its checkpoint."""

from __future__ import annotations

import asyncio
import os

from pydra import ClaimError

_SECONDS = 2.0


async def find_live_socket(directory: str, prefix: str = "") -> str | None:
    """Return the first socket in the directory that accepts connections; None if there is none with this prefix."""
    try:
        names = sorted(await asyncio.to_thread(os.listdir, directory))
    except OSError:
        return None
    for name in names:
        path = os.path.join(directory, name)
        if name.startswith(prefix) and name.endswith(".sock") and await _is_live(path):
            return path
    return None


async def _is_live(path: str) -> bool:
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_unix_connection(path)
    except TimeoutError:
        return True  # a program has it, and is too busy to answer
    except OSError:
        return False
    writer.close()
    return True


def read_checkpoint(path: str) -> bytes | None:
    """Return the content of another driver's checkpoint; None if there is none. Raises ClaimError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ClaimError(f"{path} cannot be read: {error.strerror}; is the plugin directory mounted?") from error
