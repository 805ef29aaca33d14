"""The node service, DRAPlugin v1 and v1beta1: the kubelet asks for claims to be prepared and unprepared.

A call is answered claim by claim. The work on a claim belongs to the agent and outlives the call: when the kubelet
stops waiting, the work goes on, and the kubelet's retry joins it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TypeAlias, TypeVar

from grpclib import GRPCError, Status

from pydra.claims.outcome import ClaimRef, PrepareOutcome, UnprepareOutcome
from pydra.errors import ClaimError, PydraError
from pydra.kubelet import messages
from pydra.kubelet.pb import dra_v1, dra_v1beta1
from pydra.observability.logging import set_logging_fields

log = logging.getLogger(__name__)

OutcomeT = TypeVar("OutcomeT")
StartPrepare: TypeAlias = Callable[[ClaimRef], "asyncio.Future[PrepareOutcome]"]
StartUnprepare: TypeAlias = Callable[[ClaimRef], "asyncio.Future[UnprepareOutcome]"]
"""Starts work on a claim, or joins what is running, and returns at once. The future always gets an outcome, never an
exception, and must not be cancelled."""


class NodeCalls:
    """The calls of both versions, with values instead of messages."""

    def __init__(self, driver: str, prepare: StartPrepare, unprepare: StartUnprepare) -> None:
        self._driver = driver
        self._prepare = prepare
        self._unprepare = unprepare
        self._request_ids = count(1)

    async def prepare(self, wire_claims: Sequence[object]) -> Mapping[str, PrepareOutcome]:
        """Outcomes for exactly the claims of the request."""
        return await self._run("NodePrepareResources", wire_claims, self._prepare)

    async def unprepare(self, wire_claims: Sequence[object]) -> Mapping[str, UnprepareOutcome]:
        """Outcomes for exactly the claims of the request."""
        return await self._run("NodeUnprepareResources", wire_claims, self._unprepare)

    async def _run(
        self, method: str, wire_claims: Sequence[object], start: Callable[[ClaimRef], asyncio.Future[OutcomeT]]
    ) -> Mapping[str, OutcomeT | PydraError]:
        try:
            call = messages.parse_claims(wire_claims)
        except ClaimError as error:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, str(error)) from error
        set_logging_fields(request_id=str(next(self._request_ids)), driver=self._driver, call=method)
        if call.refused:
            first, *others = (f"{uid[:64]!r}: {error}" for uid, error in call.refused.items())
            log.warning("refused claims: %s%s", first, f"; and {len(others)} more" if others else "")
        started = {ref.uid: start(ref) for ref in call.refs}
        pending = [future for future in started.values() if not future.done()]
        if pending:
            try:
                await asyncio.wait(pending)  # which does not cancel them when the call is cancelled
            except asyncio.CancelledError:
                log.warning("the kubelet stopped waiting for %d claims; the work goes on", len(call.refs))
                raise
        return {**{uid: future.result() for uid, future in started.items()}, **call.refused}


class NodeServiceV1(dra_v1.DraPluginBase):
    """`k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin`."""

    def __init__(self, calls: NodeCalls) -> None:
        self._calls = calls

    async def node_prepare_resources(
        self, message: dra_v1.NodePrepareResourcesRequest
    ) -> dra_v1.NodePrepareResourcesResponse:
        """Prepare, v1."""
        return messages.build_prepare_v1(await self._calls.prepare(message.claims))

    async def node_unprepare_resources(
        self, message: dra_v1.NodeUnprepareResourcesRequest
    ) -> dra_v1.NodeUnprepareResourcesResponse:
        """Unprepare, v1."""
        return messages.build_unprepare_v1(await self._calls.unprepare(message.claims))


class NodeServiceV1beta1(dra_v1beta1.DraPluginBase):
    """`k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin`."""

    def __init__(self, calls: NodeCalls) -> None:
        self._calls = calls

    async def node_prepare_resources(
        self, message: dra_v1beta1.NodePrepareResourcesRequest
    ) -> dra_v1beta1.NodePrepareResourcesResponse:
        """Prepare, v1beta1."""
        return messages.build_prepare_v1beta1(await self._calls.prepare(message.claims))

    async def node_unprepare_resources(
        self, message: dra_v1beta1.NodeUnprepareResourcesRequest
    ) -> dra_v1beta1.NodeUnprepareResourcesResponse:
        """Unprepare, v1beta1."""
        return messages.build_unprepare_v1beta1(await self._calls.unprepare(message.claims))
