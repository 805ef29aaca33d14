"""The embedded API server as a process of its own, so that it shares no interpreter with what is measured."""

from __future__ import annotations

import sys

import anyio
from pydra.embedded.apiserver import serve_api


async def serve(kubeconfig: str) -> None:
    """Serve until killed; prints the URL when ready."""
    async with serve_api(kubeconfig=kubeconfig) as api:
        print(api.url, flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(serve, sys.argv[1])
