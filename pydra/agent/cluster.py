"""Whether the cluster is one that can be served, asked until it says so, and said where an admin looks meanwhile."""

from __future__ import annotations

import logging
from typing import Protocol

import anyio

from pydra.errors import KubeError, Unsupported
from pydra.kube.client import KubeClient
from pydra.kube.version import check_server

_log = logging.getLogger(__name__)
RETRY = 30.0


class Tells(Protocol):
    """The part of the agent's reports that is used here."""

    def cluster_unsupported(self, error: Unsupported) -> None:
        """It cannot be served, in words."""
        ...

    def cluster_supported(self) -> None:
        """It can be served."""
        ...


class Cluster:
    """The API server's release and what it serves; an upgrade of it is noticed within `retry` seconds."""

    def __init__(self, client: KubeClient, reports: Tells, *, retry: float = RETRY) -> None:
        self._client = client
        self._reports = reports
        self._retry = retry
        self._missing = ""

    def missing(self) -> str:
        """Why nothing can be served, in words; empty when nothing is known to keep the agent from it."""
        return self._missing

    async def run(self) -> None:
        """Return when the cluster says that it is supported."""
        while True:
            try:
                version = await check_server(self._client)
            except Unsupported as error:
                self._missing = str(error)
                _log.error("%s", error)
                self._reports.cluster_unsupported(error)
            except KubeError as error:
                _log.error("%s", error)
            else:
                break
            await anyio.sleep(self._retry)
        self._missing = ""
        self._reports.cluster_supported()
        _log.info("the cluster runs Kubernetes %s", version)
