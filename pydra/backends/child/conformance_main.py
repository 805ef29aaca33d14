"""Main program of a backend's process under conformance checks: as in an agent, but observed, and interrupted on order.

    python -m pydra.backends.child.conformance_main FD PARENT [MODULE:[ATTRIBUTE]]

The directory that the variable PYDRA_OBSERVED names connects it with the checks: `order.json` says what to do with the
next call of a coroutine, and `observed` gets a line for each call that has ended. The backend's own code is not
patched.

Without a backend it imports none, and forks a process that serves one for each request on FD, a connected socket of
`pydra.testing.forked_processes`. A request has the target, and the descriptors of the process's connection, output and
errors; it is answered with the process's pid, and once more with how it has ended. One process runs at a time. Python's
imports are most of what a process costs, and each simulated crash takes one.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from enum import Enum
from types import FrameType
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra.backends.child.calls import FORKED, CallServer
from pydra.backends.child.claim_values import BackendTypes
from pydra.backends.child.main import main, set_parent_death_signal
from pydra.backends.claim_config import ConfigCheck, build_header, find_config_problems
from pydra.backends.wire import Call, Method, ToAgent, ToBackend

PROGRAM = "pydra.backends.child.conformance_main"
VARIABLE = "PYDRA_OBSERVED"
BLOCKED_SECONDS = 1.0
"""For how long one callback may keep the event loop before that is reported."""

_BEAT_SECONDS = 0.1
_LOOKS = 4
"""So many looks must have found the event loop late before it counts as blocked."""
_SAMPLES: tuple[Any, ...] = (None, True, -1, 0, 1.5, "", "pydra-no-such-value", (), {}, {"pydraNoSuchField": 1})
_UNAWAITED = re.compile(
    r"(?P<what>coroutine '.*' was never awaited)\n.*\n"
    r' *File "(?P<file>.*)", line (?P<line>\d+), in (?P<name>.*)'
)
_CHANGES = {
    *("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate"),
    *("os.chmod", "os.chown", "os.setxattr", "os.kill"),
}
"""Events of `sys.addaudithook` for calls that change something outside of the process."""
_ATTEMPTS = {"fcntl.ioctl", "os.posix_spawn", "os.system", "socket.connect", "socket.sendto", "subprocess.Popen"}
"""Those for calls that may have something changed."""

_BEGIN_SECONDS = 0.1
"""A thread that waits for a free one for longer is left out of account."""

_REQUEST_BYTES = 4096

_changes: ContextVar[tuple[list[str], set[str]] | None] = ContextVar("pydra_observed_changes", default=None)
"""What the running call has changed, and by which events of the hook that is noticed beside `open`."""


class Interruption(Enum):
    """What happens when a call waits for the nth time."""

    KILL = "kill"
    """The process is killed."""
    CANCEL = "cancel"
    """The call is cancelled, as at its deadline."""


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to do with the next call of a coroutine."""

    method: Method
    interruption: Interruption | None = None
    at: int = 1
    """At which of the call's waits it is interrupted, from 1; 0: before it begins."""
    skip: int = 0
    """How many calls of the coroutine are left alone before that."""
    count: bool = False
    """Whether to count what is open when it has ended."""


class Observation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was seen during one call, or, without a method, of the whole process."""

    method: Method | None = None
    waits: int = 0
    """How often the coroutine gave the event loop away."""
    cancelled: float = 0.0
    """When the call was cancelled, on the clock of `time.monotonic`; 0 if it was not."""
    changes: tuple[str, ...] = ()
    """What `plan`, `apply` or `undo` has changed, by its events; and whether `plan` changed the held claims."""
    tasks: tuple[str, ...] | None = None
    threads: tuple[str, ...] | None = None
    descriptors: tuple[str, ...] | None = None
    """What was open after the call, if that was asked for."""
    blocked: float = 0.0
    """For how many seconds the event loop could do nothing else."""
    place: str = ""
    """Where it was then: `FILE:LINE, in FUNCTION`."""
    unawaited: str = ""
    """A coroutine that was not awaited, and where it was called."""
    forked: str = ""
    """What came back in a copy of the process."""
    failing_rules: tuple[str, ...] = ()
    """Values for which the backend's own rules for configuration fail instead of refusing them."""
    untyped: tuple[str, ...] = ()
    """Fields of configuration types that take any value."""


def write_order(directory: str, order: Order) -> None:
    """Give the next call of the coroutine to the process, whichever serves it."""
    temporary = f"{directory}/order.new"
    with open(temporary, "wb") as file:
        file.write(msgspec.json.encode(order))
    os.rename(temporary, f"{directory}/order.json")


def drop_order(directory: str) -> bool:
    """Take back an order; return whether it was still there."""
    try:
        os.unlink(f"{directory}/order.json")
    except FileNotFoundError:
        return False
    return True


