"""How long the agent waits for a backend: for its calls, for its process, and before it starts the next process."""

from __future__ import annotations

import msgspec


class CallDeadlines(msgspec.Struct, frozen=True, kw_only=True):
    """How long a call may take in seconds, waiting for a restart included; `connect` from spawning to the first call.

    Calls for claims are not listed: their callers set the deadline. `restore` and `inherit` have that of `discover`.
    """

    connect: float
    discover: float
    measure: float = 10.0


class ProcessTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long the agent waits for a process, in seconds.

    While calls are in flight, the process is pinged every `ping_interval`, and killed if it has not answered for
    `ping_timeout`. A call that has run for `slow_call` is reported with its place. The other fields limit how long it
    may take to end a cancelled call, to write the Python stacks, to disappear after SIGKILL (a process in a driver's
    uninterruptible call does not, and is left behind), and to exit when asked to.
    """

    ping_interval: float = 2.0
    ping_timeout: float = 15.0
    slow_call: float = 6.0
    cancel_timeout: float = 2.0
    stack_dump_timeout: float = 1.0
    kill_timeout: float = 2.0
    exit_timeout: float = 5.0


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a process that ended is replaced: `first`, doubled each time up to `cap`, `first` again after `healthy`.

    `crashes` is how often a claim may crash its backend's process before it is quarantined. No process is started while
    `unkillable` of them cannot be killed; every `unkillable_look` seconds the supervisor looks whether one has ended.
    """

    first: float = 0.2
    cap: float = 30.0
    healthy: float = 60.0
    crashes: int = 2
    unkillable: int = 3
    unkillable_look: float = 5.0
