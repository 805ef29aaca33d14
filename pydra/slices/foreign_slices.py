"""Finds slices of other nodes, or of none, in the pool of this node.

Of a pool, only slices with the highest generation count, whatever node they name: one slice from elsewhere can withdraw
all devices of a node. The reconciler does not see them, since it watches the slices of its own node. The API server
cannot select slices by pool, so this lists those of the driver, as a table with a few columns.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import Protocol

import anyio
import msgspec

from pydra.errors import KubeError
from pydra.kube.api_resources import RESOURCE_SLICES, JsonObject, Resource

log = logging.getLogger(__name__)

PERIOD_SECONDS = 3600.0
"""Between two lists: each makes the API server read all slices of the driver."""
_SHOWN = 8


class ForeignSlices(msgspec.Struct, frozen=True, kw_only=True):
    """The foreign slices of a pool have changed; `slices` name them with their nodes, none if all are gone."""

    pool: str
    slices: tuple[str, ...]

    def __str__(self) -> str:
        shown = ", ".join(self.slices[:_SHOWN]) + (", ..." if len(self.slices) > _SHOWN else "")
        return (
            f'pool "{self.pool}" has slices that this node has not published: {shown}. The scheduler may ignore the '
            "devices of this node because of them: find out who wrote them, and delete them with kubectl delete "
            "resourceslice"
        )


class ColumnsClient(Protocol):
    """The part of a KubeClient that is used here."""

    async def list_columns(self, resource: Resource, *, field_selector: str) -> Sequence[JsonObject]: ...  # noqa: D102


async def find_foreign(client: ColumnsClient, *, driver: str, node: str) -> ForeignSlices:
    """Find the foreign slices in the pool of the node. Raises KubeError."""
    selector = f"spec.driver={driver},spec.nodeName!={node}"
    rows = await client.list_columns(RESOURCE_SLICES, field_selector=selector)
    found = sorted(f"{row.get('Name')} (of node {row.get('Node')})" for row in rows if row.get("Pool") == node)
    return ForeignSlices(pool=node, slices=tuple(found))


async def watch_pool(
    client: ColumnsClient,
    *,
    driver: str,
    node: str,
    report: Callable[[ForeignSlices], None],
    period: float = PERIOD_SECONDS,
) -> None:
    """Look for foreign slices until cancelled, at times that differ from node to node; report changes."""
    last = ForeignSlices(pool=node, slices=())
    await anyio.sleep(random.uniform(0.0, period))  # noqa: S311
    while True:
        try:
            found = await find_foreign(client, driver=driver, node=node)
        except KubeError as error:
            log.warning("slices of other nodes cannot be examined: %s", error)
        else:
            if found.slices and found != last:
                log.warning("%s", found)
            if found != last:
                report(found)
            last = found
        await anyio.sleep(period)
