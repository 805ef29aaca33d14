"""The rules that the conformance checks hold a backend to. docs/conformance.md is generated from them."""

from __future__ import annotations

from enum import Enum


class Rule(Enum):
    """A rule: its value is the id, `sentence` what holds, `reason` why the agent or its users need it."""

    sentence: str
    reason: str

    def __new__(cls, value: str, sentence: str, reason: str) -> Rule:
        """Make a member of the id `value`."""
        self = object.__new__(cls)
        self._value_ = value
        self.sentence, self.reason = sentence, reason
        return self

    CONNECT = "connect", "it is loaded and connects", "the agent replaces a process that is not ready in time"
    CALLED = (
        "called",
        "the backend is called",
        "not where an agent has prepared claims: `restore` would remove what belongs to no claim of the run",
    )
    DRIVER = "driver", "it names its driver", "without `DRIVER` every admin must give a name"
    NAMES = (
        "names",
        "names that resemble those of the contract are those",
        "the agent never calls a misspelt `wait_changed`, and says nothing of it",
    )
    SETTINGS = "settings", "its settings are valid", "the agent refuses invalid ones before anything else"
    REASONS = (
        "reasons",
        "its errors have reasons that Events and metrics can take",
        "a reason is CamelCase; otherwise pydra's own is used",
    )
    DISCOVER = (
        "discover",
        "discover answers, and its devices obey the API's rules",
        "the API server refuses a ResourceSlice as a whole",
    )
    STABLE = (
        "discover-stable",
        "discover answers the same again",
        "each difference is a write to the API server, by every node",
    )
    COUNTERS = (
        "counters",
        "no device needs more of a counter than its set has",
        "such a device is never allocated, and no message says so",
    )
    IDLE = (
        "hints-idle",
        "wait_changed waits until something has changed",
        "the agent calls `discover` whenever it returns, many times a second",
    )
    MEASURE = "measure", "measure answers", "a failed measurement removes the samples from `/metrics`"
    CONFIG = (
        "config",
        "a misspelt field of {} is refused",
        "a field that is ignored is a setting that silently has no effect",
    )
    CONFIG_TYPES = (
        "config-types",
        "each field of its configuration has a type",
        "a field that takes anything lets mistakes through to the hardware, and the webhook cannot refuse them",
    )
    CONFIG_RULES = (
        "config-rules",
        "its own rules for configuration refuse, and do not fail",
        "the claim's author reads what the rule says, not an exception",
    )
    UNKNOWN = (
        "unknown-device",
        "a device that it does not have is refused",
        "a device may have gone since the scheduler chose it",
    )
    UNPREPARE_NOTHING = (
        "unprepare-nothing",
        "unprepare succeeds when nothing was prepared",
        "the agent undoes what a crash may have begun",
    )
    PREPARE = (
        "prepare",
        "prepare answers for each device of the claim",
        "the pod waits until it does; nothing further is checked without it",
    )
    EDITS = (
        "edits",
        "its container edits obey CDI's rules",
        "the runtime refuses a container with an invalid CDI spec",
    )
    PREPARE_AGAIN = (
        "prepare-again",
        "prepare again answers the same",
        "the kubelet repeats calls, and containers of one pod start at different times",
    )
    PREPARE_AFTER_CRASH = (
        "prepare-after-crash",
        "prepare answers the same after a crash",
        "the next process must find what the last one did",
    )
    UNPREPARE = "unprepare", "unprepare succeeds", "the pod stays until it does"
    UNDONE = (
        "undone",
        "what was done for a claim is undone",
        "the next claim gets the hardware as this one leaves it; seen in what discover and plan say afterwards, "
        "and in what undo changes",
    )
    UNPREPARE_AGAIN = "unprepare-again", "unprepare again succeeds", "the kubelet repeats calls"
    UNPREPARE_AFTER_CRASH = (
        "unprepare-after-crash",
        "unprepare succeeds after a crash anywhere in prepare or in a step, with nothing remembered",
        "the agent undoes a prepare that did not end, and then another claim gets the device",
    )
    UNPREPARE_CRASH = (
        "unprepare-crash",
        "unprepare succeeds after a crash anywhere in unprepare or undo",
        "the agent calls it again until it has ended",
    )
    TOGETHER = (
        "together",
        "two devices of one claim are prepared, and their container edits agree",
        "a container gets the edits of all devices of a request; the agent refuses a claim whose edits contradict",
    )
    SHARED = (
        "shared",
        "a step that two claims share is applied for both",
        "the agent calls `apply` for each of them: for the second the change is made already",
    )
    CONCURRENT = (
        "concurrent",
        "two claims are prepared at once, each with its own devices",
        "the agent calls `prepare` for several claims at a time",
    )
    CANCEL = (
        "cancel",
        "prepare, unprepare and steps can be cancelled anywhere, and undone",
        "calls are cancelled at their deadline",
    )
    DEADLINE = (
        "deadline",
        "a call that is cancelled ends soon",
        "otherwise its process is replaced, and other calls with it; threads have to end, too (`pydra.time_left`)",
    )
    PLAN = (
        "plan",
        "plan answers the same again, and touches nothing",
        "the plan is written down before anything is done",
    )
    PLAN_CRASH = (
        "plan-crash",
        "a claim that was planned before a crash can be unprepared",
        "nothing of the plan may have been done",
    )
    RESTORE = (
        "restore",
        "restore accepts what the node holds, also after a crash in restore",
        "the agent calls nothing else until it has succeeded",
    )
    HINTS = "hints", "its hints do not fail", "without them, changes are noticed every `rescanPeriod` only"
    BLOCKING = (
        "blocking",
        "the event loop is not blocked",
        "no other call makes progress meanwhile, and after 15 s the process is replaced; use `asyncio.to_thread`",
    )
    AWAITED = (
        "awaited",
        "every coroutine that it calls is awaited",
        "without `await` nothing of it is done, and Python only warns",
    )
    FORKED = (
        "forked",
        "no process that it forks goes on with the call",
        "it would answer beside the backend's own: call `os._exit` in it, or start a program with subprocess",
    )
    LEAKED_TASKS = "leaked-tasks", "repeated calls leave no tasks behind", "the agent calls it for months"
    LEAKED_THREADS = "leaked-threads", "repeated calls leave no threads behind", "their number is limited"
    LEAKED_DESCRIPTORS = (
        "leaked-descriptors",
        "repeated calls leave no descriptors open",
        "at their limit every call fails",
    )
