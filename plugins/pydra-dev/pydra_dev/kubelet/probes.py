"""Readiness probes of containers: HTTP requests to the pod's address, as the kubelet makes them.

Other kinds of probes count as answered.
"""

from __future__ import annotations

import aiohttp

from pydra_dev.kubelet.pod_claims import JsonObject


def find_probe(container: JsonObject) -> JsonObject:
    """The request of its readiness probe; empty without one."""
    found: JsonObject = (container.get("readinessProbe") or {}).get("httpGet") or {}
    return found


def build_url(container: JsonObject, address: str) -> str:
    """Where the probe goes; its port may be the name of one of the container's."""
    request = find_probe(container)
    ports = {one.get("name"): one["containerPort"] for one in container.get("ports") or ()}
    scheme = str(request.get("scheme") or "HTTP").lower()
    return f"{scheme}://{address}:{ports.get(request['port'], request['port'])}{request.get('path') or '/'}"


async def is_ready(container: JsonObject, address: str) -> bool:
    """Whether the container answers now."""
    timeout = aiohttp.ClientTimeout(total=float(container["readinessProbe"].get("timeoutSeconds") or 1))
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(build_url(container, address), ssl=False, allow_redirects=False) as answer,
        ):
            return 200 <= answer.status < 400
    except (aiohttp.ClientError, TimeoutError):
        return False
