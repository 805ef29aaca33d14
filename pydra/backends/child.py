"""The process of one backend: `python -m pydra.backends.child FD --parent PID --backend MODULE[:ATTRIBUTE]`.

Started by `pydra.backends.process` with a connected socket as descriptor FD. It dies with the agent,
leaves no core files, writes the Python stacks to stderr when it crashes or gets SIGUSR1, and speaks
to the agent over the socket alone: what the backend prints is only output.
"""

from __future__ import annotations

import argparse
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

from pydra.backends.channel import Channel
from pydra.backends.check import find_coroutine_violations, find_methods, find_object_violations
from pydra.backends.faults import Fault, FaultKind, build_fault, find_own_reasons
from pydra.backends.loading import Unloadable, load_object
from pydra.backends.serving import CallServer
from pydra.backends.threads import CallThreads
from pydra.backends.wire import Heartbeat, Hello, Refusal, ToBackend, WireError, parse_to_backend

_PR_SET_PDEATHSIG = 1
_LEAVE_SECONDS = 3.0


class _Unusable(Exception):
    """The backend cannot be called; the refusal says why."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.fault.message)


def main(arguments: list[str]) -> None:
    """Serve until the agent closes the connection. Never returns: threads that hang cannot hold it up."""
    parser = argparse.ArgumentParser(prog="pydra.backends.child", description="Runs one backend for pydra-agent.")
    parser.add_argument("fd", type=int)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--heartbeat", type=float, required=True)
    options = parser.parse_args(arguments)
    _die_with(options.parent)
    _arrange_for_trouble()
    sock = socket.socket(fileno=options.fd)
    sock.set_inheritable(False)  # a program that the backend starts must not keep the connection open
    sys.argv = [f"pydra backend {options.backend}"]
    with asyncio.Runner() as runner:
        runner.run(_serve(sock, options.backend, options.heartbeat))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _die_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when the agent dies; end now if it died before that was heard."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _arrange_for_trouble() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)


async def _serve(sock: socket.socket, target: str, heartbeat: float) -> None:
    asyncio.get_running_loop().set_default_executor(CallThreads(thread_name_prefix="backend"))
    over = asyncio.Event()
    server: CallServer | None = None

    def on_message(message: ToBackend) -> None:
        if server is not None:  # the agent calls only after it was greeted
            server.receive(message)

    channel = Channel(parse_to_backend, on_message, lambda error: _over(error, over))
    await channel.open(sock)
    async with asyncio.TaskGroup() as beside:
        beating = beside.create_task(_beat(channel, heartbeat))
        try:
            async with _live(target) as (backend, live), asyncio.TaskGroup() as tasks:
                server = CallServer(live, getattr(backend, "CONFIG_TYPES", {}), channel.send, tasks)
                channel.send(_hello(backend, live))
                await over.wait()
                server.cancel_all()
                asyncio.get_running_loop().call_later(_LEAVE_SECONDS, os._exit, 0)
        except _Unusable as unusable:
            channel.send(unusable.refusal)
            channel.finish()
            await over.wait()
        beating.cancel()


def _over(error: WireError | None, over: asyncio.Event) -> None:
    if error is not None:
        sys.stderr.write(f"the agent sent malformed bytes: {error}\n")
    over.set()


async def _beat(channel: Channel[ToBackend], period: float) -> None:
    while True:
        await channel.drain()
        channel.send(Heartbeat())
        await asyncio.sleep(period)


@contextlib.asynccontextmanager
async def _live(target: str) -> AsyncIterator[tuple[Any, Any]]:
    """The loaded backend, and the object with its coroutines. Raises _Unusable."""
    backend = _load(target)
    _refuse_violations(find_object_violations(backend))
    if getattr(backend, "connect", None) is None:
        yield backend, backend
        return
    async with contextlib.AsyncExitStack() as stack:
        try:
            live = await stack.enter_async_context(backend.connect())
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # the call boundary, for `connect`
            raise _Unusable(Refusal(fault=build_fault(error), final=False)) from error
        _refuse_violations(find_coroutine_violations(live))
        yield backend, live


def _load(target: str) -> Any:
    """The object that `module:attribute` names. Raises _Unusable."""
    try:
        return load_object(target)
    except Unloadable as error:
        raise _Unusable(Refusal(fault=error.fault, final=True)) from error


def _refuse_violations(violations: tuple[str, ...]) -> None:
    if violations:
        raise _Unusable(Refusal(fault=Fault(kind=FaultKind.CONTRACT, problems=violations), final=True))


def _hello(backend: Any, live: Any) -> Hello:
    return Hello(
        driver=getattr(backend, "DRIVER", ""),
        methods=find_methods(live),
        config_kinds=tuple(sorted(getattr(backend, "CONFIG_TYPES", {}))),
        device_classes=dict(sorted(getattr(backend, "DEVICE_CLASSES", {}).items())),
        reasons=find_own_reasons(),
        survives_reboot=getattr(backend, "SURVIVES_REBOOT", False),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
