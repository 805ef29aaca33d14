"""Gives back what only the start needed: on every node, mostly idle, memory is what an agent costs."""

from __future__ import annotations

import gc
import logging
from ctypes import CDLL

import anyio

_log = logging.getLogger(__name__)


async def give_back_memory(after: float) -> None:
    """Once, after so many seconds: collect, keep the survivors out of later collections, return free pages."""
    await anyio.sleep(after)
    gc.collect()
    gc.freeze()
    try:
        CDLL(None).malloc_trim(0)
    except AttributeError:
        _log.debug("this C library has no malloc_trim")
