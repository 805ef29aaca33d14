"""Takeover from a vendor's driver on this node: whether it still serves, and its checkpoint."""

from __future__ import annotations

import asyncio
import os

from pydra import ClaimError

_SECONDS = 2.0


class VendorRuns(ClaimError):
    """The vendor's own plugin still serves on this node."""

    reason = "VendorRuns"


async def read_left_checkpoint(path: str, vendor: str, advice: str = "uninstall it") -> bytes | None:
    """Return the checkpoint that a plugin left at `path`, in its directory; None if there is none.

    `advice` is how the admin ends the plugin. Raises VendorRuns if it serves, ClaimError if the file cannot be read.
    """
    text = await asyncio.to_thread(_read_checkpoint, path)
    directory, name = os.path.split(path)
    if text is not None and (socket := await find_live_socket(directory)):
        raise VendorRuns(
            f"{vendor}'s own DRA driver still serves on this node ({socket} answers, {name} is there); {advice}, and "
            "its prepared claims are taken over"
        )
    return text


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


def _read_checkpoint(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ClaimError(f"{path} cannot be read: {error.strerror}; is the plugin directory mounted?") from error