def read_observations(directory: str) -> list[Observation]:
    """Read everything that was observed since the directory was made."""
    try:
        with open(f"{directory}/observed", "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=Observation) for line in lines]


class ObservedCalls(CallServer):
    """Serves calls as the agent's process does, and says what they did."""

    def __init__(
        self,
        backend: Any,
        types: BackendTypes,
        send: Callable[[ToAgent], None],
        tasks: asyncio.TaskGroup,
        check: ConfigCheck | None = None,
    ) -> None:
        super().__init__(backend, types, send, tasks, check)
        self._directory = os.environ[VARIABLE]
        self._watch = _LoopWatch(self._observe)
        for kind, config_type in types.configs.items():
            self._observe(_try_config_type(kind, config_type, check))

        _watch_unawaited(self._observe)

    def receive(self, message: ToBackend) -> None:
        """Start the watch with the first call: what happens at the import keeps nobody waiting."""
        self._watch.start()
        super().receive(message)

    async def _perform(self, call: Call, arguments: tuple[Any, ...]) -> Any:
        order = self._take_order(call.method)
        changes: list[str] = []
        given = self._encode_held()
        if call.method in (Method.PLAN, Method.APPLY, Method.UNDO):
            _changes.set((changes, _CHANGES | _ATTEMPTS if call.method is Method.UNDO else _CHANGES))
        running = _Interrupted(super()._perform(call, arguments), order, self._threads_of.get(call.id, {}))
        try:
            return await running
        finally:
            _changes.set(None)
            if call.method is Method.PLAN and self._encode_held() != given:
                changes.append("the held claims that it was given")
            if self.is_forked():
                self._observe(Observation(forked=FORKED.format(call.method.value)))
            seen = Observation(
                method=call.method,
                waits=running.waits,
                cancelled=running.cancelled,
                changes=tuple(dict.fromkeys(changes)),
            )
            self._observe(self._count(seen) if order.count else seen)

    def _encode_held(self) -> list[bytes]:
        return [msgspec.msgpack.encode(one) for one in self._held.read()]

    def _take_order(self, method: Method) -> Order:
        none = Order(method=method)
        try:
            with open(f"{self._directory}/order.json", "rb") as file:
                order = msgspec.json.decode(file.read(), type=Order)
        except FileNotFoundError:
            return none
        if order.method is not method:
            return none
        if order.skip:
            write_order(self._directory, replace(order, skip=order.skip - 1))
            return none
        os.unlink(f"{self._directory}/order.json")
        return order

    def _count(self, seen: Observation) -> Observation:
        gc.collect()
        mine = {asyncio.current_task(), *self._running.values()}
        return replace(
            seen,
            tasks=tuple(sorted(_name_task(one) for one in asyncio.all_tasks() - mine)),
            threads=tuple(sorted(_name_threads())),
            descriptors=tuple(sorted(_name_descriptors())),
        )

    def _observe(self, observation: Observation) -> None:
        with open(f"{self._directory}/observed", "ab", buffering=0) as file:
            file.write(msgspec.json.encode(observation) + b"\n")


class _Interrupted:
    """Awaits a coroutine step by step, and interrupts it where the order says."""

    def __init__(self, coroutine: Any, order: Order, threads: Mapping[Any, list[int]]) -> None:
        self.cr_await = coroutine  # so that a stack of the call goes on below
        self._order = order
        self._threads = threads
        self.waits = 0
        self.cancelled = 0.0

    def __await__(self) -> _Interrupted:
        if not self._order.at:
            self._interrupt()
        return self

    def __iter__(self) -> _Interrupted:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        return self._pass_on(self.cr_await.send(value))

    def throw(self, *error: Any) -> Any:
        return self._pass_on(self.cr_await.throw(*error))

    def close(self) -> None:
        self.cr_await.close()

    def _pass_on(self, future: Any) -> Any:
        self.waits += 1
        if self.waits == self._order.at:
            self._interrupt()
        return future

    def _let_threads_begin(self) -> None:
        """Wait for threads that were just started: at a deadline they run, and cannot be taken back any more."""
        until = time.monotonic() + _BEGIN_SECONDS
        while not all(tuple(self._threads.values())) and time.monotonic() < until:
            time.sleep(0.001)

    def _interrupt(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        match self._order.interruption:
            case Interruption.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Interruption.CANCEL:
                self._let_threads_begin()
                self.cancelled = time.monotonic()
                asyncio.get_running_loop().call_soon(task.cancel)  # once it waits for what the coroutine yielded


class _LoopWatch:
    """Notices when the event loop runs nothing but one callback for long, and where that is.

    A thread that was not run either, on a busy machine, has no look at the loop, and the machine may have stood still
    between a few of them.
    """

    def __init__(self, observe: Any) -> None:
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._places: list[str] = []
        self._started = False

    def start(self) -> None:
        if not self._started:
            self._started = True
            self._last = time.monotonic()
            self._loop.call_later(_BEAT_SECONDS, self._beat)
            threading.Thread(target=self._look, name="pydra-observer", daemon=True).start()

    def _beat(self) -> None:
        blocked = time.monotonic() - self._last - _BEAT_SECONDS
        places, self._places, self._last = self._places, [], time.monotonic()
        if blocked >= BLOCKED_SECONDS and len(places) >= _LOOKS:
            self._observe(Observation(blocked=blocked, place=places[0]))
        self._loop.call_later(_BEAT_SECONDS, self._beat)

    def _look(self) -> None:
        """Note where the loop is when it is late, in a thread."""
        while True:
            time.sleep(BLOCKED_SECONDS / 4)
            frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - the only way
            is_idle = frame is not None and frame.f_code.co_filename == selectors.__file__
            blocked = time.monotonic() - self._last - _BEAT_SECONDS
            if not is_idle and blocked >= BLOCKED_SECONDS / 4:
                self._places.append(_format_place(frame))
                if blocked >= BLOCKED_SECONDS and len(self._places) >= _LOOKS:  # now: the process may not outlive it
                    self._observe(Observation(blocked=blocked, place=self._places[0]))


def _watch_unawaited(observe: Callable[[Observation], None]) -> None:
    """Notice coroutines that are called and never awaited: Python only warns of them, on stderr."""
    show = warnings.showwarning

    def note(message: Warning | str, *more: Any, **named: Any) -> None:
        show(message, *more, **named)
        if found := _UNAWAITED.match(str(message)):
            observe(Observation(unawaited=f"{found['what']}: {found['file']}:{found['line']}, in {found['name']}"))

    sys.set_coroutine_origin_tracking_depth(1)
    warnings.filterwarnings("always", r"coroutine .* was never awaited", RuntimeWarning)
    warnings.showwarning = note


def _format_place(frame: FrameType | None) -> str:
    """Format the innermost frame outside of the standard library, else the innermost of all."""
    stack = traceback.extract_stack(frame)
    library = os.path.dirname(asyncio.__file__).removesuffix("asyncio")
    own = [one for one in stack if not one.filename.startswith((library, os.path.dirname(__file__), "<frozen"))]
    last = (own or stack)[-1]
    return f"{last.filename}:{last.lineno}, in {last.name}"


def _note_change(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what a call changes: an audit hook, called for much that Python does."""
    if event != "open" and event not in _CHANGES and event not in _ATTEMPTS:
        return
    observed = _changes.get()
    if observed is None or (event != "open" and event not in observed[1]):
        return
    subject = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else str(arguments[0])
    if "__pycache__" in subject or subject.startswith("/dev/"):  # an import; a device is opened to be read, too
        return
    if event == "open":
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            return
    observed[0].append(f"{event} {subject}")


def _name_task(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return f"{task.get_name()} ({getattr(coroutine, '__qualname__', coroutine)})"


def _name_threads() -> Iterator[str]:
    """Yield the names of threads, those without Python included, except those of `asyncio.to_thread`."""
    names = {one.native_id: one.name for one in threading.enumerate()}
    for task in os.listdir("/proc/self/task"):
        name = names.get(int(task), "one that is not Python's")
        if not name.startswith("backend_"):
            yield name


def _name_descriptors() -> Iterator[str]:
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # that of the listing
            continue


def _try_config_type(kind: str, config_type: type[Any], check: ConfigCheck | None) -> Observation:
    """Return for which values of single fields the type's own rules fail, and which fields take any value."""
    header, name = build_header(kind), kind.rpartition("/")[2]
    failing, untyped = [], []
    for field in config_type.__struct_encode_fields__:
        refused = 0
        for sample in _SAMPLES:
            problems = find_config_problems({**header, field: sample}, {kind: config_type}, check)
            # What other fields lack is not this one's fault.
            refused += any(problem.startswith((f"$.{field}", "$:")) for problem in problems)
            failing += [
                f"{name} with {field} {msgspec.json.encode(sample).decode()}: {problem}"
                for problem in problems
                if "the backend's own rules fail with" in problem
            ]
        if not refused:
            untyped.append(f"{kind}: {field}")
    return Observation(failing_rules=tuple(failing), untyped=tuple(untyped))


def serve_observed(arguments: list[str]) -> None:
    """Serve as `main` does, observed. Never returns."""
    sys.addaudithook(_note_change)
    main(arguments, ObservedCalls)


def fork_for_requests(fd: str, parent: str) -> None:
    """Fork for each request until the checks close the connection."""
    set_parent_death_signal(int(parent))
    requests = socket.socket(fileno=int(fd))
    template = os.getpid()
    while True:
        target, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 3)
        if not target:
            return
        pid = os.fork()
        if not pid:
            os.setsid()
            requests.send(str(os.getpid()).encode())  # once a signal to its group reaches it
            requests.close()
            connection, *output = descriptors
            for stream, descriptor in zip((1, 2), output, strict=True):
                os.dup2(descriptor, stream)
                os.close(descriptor)
            serve_observed([str(connection), str(template), target.decode()])
        for descriptor in descriptors:
            os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        requests.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    if len(sys.argv) == 3:
        fork_for_requests(*sys.argv[1:])
    else:
        serve_observed(sys.argv[1:])
