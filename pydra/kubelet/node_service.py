"""The node service, DRAPlugin v1 and v1beta1: both versions are one set of calls on one ClaimService.

Every call is answered claim by claim. Its work runs in a task group that outlives the call: when the kubelet's patience
ends, the work goes on, and the retry finds it done, or joins it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import anyio
from grpclib import GRPCError, Status

from pydra.claims.outcome import ClaimRef, PrepareOutcome, UnprepareOutcome
from pydra.errors import ClaimError, PydraError
from pydra.kubelet import messages
from pydra.kubelet.pb import dra_v1, dra_v1beta1
from pydra.observability.context import logging_fields

log = logging.getLogger(__name__)

OutcomeT = TypeVar("OutcomeT")
Operation: TypeAlias = Callable[[Sequence[ClaimRef]], Awaitable[Mapping[str, OutcomeT | PydraError]]]
Spawn: TypeAlias = Callable[..., Any]
"""Starts `function(*args)` as a task that outlives the caller, such as a task group's `start_soon`."""


class ClaimService(Protocol):
    """What serves claims; `pydra.claims.preparer` in the agent. Errors of a claim are its outcome, never raised."""

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, PrepareOutcome]:
        """Make the claims' devices ready; an outcome by uid for every ref."""

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, UnprepareOutcome]:
        """Undo it; an outcome by uid for every ref."""


class NodeCalls:
    """The calls of both versions, with values instead of messages."""

    def __init__(self, driver: str, claims: ClaimService, spawn: Spawn) -> None:
        self._driver = driver
        self._claims = claims
        self._spawn = spawn
        self._request_ids = count(1)

    async def prepare(self, wire_claims: Sequence[object]) -> Mapping[str, PrepareOutcome]:
        """Outcomes for exactly the claims of the request."""
        return await self._run("NodePrepareResources", wire_claims, self._claims.prepare)

    async def unprepare(self, wire_claims: Sequence[object]) -> Mapping[str, UnprepareOutcome]:
        """Outcomes for exactly the claims of the request."""
        return await self._run("NodeUnprepareResources", wire_claims, self._claims.unprepare)

    async def _run(
        self, method: str, wire_claims: Sequence[object], operation: Operation[OutcomeT]
    ) -> Mapping[str, OutcomeT | PydraError]:
        try:
            call = messages.parse_claims(wire_claims)
        except ClaimError as error:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, str(error)) from error
        with logging_fields(request_id=str(next(self._request_ids)), driver=self._driver, call=method):
            if call.refused:
                first, *others = (f"{uid[:64]!r}: {error}" for uid, error in call.refused.items())
                log.warning("claims are refused: %s%s", first, f"; and {len(others)} more" if others else "")
            work = _Work(operation, call, missing=PydraError(f"driver {self._driver} gave no answer for this claim"))
            self._spawn(work.run)
            try:
                await work.done.wait()
            except anyio.get_cancelled_exc_class():
                log.warning("the kubelet does not wait any longer for %d claims; the work goes on", len(call.refs))
                raise
        if work.outcomes is None:
            raise GRPCError(Status.UNAVAILABLE, f"driver {self._driver} is stopping")
        return work.outcomes


class _Work(Generic[OutcomeT]):
    """What a call started, and its result."""

    def __init__(self, operation: Operation[OutcomeT], call: messages.ClaimCall, *, missing: PydraError) -> None:
        self.done = anyio.Event()
        self.outcomes: Mapping[str, OutcomeT | PydraError] | None = None
        self._operation = operation
        self._call = call
        self._missing = missing

    async def run(self) -> None:
        """Serve the claims; the end of the agent is the only thing that can keep this from having outcomes."""
        try:
            self.outcomes = await self._serve()
        finally:
            self.done.set()

    async def _serve(self) -> Mapping[str, OutcomeT | PydraError]:
        outcomes: Mapping[str, OutcomeT | PydraError] = {}
        missing = self._missing
        try:
            if self._call.refs:
                outcomes = await self._operation(self._call.refs)
                self._log_unasked(outcomes)
        # The boundary of the call: whatever goes wrong behind it, the kubelet reads what it was, claim by claim.
        except Exception as error:  # noqa: BLE001
            missing = _explain(error)
        return messages.complete(self._call, outcomes, missing)

    def _log_unasked(self, outcomes: Mapping[str, OutcomeT | PydraError]) -> None:
        asked = {ref.uid for ref in self._call.refs}
        if asked != outcomes.keys():
            log.error("claims without an answer: %s", sorted(asked ^ outcomes.keys()))


def _explain(error: Exception) -> PydraError:
    """The error as pydra's own: a single one out of a task group's group as it is, a bug in words."""
    found: BaseException = error
    while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    if isinstance(found, PydraError):
        return found
    log.error("a call failed as a whole", exc_info=error)
    return PydraError(f"internal error: {type(found).__name__}: {messages.describe(found)}")


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
