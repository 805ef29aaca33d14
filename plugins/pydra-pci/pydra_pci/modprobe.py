"""Runs the node's own modprobe, so that its blacklists and options count."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence


async def run_modprobe(host_root: str, arguments: Sequence[str], seconds: float) -> str:
    """Run the node's own modprobe, in the node's root. Why it failed; empty when it did not."""
    command = [*([] if host_root == "/" else ["chroot", host_root]), "modprobe", *arguments]
    line = " ".join(command)
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PATH": path},
        )
    except OSError as error:
        return f"{line}: {error.strerror}"
    try:
        _, told = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        return f"{line} did not end within {seconds:g} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(TimeoutError):  # in the kernel, where no signal reaches it
                await asyncio.wait_for(process.wait(), 1.0)
    words = " ".join(told.decode("utf-8", "replace").split())
    return "" if process.returncode == 0 else f"{line} ended with {process.returncode}: {words or 'it says nothing'}"
