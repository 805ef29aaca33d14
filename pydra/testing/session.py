"""A backend under conformance checks: the claims that it holds, and its calls as the agent makes them."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import anyio

from pydra.backends.child.conformance_main import Observation, Order, drop_order, read_observations, write_order
from pydra.backends.supervisor import BackendSupervisor
from pydra.backends.supervisor_events import BackendFacts
from pydra.backends.wire import Method
from pydra.claim import AllocatedDevice, Claim, HeldClaim, OpaqueConfig, PodRef, PreparedDevice
from pydra.devices import Capacity, Device, Quantity
from pydra.errors import BackendTimeout, BackendUnavailable
from pydra.settings import CLAIM_DEADLINE
from pydra.testing.claims_in_memory import ClaimsInMemory

ABSENT = "pydra-no-such-device"
IMPATIENT_DEADLINE = 5.0
"""Seconds for a call for a claim after one has timed out."""

_POOL = "conformance"


class Session(ClaimsInMemory):
    """A backend, and the claims that it holds for the run."""

    def __init__(
        self, backend: BackendSupervisor, configs: tuple[OpaqueConfig, ...], *, directory: str, connect_limit: float
    ) -> None:
        """`directory` is where the backend's process looks for orders and writes what it observes."""
        super().__init__(backend)
        self.backend = backend
        self.facts: BackendFacts | None = None
        self.device = Device(name=ABSENT)
        self.configs = configs
        self._directory = directory
        self._connect_limit = connect_limit
        self._claims: dict[str, Claim] = {}
        self._latest: dict[str, Claim] = {}
        self.steps = 0
        """How many steps the longest plan so far has."""
        self._timed_out = False

    def has(self, method: Method) -> bool:
        """Whether the backend has the coroutine."""
        return self.facts is not None and method in self.facts.methods

    # Claims

    def claim(self, name: str, device: Device | None = None, configs: Sequence[OpaqueConfig] = ()) -> Claim:
        """Return the claim of this name, with a uid that no other run has used."""
        if name not in self._claims:
            self._claims[name] = self.build_claim(name, device or self.device, configs=configs)
        return self._claims[name]

    def build_claim(self, name: str, *devices: Device, configs: Sequence[OpaqueConfig] = ()) -> Claim:
        """Return a new claim with one request for the devices, with the run's configuration unless another is given."""
        allocated = tuple(self._allocate(device, tuple(configs) or self.configs) for device in devices)
        pod = PodRef(uid=str(uuid.uuid4()), namespace="default", name=f"conformance-{name}")
        return Claim(
            uid=str(uuid.uuid4()),
            namespace="default",
            name=f"conformance-{name}",
            devices=allocated,
            pod=pod if self.facts is not None and self.facts.one_pod else None,
        )

    def _allocate(self, device: Device, configs: tuple[OpaqueConfig, ...]) -> AllocatedDevice:
        shared = device.allow_multiple_allocations
        return AllocatedDevice(
            request="device",
            pool=_POOL,
            device=device.name,
            share_id=str(uuid.uuid4()) if shared else None,
            consumed_capacity={name: str(_share(one)) for name, one in device.capacity.items()} if shared else {},
            configs=configs,
        )

    def remember(self, name: str, claim: Claim) -> None:
        """Make it the claim of this name."""
        self._claims[name] = claim

    async def ask_plan(self, claim: Claim) -> Claim:
        """Have the backend plan the claim, if it plans."""
        if not self.has(Method.PLAN):
            return claim
        planned = await super().ask_plan(claim)
        self.steps = max(self.steps, len(planned.steps))
        return planned

    def keep(self, held: HeldClaim) -> None:
        """Hold the claim, and tell the backend's process."""
        super().keep(held)
        self._latest[held.claim.uid] = held.claim
        self.backend.note_held(held.claim.uid, held)

    def forget(self, claim: Claim) -> None:
        """Do not hold the claim any more."""
        super().forget(claim)
        self.backend.note_held(claim.uid, None)

    async def release(self, claim: Claim, prepared: Sequence[PreparedDevice] = ()) -> None:
        """Unprepare and undo the steps, also of a claim that is not held any more; it has the plan that it had."""
        await super().release(self._latest.get(claim.uid, claim), prepared)

    async def use(self, name: str) -> None:
        """Prepare and unprepare a claim of this name for the device."""
        claim = self.claim(name)
        await self.release(claim, await self.hold(claim))

    @asynccontextmanager
    async def hold_all(self) -> AsyncIterator[Sequence[HeldClaim]]:
        """Yield everything that is held, for `restore`."""
        yield tuple(self.records.values())

    def deadline(self) -> float:
        """When a call for a claim must have ended; after one that timed out, the others get no such time again."""
        return anyio.current_time() + (IMPATIENT_DEADLINE if self._timed_out else CLAIM_DEADLINE)

    def note_timeout(self, error: Exception) -> None:
        """Give later calls less time after a timeout."""
        self._timed_out = self._timed_out or isinstance(error, BackendTimeout)

    # The process

    async def crash(self) -> None:
        """Kill the process, and wait until the next one has been started. Raises BackendUnavailable."""
        await self.backend.wait_ready()
        before = self.backend.statistics()
        os.kill(before.pid, signal.SIGKILL)
        with anyio.move_on_after(self._connect_limit):
            while self.backend.statistics().starts == before.starts:
                await self.backend.wait_changed()
            return
        raise BackendUnavailable(self.backend.name, f"did not come back within {self._connect_limit:g} s after a crash")

    @contextmanager
    def ordered(self, order: Order) -> Iterator[None]:
        """Give the order to the next call of its coroutine, inside the context only."""
        write_order(self._directory, order)
        try:
            yield
        finally:
            drop_order(self._directory)

    def observations(self) -> list[Observation]:
        """Return everything that the backend's processes have observed."""
        return read_observations(self._directory)

    def last(self, method: Method) -> Observation:
        """Return what was observed of the last call of the coroutine that ended."""
        return next((one for one in reversed(self.observations()) if one.method is method), Observation(method=method))

    def waits(self, method: Method) -> int:
        """Return how often a call of the coroutine has waited at most."""
        return max((one.waits for one in self.observations() if one.method is method), default=0)


def _share(capacity: Capacity) -> Quantity:
    """Return what a claim gets that requests no amount."""
    default = capacity.policy.default if capacity.policy is not None else None
    return capacity.value if default is None else default
