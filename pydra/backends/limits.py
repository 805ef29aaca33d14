"""Every limit of the supervision of a backend, in seconds unless said. Values only."""

from __future__ import annotations

import msgspec

from pydra.backends.wire import Method


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """How long a call may take, waiting for a restart included; `connect` from spawning to the first call.

    Calls for claims are absent: their callers set the deadline. `restore` has that of `connect`, `inherit` that of
    `discover`.
    """

    connect: float = 60.0
    discover: float = 30.0
    measure: float = 10.0

    def of(self, method: Method) -> float:
        """The deadline of a call that is not for a claim; `wait_changed` has none."""
        return {
            Method.DISCOVER: self.discover,
            Method.MEASURE: self.measure,
            Method.INHERIT: self.discover,
            Method.RESTORE: self.connect,
        }.get(method, float("inf"))


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long the agent waits for a process.

    `heartbeat` is the period of its signs of life, `silence` how long none may come; `recall` the
    time that a cancelled call has to end; `stacks` the time to write the Python stacks; `burial` to
    be gone after SIGKILL (a process in a driver's uninterruptible call is not, and is left behind);
    `leave` to end when asked to.
    """

    heartbeat: float = 2.0
    silence: float = 15.0
    recall: float = 2.0
    stacks: float = 1.0
    burial: float = 2.0
    leave: float = 5.0


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a process that ended is replaced: `first`, doubled each time up to `cap`, `first` again after `healthy`.

    `strikes` is how often a claim may kill its backend before it is condemned; `undead` how many
    unkillable processes there may be before no more are started.
    """

    first: float = 0.2
    cap: float = 30.0
    healthy: float = 60.0
    strikes: int = 2
    undead: int = 3

    def delay(self, failures: int) -> float:
        """Seconds before the start that follows `failures` ends in a row (at least 1)."""
        return min(self.cap, self.first * 2.0 ** min(failures - 1, 30))
