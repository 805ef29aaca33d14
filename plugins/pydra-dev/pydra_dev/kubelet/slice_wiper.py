"""Deletes this node's ResourceSlices: all when the kubelet starts, and those of a driver that is away for too long."""

from __future__ import annotations

import logging

import anyio

from pydra.errors import KubeError, NotFound
from pydra.kube.api_resources import RESOURCE_SLICES
from pydra.kube.client import KubeClient
from pydra_dev.kubelet.observations import Report, SlicesWiped
from pydra_dev.kubelet.settings import KubeletSettings

log = logging.getLogger(__name__)


class SliceWiper:
    """Deletes slices, again and again until the API server has done it."""

    def __init__(self, settings: KubeletSettings, client: KubeClient, report: Report) -> None:
        self._settings = settings
        self._client = client
        self._report = report

    async def wipe(self, driver: str = "") -> None:
        """Delete the node's slices, of one driver or of all. Those without a node name are never deleted."""
        selector = f"spec.nodeName={self._settings.node_name}" + (f",spec.driver={driver}" if driver else "")
        failures = 0
        while True:
            try:
                names = await self._delete(selector)
            except KubeError as error:
                failures += 1
                log.warning("cannot delete ResourceSlices with %s: %s", selector, error)
                await anyio.sleep(self._settings.periods.wipe_retry.pause(failures))
            else:
                self._report(SlicesWiped(driver=driver, names=names))
                return

    async def _delete(self, selector: str) -> tuple[str, ...]:
        found = await self._client.list(RESOURCE_SLICES, field_selector=selector)
        names = tuple(one["metadata"]["name"] for one in found.items)
        for name in names:
            try:
                await self._client.delete(RESOURCE_SLICES, name)
            except NotFound:
                log.debug("ResourceSlice %s is already gone", name)
        return names
