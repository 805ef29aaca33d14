"""DRAPlugin gRPC service (v1 and v1beta1): prepare and unprepare.

A call is answered claim by claim. The work on a claim belongs to the agent and outlives the call: when the kubelet
stops waiting, the work continues, and the kubelet's retry joins it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import TypeAlias, TypeVar

from pydra.claim import ClaimRef, PrepareOutcome, UnprepareOutcome
from pydra.errors import PydraError
from pydra.kubelet.grpc_server import Method
from pydra.kubelet.message_conversion import build_prepare_response, build_unprepare_response, parse_claims
from pydra.observability.logging import set_logging_fields

log = logging.getLogger(__name__)

PREPARE = "NodePrepareResources"
UNPREPARE = "NodeUnprepareResources"
_V1 = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_V1BETA1 = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"

OutcomeT = TypeVar("OutcomeT")
StartPrepare: TypeAlias = Callable[[ClaimRef], "asyncio.Future[PrepareOutcome]"]
StartUnprepare: TypeAlias = Callable[[ClaimRef], "asyncio.Future[UnprepareOutcome]"]
"""Starts work on a claim, or joins what is running, and returns at once. The future always gets an outcome, never an
exception, and must not be cancelled."""


class NodeService:
    """Both versions of DRAPlugin."""

    def __init__(self, driver: str, prepare: StartPrepare, unprepare: StartUnprepare) -> None:
        self._driver = driver
        self._start_prepare = prepare
        self._start_unprepare = unprepare
        self._request_ids = count(1)

    def methods(self) -> dict[str, Method]:
        """Return the methods by path."""
        unprepare = Method(unary=self._unprepare)
        return {
            f"{_V1}/{PREPARE}": Method(unary=partial(self._prepare, share_ids=True)),
            f"{_V1}/{UNPREPARE}": unprepare,
            f"{_V1BETA1}/{PREPARE}": Method(unary=partial(self._prepare, share_ids=False)),
            f"{_V1BETA1}/{UNPREPARE}": unprepare,
        }

    async def _prepare(self, request: bytes, *, share_ids: bool) -> bytes:
        return build_prepare_response(await self._run(PREPARE, request, self._start_prepare), share_ids=share_ids)

    async def _unprepare(self, request: bytes) -> bytes:
        return build_unprepare_response(await self._run(UNPREPARE, request, self._start_unprepare))

    async def _run(
        self, method: str, request: bytes, start: Callable[[ClaimRef], asyncio.Future[OutcomeT]]
    ) -> Mapping[str, OutcomeT | PydraError]:
        """Wait for the outcomes, by uid, of exactly the claims of the request."""
        call = parse_claims(request)
        set_logging_fields(request_id=str(next(self._request_ids)), driver=self._driver, call=method)
        if call.refused:
            first, *others = (f"{uid[:64]!r}: {error}" for uid, error in call.refused.items())
            log.warning("refused claims: %s%s", first, f"; and {len(others)} more" if others else "")
        started: dict[str, asyncio.Future[OutcomeT]] = {}
        pending: list[asyncio.Future[OutcomeT]] = []
        for ref in call.refs:
            future = started[ref.uid] = start(ref)
            if not future.done():
                pending.append(future)
        if pending:
            try:
                await asyncio.wait(pending)  # which does not cancel them when the call is cancelled
            except asyncio.CancelledError:
                log.warning("the kubelet stopped waiting for claims (%d); the work goes on", len(pending))
                raise
        outcomes: dict[str, OutcomeT | PydraError] = {**call.refused}
        for uid, future in started.items():
            outcomes[uid] = future.result()
        return outcomes
