"""The contract: Protocol classes for the interface that a backend implements, what its `inherit` returns, and what it
can ask during a call: its time left, the claims that the node holds, its status.

Nothing here is subclassed. A backend is any object, usually a module, named by an entry point of the group
`pydra.backends`, that has the coroutines below. It runs in a process of its own, and imports vendor libraries inside
the coroutines, so reading its types needs no hardware.

Calls run concurrently on one event loop, including prepares of different claims: the backend must lock what may not
overlap. Calls for one claim run one after the other, and plans one at a time. Blocking code must use
`asyncio.to_thread`: a process whose event loop is blocked is replaced. A call is cancelled at its deadline
(`time_left`), and counts as ended when its threads have. Records of `logging` and what is printed go to the agent's
log.

Beside the coroutines it may have:

- `DRIVER: str`, the driver name in the API, such as `gpu.example.com`;
- `CONFIG_TYPES: Mapping[str, type]`, from `"group/version/Kind"` to the msgspec Struct that opaque
  parameters of that kind are decoded into, strictly; `"version/"` is for parameters without `kind`, and `""` for those
  with neither, as older drivers have them;
- `STEP_TYPES: Sequence[type]`, frozen msgspec Structs with a string `tag` each, if its plans consist of steps;
- `DEVICE_CLASSES: Mapping[str, Mapping]`, from the name of a DeviceClass to its spec, for the chart;
- `SURVIVES_REBOOT = True`, if the hardware keeps across a reboot of the node what `prepare` did to it;
- `ONE_POD = True`, if a claim can be used by one pod only: another pod's is refused, and `claim.pod` is the pod;
- `DEADLINE: float`, beside the coroutines: the seconds that a `prepare` or `unprepare` may take where the agent's
  settings give less. The kubelet gives up after 45 s, and its next call joins the work;
- `connect() -> AsyncContextManager[Backend]`, for handles and sessions that stay open: the object that it yields
  has the coroutines instead;
- `SETTINGS_TYPE: type`, a msgspec Struct with a default for each field; `connect(settings)` is then given one, filled
  from `PYDRA_<BACKEND>_<FIELD>` and from `backendSettings` in the agent's settings file;
- `check_config(config, settings) -> Iterable[str]`, a plain function that yields what these settings do not allow in a
  decoded config, each problem with the field's path first: `sharing.strategy: found "MPS", which is switched off`.
  Used on the node, and by a webhook that knows the settings;
- `examine(settings, held) -> Iterable[str]`, a plain function that yields what is wrong on the node, each with what to
  do, such as a container that does not have what its claim says. Called by `pydra doctor`, in a process of its own,
  whether the agent runs or not; it may block, must not change anything, and raises `PydraError` for what it cannot
  see. `settings` is None without SETTINGS_TYPE, and `held` are the claims of this node's records.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from pydra.claim import Claim, HeldClaim, PreparedDevice
from pydra.devices import Inventory, Sample


class Backend(Protocol):
    """The coroutines that every backend has."""

    async def discover(self) -> Inventory:
        """Return the complete inventory of the hardware. Called at the start, on a hint, and at every rescan."""
        ...

    async def prepare(self, claim: Claim, /) -> Sequence[PreparedDevice]:
        """Configure the hardware for the claim and return one entry for each of its devices.

        Idempotent: called again for the same claim, it returns the same. `claim.plan` is what `plan` returned. Raise
        `ClaimError` with a message for the claim's author, or `TerminalError` if trying again cannot help.
        """
        ...

    async def unprepare(self, claim: Claim, prepared: Sequence[PreparedDevice], /) -> None:
        """Undo `prepare`. Idempotent, and without the claim's API object.

        `prepared` is what `prepare` returned, or empty if the process died inside `prepare`: then undo whatever
        `prepare` may have done. If the backend plans, `claim.plan` says what that is.
        """
        ...


class Plans(Protocol):
    """A backend that decides before it acts."""

    async def plan(self, claim: Claim, held: Sequence[HeldClaim], /) -> Any:
        """Return what will be done for the claim: a JSON value, or a `Plan` if the backend has `STEP_TYPES`.

        Must not change anything. At most 256 KiB of JSON. `held` are all other claims that this node holds, each with
        its plan, its steps and its prepared devices. Do not change these objects: the next call may get them again.
        Calls are made one at a time for each backend. The answer is on disk before anything is done; later calls find
        it in `claim.plan` and `claim.steps`. Raise `ClaimError` for a claim that cannot be served; it is then not
        undone.
        """
        ...


class Steps(Protocol):
    """A backend whose plans consist of steps, which the agent carries out and undoes: a backend with `STEP_TYPES`.

    A step is a frozen value for one change of the hardware. Its class may have the properties `key` (a string; steps of
    several claims with the same key are one change, which is done for the first and undone for the last of them; by
    default the whole step), `holds` (the names of the devices that stay held while the step is left over; by default
    all of the claim) and `__str__` (what the log calls it; by default its tag).
    """

    async def apply(self, step: Any, result: Any, claim: Claim, /) -> Any:
        """Make the change, and return what is known only then (an id, the state before), as a JSON value.

        Idempotent, and all or nothing: raise `ClaimError` if nothing was changed, `LeftBehind` if something was and
        could not be taken back. After that, or any other error, a crash or a timeout, the step is undone.
        `result` is what `apply` returned for another claim with the same step, which must stay as it is, or None.
        `claim.steps` has the results of the steps before it.
        """
        ...

    async def undo(self, step: Any, result: Any, claim: Claim, /) -> None:
        """Undo the change. Idempotent; success if there is nothing to undo.

        `result` is what `apply` returned, or None if the process died inside `apply`, which may or may not have made
        the change. Steps are undone in reverse order. Raise `UndoLater` if the hardware cannot be reached now: the
        claim ends, and the agent tries again. After any other error the claim is kept and unprepared again.
        """
        ...


class Restores(Protocol):
    """A backend that repairs what a crash left behind."""

    async def restore(self, held: Sequence[HeldClaim], /) -> None:
        """Called after each start of the process, before any call but `inherit`; called again until it returns.

        Everything in `held`, completed or not, belongs to its claim. Anything else may be ended: no claim is being
        prepared meanwhile. The agent afterwards unprepares claims that are not completed.
        """
        ...


class Watches(Protocol):
    """A backend that detects changes."""

    async def wait_changed(self) -> None:
        """Return when `discover` is worth calling again. May wait forever.

        Called after the first `discover` in this process has ended, and again whenever it returns.
        """
        ...


class Measures(Protocol):
    """A backend with numbers for `/metrics`."""

    async def measure(self) -> Sequence[Sample]:
        """Return current gauges and counters of the hardware."""
        ...


class InheritedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that another driver prepared, as if this backend had."""

    claim: Claim
    """The claim, with what is to be undone as steps, each by `describe_step`. Name and namespace are empty if that
    driver did not record them; the agent looks them up.
    """
    prepared: tuple[PreparedDevice, ...]
    """One entry for each of its devices."""


