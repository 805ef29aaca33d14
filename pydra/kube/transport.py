"""Imports aiohttp without the system's certificate authorities: `from pydra.kube.transport import aiohttp`.

At import aiohttp builds two TLS contexts and reads all authorities of the machine into each: 40 ms and 2 MiB
on every node, for an agent that trusts the cluster's authority only. Here each reads them at its first connection.
"""

from __future__ import annotations

import ssl
import sys
from typing import Any


class LateContext(ssl.SSLContext):
    """A context that was to trust the system's authorities, and does from its first connection on."""

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """As every SSLContext does; asyncio and uvloop connect through this method alone."""
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]
        self.set_default_verify_paths()
        return self.wrap_bio(*args, **kwargs)


def _postpone(context: ssl.SSLContext) -> None:
    context.__class__ = LateContext


if "aiohttp" not in sys.modules:
    # Shadows the method of the C class for the moment of the import.
    ssl.SSLContext.set_default_verify_paths = _postpone  # type: ignore[assignment]
    try:
        import aiohttp
    finally:
        del ssl.SSLContext.set_default_verify_paths
else:
    import aiohttp

__all__ = ["LateContext", "aiohttp"]
