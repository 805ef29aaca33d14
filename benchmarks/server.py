"""The embedded API server as a process of its own, so that it shares no interpreter with what is measured."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import anyio.to_thread

from pydra_dev.apiserver.server import serve_api


async def serve(kubeconfig: Path) -> None:
    """Serve until killed; prints the URL when ready, then for every line read the number of requests so far."""
    async with serve_api(kubeconfig=kubeconfig) as api:
        print(api.url, flush=True)
        while await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            print(len(api.requests.calls), flush=True)


if __name__ == "__main__":
    anyio.run(serve, Path(sys.argv[1]))