class Inheritance(msgspec.Struct, frozen=True, kw_only=True):
    """What another driver of the same name left on the node."""

    claims: tuple[InheritedClaim, ...] = ()
    """The claims that the other driver had prepared."""
    files: tuple[str, ...] = ()
    """That driver's records in the plugin directory. Once the claims are stored, they are renamed to end in
    `.inherited`.
    """


class Inherits(Protocol):
    """A backend that takes the place of another driver of the same name."""

    async def inherit(self, directory: str, /) -> Inheritance:
        """Return what that driver left in its plugin directory; called at each start, before the driver is served.

        Raise `ClaimError` with a message for the admin if the driver cannot be served now, for example because the
        other one still runs; it is called again until it returns.
        """
        ...


call_deadline: ContextVar[float] = ContextVar("pydra_call_deadline", default=math.inf)
"""When the running call will be cancelled, on the clock of `time.monotonic`; set by the backend's process."""


def time_left() -> float:
    """Return the seconds until the running call is cancelled, at least 0; `inf` outside a call or without a deadline.

    Works in the coroutine, in the tasks that it starts and in `asyncio.to_thread`.
    """
    return max(0.0, call_deadline.get() - time.monotonic())


class HeldCopy:
    """The copy of the held claims in the backend's process, which sets `read`."""

    def __init__(self) -> None:
        self.read: Callable[[], tuple[HeldClaim, ...]] = tuple


held_copy = HeldCopy()


def held_claims() -> tuple[HeldClaim, ...]:
    """Return the claims that this node holds, in the order of their uids, as the agent's records have them.

    Never older than the running call, and kept up to date between calls, for backends with `plan` or `restore`; empty
    for others. Works wherever `time_left` does. Do not change these objects.
    """
    return held_copy.read()


call_status: ContextVar[list[str] | None] = ContextVar("pydra_call_status", default=None)
"""The last status of the running call; a list, since threads of the call have a copy of its context."""


def set_status(text: str) -> None:
    """Say in a few words what the running call is doing, such as `resetting card-3`, before something that may hang.

    A call that takes long is reported with its status. Cheap, and works wherever `time_left` does.
    """
    if (status := call_status.get()) is not None:
        status[:] = (text,)
