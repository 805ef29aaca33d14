"""Entry point of a backend's child process.

    python -m pydra.backends.child.main FD PARENT MODULE:[ATTRIBUTE]

Started by `pydra.backends.process` with a connected socket as descriptor FD. The process dies with the agent, and
before it if memory is short, leaves no core files, writes the Python stacks to stderr when it crashes or gets SIGUSR1,
and communicates with the agent only over the socket: what the backend prints is only output.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

from pydra.backends.backend_settings import describe_settings, read_settings
from pydra.backends.child.calls import CallServer, CallThreads
from pydra.backends.child.claim_values import BackendTypes
from pydra.backends.child.logs import forward_logs
from pydra.backends.claim_config import ConfigCheck, find_check
from pydra.backends.contract_validation import (
    find_coroutine_violations,
    find_manager_violations,
    find_methods,
    find_misspelt,
    find_object_violations,
    find_settings_type_violations,
)
from pydra.backends.discovery import LoadError, load_object
from pydra.backends.error_codec import Fault, FaultKind, build_fault, find_custom_reasons
from pydra.backends.wire import (
    Channel,
    Hello,
    Ping,
    Pong,
    Refusal,
    SettingValue,
    Start,
    ToBackend,
    WireError,
    parse_to_backend,
)
from pydra.errors import SettingsError

_PR_SET_PDEATHSIG = 1
_LEAVE_SECONDS = 3.0
_OOM_SCORE = 500


class _StartupError(Exception):
    """The backend cannot be started; the refusal says why."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.fault.message)


def main(arguments: list[str], calls: type[CallServer] = CallServer) -> None:
    """Serve until the agent closes the connection. Never returns, so threads that hang cannot delay the exit."""
    fd, parent, target = arguments
    set_parent_death_signal(int(parent))
    _raise_oom_score()
    _prepare_for_crashes()
    sock = socket.socket(fileno=int(fd))
    sock.set_inheritable(False)  # a program that the backend starts must not keep the connection open
    sys.argv = [f"pydra backend {target}"]
    with asyncio.Runner() as runner:
        runner.run(_serve(sock, target, calls))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def set_parent_death_signal(parent: int) -> None:
    """Ask the kernel for SIGKILL when the agent dies; end now if it died before that took effect."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _raise_oom_score() -> None:
    """Have the kernel kill this process before the agent for lack of memory, but not before every other pod's.

    Source: proc_pid_oom_score_adj(5). Raising one's own score needs no capability. What runs out is one's own limit or
    the node's memory: 500 counts as half of that.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        score = min(int(file.read()) + _OOM_SCORE, 1000)
        file.seek(0)
        file.write(str(score))


def _prepare_for_crashes() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)


async def _serve(sock: socket.socket, target: str, calls: type[CallServer]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(CallThreads(thread_name_prefix="backend"))
    over = asyncio.Event()
    started: asyncio.Future[Start] = loop.create_future()
    server: CallServer | None = None

    def on_message(message: ToBackend) -> None:
        if isinstance(message, Start):
            started.set_result(message)
        elif isinstance(message, Ping):
            channel.send(Pong())
        elif server is not None:  # the agent calls only after Hello
            server.receive(message)

    def on_end(error: WireError | None) -> None:
        if error is not None:
            sys.stderr.write(f"the agent sent malformed bytes: {error}\n")
        over.set()

    channel = Channel(parse_to_backend, on_message, on_end)
    await channel.open(sock)
    start = await started
    if start.descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, start.descriptors)
    forward_logs(channel, start.log_level)
    try:
        async with _open_backend(target, start) as (backend, live, settings, check), asyncio.TaskGroup() as tasks:
            types = BackendTypes(configs=getattr(backend, "CONFIG_TYPES", {}), steps=getattr(backend, "STEP_TYPES", ()))
            server = calls(live, types, channel.send, tasks, check)
            channel.send(_hello(backend, live, settings))
            await over.wait()
            server.cancel_all()
            loop.call_later(_LEAVE_SECONDS, os._exit, 0)
    except _StartupError as unusable:
        channel.send(unusable.refusal)
        channel.finish()
        await over.wait()


@contextlib.asynccontextmanager
async def _open_backend(
    target: str, start: Start
) -> AsyncIterator[tuple[Any, Any, tuple[SettingValue, ...], ConfigCheck | None]]:
    """Yield the loaded backend, the object with its coroutines, its settings, its check. Raises _StartupError."""
    backend = _load(target)
    settings_type = getattr(backend, "SETTINGS_TYPE", None)
    unreadable = find_settings_type_violations(settings_type)
    violations = (*find_object_violations(backend), *unreadable)
    try:
        arguments, settings = _read_settings(settings_type, start) if not unreadable else ((), ())
    except SettingsError as error:
        _raise_violations((*violations, *error.problems) if violations else ())
        fault = Fault(kind=FaultKind.INVALID_SETTINGS, problems=error.problems)
        raise _StartupError(Refusal(fault=fault, final=True)) from error
    _raise_violations(violations)
    check = find_check(backend, *arguments) if arguments else None
    if getattr(backend, "connect", None) is None:
        yield backend, backend, (), check
        return
    async with contextlib.AsyncExitStack() as stack:
        try:
            manager = backend.connect(*arguments)
            _raise_violations(find_manager_violations(manager))
            live = await stack.enter_async_context(manager)
        except _StartupError:
            raise
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # the call boundary, for `connect`
            raise _StartupError(Refusal(fault=build_fault(error), final=False)) from error
        _raise_violations(find_coroutine_violations(live, backend))
        yield backend, live, settings, check


def _load(target: str) -> Any:
    """Load the object that `module:attribute` names. Raises _StartupError."""
    try:
        return load_object(target)
    except LoadError as error:
        raise _StartupError(Refusal(fault=error.fault, final=True)) from error


def _read_settings(settings_type: Any, start: Start) -> tuple[tuple[Any, ...], tuple[SettingValue, ...]]:
    """Read the arguments of `connect`, and describe them. Raises SettingsError."""
    if settings_type is None:
        if start.settings:
            raise SettingsError([f"backendSettings.{start.backend}: this backend takes no settings"])
        return (), ()
    settings = read_settings(settings_type, start.backend, start.prefix, os.environ, start.settings)
    return (settings,), describe_settings(settings, start.backend, start.prefix, os.environ, start.settings)


def _raise_violations(violations: tuple[str, ...]) -> None:
    if violations:
        raise _StartupError(Refusal(fault=Fault(kind=FaultKind.CONTRACT, problems=violations), final=True))


def _hello(backend: Any, live: Any, settings: tuple[SettingValue, ...]) -> Hello:
    return Hello(
        driver=getattr(backend, "DRIVER", ""),
        methods=find_methods(live),
        config_kinds=tuple(sorted(getattr(backend, "CONFIG_TYPES", {}))),
        reasons=find_custom_reasons(),
        misspelt=find_misspelt(backend, live),
        survives_reboot=getattr(backend, "SURVIVES_REBOOT", False),
        one_pod=getattr(backend, "ONE_POD", False),
        deadline=getattr(live, "DEADLINE", 0.0),
        settings=settings,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
