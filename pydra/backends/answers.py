"""Reads what a backend's coroutines return: decodes it, and refuses what violates the contract."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from pydra.backends.contract import Inheritance
from pydra.backends.contract_validation import (
    find_inheritance_violations,
    find_json_violations,
    find_prepared_violations,
    find_sample_violations,
    find_size_violations,
    find_value_violations,
    sort_prepared,
)
from pydra.backends.supervisor_events import AnswerRejected
from pydra.backends.wire import MAX_CONTAINERS, Method, Reply, count_containers
from pydra.claim import Claim, ClaimStep, PreparedDevice, answers_exactly
from pydra.devices import Inventory, Sample
from pydra.errors import ContractError

T = TypeVar("T")

_log = logging.getLogger(__name__)


class _StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A `Plan` as the backend's process describes it."""

    steps: tuple[ClaimStep, ...] = ()
    data: Any = None


def _refuse_extension(code: int, _: memoryview) -> None:
    raise msgspec.ValidationError(f"an extension of msgpack, type {code}, is not JSON")


class AnswerReader:
    """Reads the answers of one backend. Each method raises ContractError, after it was logged and reported."""

    def __init__(self, backend: str, report: Callable[[AnswerRejected], None]) -> None:
        self._backend = backend
        self._report = report

    def read_inventory(self, reply: Reply) -> Inventory:
        """Return what `discover` returned."""
        return self._decode(reply, Inventory, Method.DISCOVER)

    def read_plan(self, reply: Reply, claim: Claim, *, has_steps: bool) -> Claim:
        """Return the claim with what `plan` returned."""
        self._check(Method.PLAN, find_size_violations(Method.PLAN, reply.result), claim)
        if not has_steps:
            data = self._decode(reply, object, Method.PLAN, claim)
            self._check(Method.PLAN, find_json_violations(Method.PLAN, data), claim)
            return msgspec.structs.replace(claim, plan=data)
        plan = self._decode(reply, _StepPlan, Method.PLAN, claim)
        # Steps have types, of which some, such as bytes, are texts in JSON; what else there is has none.
        said = {"steps": msgspec.to_builtins(plan.steps), "data": plan.data}
        self._check(Method.PLAN, find_json_violations(Method.PLAN, said), claim)
        return msgspec.structs.replace(claim, plan=plan.data, steps=plan.steps)

    def read_result(self, reply: Reply, claim: Claim) -> Any:
        """Return what `apply` returned for a step of the claim, as JSON."""
        self._check(Method.APPLY, find_size_violations(Method.APPLY, reply.result), claim)
        result = self._decode(reply, object, Method.APPLY, claim)
        self._check(Method.APPLY, find_json_violations(Method.APPLY, result), claim)
        return result

    def read_prepared(self, reply: Reply, claim: Claim) -> tuple[PreparedDevice, ...]:
        """Return what `prepare` returned, in the order of the claim's devices."""
        prepared = self._decode(reply, tuple[PreparedDevice, ...], Method.PREPARE, claim)
        if answers_exactly(claim, prepared):
            return prepared
        self._check(Method.PREPARE, find_prepared_violations(claim, prepared), claim)
        return sort_prepared(claim, prepared)

    def read_samples(self, reply: Reply) -> tuple[Sample, ...]:
        """Return what `measure` returned."""
        samples = self._decode(reply, tuple[Sample, ...], Method.MEASURE)
        self._check(Method.MEASURE, find_sample_violations(samples))
        return samples

    def read_inheritance(self, reply: Reply) -> Inheritance:
        """Return what `inherit` returned."""
        inheritance = self._decode(reply, Inheritance, Method.INHERIT)
        self._check(Method.INHERIT, find_inheritance_violations(inheritance))
        return inheritance

    def reject(self, method: Method, violations: tuple[str, ...], claim: Claim | None) -> ContractError:
        """Report that an answer violates the contract; return the error for its caller."""
        error = ContractError(self._backend, violations)
        _log.error("%s", error)
        self._report(AnswerRejected(backend=self._backend, method=method, claim=claim, violations=violations))
        return error

    def _decode(self, reply: Reply, wanted: type[T], method: Method, claim: Claim | None = None) -> T:
        if count_containers(reply.result) > MAX_CONTAINERS:
            said = f"{method.value} returned more than {MAX_CONTAINERS:,} lists and objects"
            raise self.reject(method, (said,), claim)
        try:  # here, not on the connection: an invalid result fails only its own call
            return msgspec.msgpack.decode(reply.result, type=wanted, ext_hook=_refuse_extension)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            violations = find_value_violations(reply.result, wanted) or (str(error),)
            raise self.reject(method, tuple(f"{method.value}: {one}" for one in violations), claim) from error

    def _check(self, method: Method, violations: tuple[str, ...], claim: Claim | None = None) -> None:
        if violations:
            raise self.reject(method, violations, claim)
