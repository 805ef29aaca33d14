"""Hardware as files of the node: what a chart's agent reads in the place of the node's /sys and /dev.

The agent is that of the image for nodes, which has no simulation: settings tell it where the files are.
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydra.kube.api_resources import NODES, RESOURCE_CLAIMS, JsonObject
from tests.e2e.cluster import Cluster, open_cluster
from tests.e2e.release import PRIVILEGED, Release, open_release, state_of

NULL = Path("/dev/null")


@asynccontextmanager
async def open_hardware(
    driver: str, label: tuple[str, str], build: Callable[[Path], Mapping[str, Any]]
) -> AsyncIterator[tuple[Cluster, Release, Path]]:
    """The cluster, a release to install, and the machine's files, which `build` makes there.

    It returns the release's values of `backends`. The node has the label by which the chart finds such hardware.
    """
    async with open_cluster(driver, **PRIVILEGED) as cluster:
        tree = state_of(driver) / "tree"
        backends = build(tree)
        make_nodes(tree)
        async with open_release(cluster, backends) as release:
            await _label(cluster, *label)
            try:
                yield cluster, release, tree
            finally:
                await cluster.clear()
                await _label(cluster, label[0], None)


def make_nodes(tree: Path) -> None:
    """Nodes of the same numbers instead of links to /dev/null, which container runtimes do not follow."""
    for path in tree.rglob("*"):
        if path.is_symlink() and path.readlink() == NULL:
            path.unlink()
            os.mknod(path, stat.S_IFCHR | 0o600, NULL.stat().st_rdev)


async def allocated(cluster: Cluster, claim: str) -> list[str]:
    """The devices of a claim, in the order of its requests."""
    found = await cluster.client.get(RESOURCE_CLAIMS, claim, namespace=cluster.namespace)
    return [one["device"] for one in found["status"]["allocation"]["devices"]["results"]]


def ask(device_class: str, **exactly: Any) -> list[JsonObject]:
    """A claim's only request."""
    return [{"name": "it", "exactly": {"deviceClassName": device_class, **exactly}}]


async def _label(cluster: Cluster, key: str, value: str | None) -> None:
    await cluster.client.patch(NODES, cluster.node, {"metadata": {"labels": {key: value}}})
