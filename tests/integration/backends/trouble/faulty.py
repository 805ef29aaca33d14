"""A backend that misbehaves on demand: the name of a claim's first device says what its prepare does.

`FAULTY_DIR`, when set, holds files that say what the telemetry coroutines do, and one line for each
prepare that was begun.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import pydra

DRIVER = "faulty.example.com"
DEVICE_CLASSES: dict[str, Any] = {"faulty.example.com": {"selectors": []}}


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    replicas: int = 1


CONFIG_TYPES = {"faulty.example.com/v1/Sharing": Sharing}


def _switch(name: str) -> str:
    directory = os.environ.get("FAULTY_DIR")
    path = Path(directory or "/nonexistent") / name
    return path.read_text() if path.exists() else ""


def _note(line: str) -> None:
    directory = os.environ.get("FAULTY_DIR")
    if directory:
        with (Path(directory) / "journal").open("a") as journal:
            journal.write(line + "\n")


async def discover() -> pydra.Inventory:
    await act(_switch("discover") or "ok")
    return pydra.Inventory(devices=(pydra.Device(name="a", capacity={"memory": pydra.Capacity("80Gi")}),))


async def prepare(claim: pydra.Claim, /) -> Any:
    _note(f"prepare {claim.uid}")
    device = claim.devices[0]
    sharing = device.config(Sharing)
    edits = pydra.ContainerEdits(env={"REPLICAS": str(sharing.replicas if sharing else 0), "PID": str(os.getpid())})
    answer = await act(device.device)
    return [one.prepared(edits, {"n": 1}) for one in claim.devices] if answer is None else answer


async def unprepare(claim: pydra.Claim, prepared: Sequence[pydra.PreparedDevice], /) -> None:
    _note(f"unprepare {claim.uid} {len(prepared)}")
    if claim.name.startswith("unprepare-"):
        await act(claim.name.removeprefix("unprepare-"))


_hinting = asyncio.Event()


async def wait_changed() -> None:
    _hinting.set()
    try:
        await act(_switch("hints"))
        while not _switch("changed"):
            await asyncio.sleep(0.01)
    finally:
        _hinting.clear()
    (Path(os.environ["FAULTY_DIR"]) / "changed").unlink()


async def measure() -> list[pydra.Sample]:
    return [pydra.Sample(name="temperature_celsius", value=41.5, device="a")]


async def act(what: str) -> Any:
    action = globals().get("do_" + what.replace("-", "_").rstrip("0123456789"))
    return await action() if action is not None else None


async def do_segfault() -> None:
    ctypes.string_at(0)


async def do_leak() -> None:
    while len(_leaked) < 32:
        shared = mmap.mmap(-1, 4 << 20)
        shared.write(b"x" * (4 << 20))
        _leaked.append((b"x" * (4 << 20), shared))
        await asyncio.sleep(0)
    await asyncio.sleep(60)


_leaked: list[tuple[bytes, mmap.mmap]] = []


async def do_read_secret() -> None:
    try:
        Path(os.environ["FAULTY_SECRET"]).read_text()
    except PermissionError as error:
        raise pydra.ClaimError("the secret cannot be read") from error


async def do_new_namespace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000):  # CLONE_NEWUSER
        raise pydra.ClaimError(f"a new namespace is refused: {os.strerror(ctypes.get_errno())}")


async def do_run_programs_and_segfault() -> None:
    for name, own_session in (("tool", False), ("daemon", True)):
        started = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=own_session)
        (Path(os.environ["FAULTY_DIR"]) / name).write_text(str(started.pid))
    ctypes.string_at(0)


async def do_later_segfault() -> None:
    await asyncio.sleep(0.1)
    ctypes.string_at(0)


async def do_segfault_once() -> None:
    marker = Path(os.environ["FAULTY_DIR"]) / "segfaulted"
    if not marker.exists():
        marker.touch()
        ctypes.string_at(0)


async def do_segfault_twice_then_hang() -> None:
    deaths = Path(os.environ["FAULTY_DIR"]) / "deaths"
    if not deaths.exists() or deaths.stat().st_size < 2:
        with deaths.open("a") as file:
            file.write(".")
        ctypes.string_at(0)
    await do_hang()


async def do_exit_beside_hints() -> None:
    first = Path(os.environ["FAULTY_DIR"]) / "first"
    if not first.exists():
        await _hinting.wait()
    first.touch()
    if _hinting.is_set():
        os._exit(7)


async def do_close_all() -> None:
    os.closerange(3, 64)
    time.sleep(3600)  # noqa: ASYNC251 - the fault itself


async def do_abort() -> None:
    sys.stderr.write("vendor library: assertion failed\n")
    os.abort()


async def do_exit() -> None:
    os._exit(7)


async def do_leave_program_and_exit() -> None:
    program = os.fork()
    if program == 0:  # holds the connection and both pipes, as a careless library's daemon would
        os.setsid()  # else it would end with this process
        signal.pause()
    while os.getsid(program) != program:
        await asyncio.sleep(0)
    (Path(os.environ["FAULTY_DIR"]) / "program").write_text(str(program))
    os._exit(7)


async def do_fork() -> None:
    os.fork()


async def do_sys_exit() -> None:
    sys.exit("a library gave up")


async def do_raise() -> None:
    raise RuntimeError("no such register")


async def do_raise_claim_error() -> None:
    raise pydra.ClaimError("the device is held by a process")


async def do_raise_terminal() -> None:
    raise pydra.TerminalError("this model cannot be partitioned")


async def do_hang() -> None:
    await asyncio.Event().wait()


async def do_hang_in_thread() -> None:
    await asyncio.to_thread(_sleep_in_thread)


def _sleep_in_thread() -> None:
    pydra.set_status("resetting board 3 \udcff")  # as a file's name may have
    time.sleep(3600)


async def do_hang_stubborn() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def do_hang_loop() -> None:
    time.sleep(3600)  # noqa: ASYNC251 - the fault itself


async def do_hang_gil() -> None:
    ctypes.PyDLL(None).sleep(3600)


async def do_hang_in_kernel() -> None:
    os.stat(Path(os.environ["FAULTY_DIR"]) / "stuck" / "register")


async def do_hang_briefly() -> None:
    await asyncio.sleep(0.01)


async def do_slow() -> None:
    await asyncio.sleep(0.3)


async def do_very_slow() -> None:
    marker = Path(os.environ["FAULTY_DIR"]) / "was-slow"
    if not marker.exists():
        marker.touch()
        await asyncio.sleep(3600)


async def do_print_noise() -> None:
    os.write(1, b"\xff\x00garbage on stdout\n" * 2000)
    os.write(2, b"warning from a library\n")
    print("printed")  # noqa: T201 - the fault itself


async def do_fill_pipes() -> None:
    for fd in (1, 2):
        os.write(fd, b"x" * 300_000)


async def do_garble() -> None:
    os.write(_agent_socket(), b"\xff" * 64)
    await asyncio.sleep(3600)


async def do_answer_stranger() -> None:
    _send({"type": "reply", "id": 987654, "result": None})


async def do_flood_places() -> None:
    for call_id in range(100):
        _send({"type": "waiting", "id": call_id, "where": "x"})


async def do_fail_at_length() -> None:
    fault = {"kind": "contract", "problems": ["x" * 10_000] * 1000}
    for call_id in range(10):
        _send({"type": "failure", "id": call_id, "fault": fault})


async def do_wait_at_length() -> None:
    time.sleep(0.3)  # noqa: ASYNC251 - so that this process does not answer itself
    where = 'File "x.py", line 1, in ' + "y" * 10**7
    for call_id in range(10):
        _send({"type": "waiting", "id": call_id, "where": where})


def _send(message: Any) -> None:
    frame = msgspec.msgpack.encode(message)
    connection = socket.socket(fileno=os.dup(_agent_socket()))
    connection.setblocking(True)
    connection.sendall(len(frame).to_bytes(4, "big") + frame)
    connection.close()


def _agent_socket() -> int:
    """The connection to the agent, by the command line of this process."""
    return int(sys.orig_argv[sys.orig_argv.index("pydra.backends.child.main") + 1])


async def do_answer_none() -> Any:
    return {}


async def do_answer_wrong_devices() -> Any:
    return [pydra.PreparedDevice(request="gpu", pool="node", device="another")]


async def do_answer_wrong_types() -> Any:
    edits = pydra.ContainerEdits(env={"A": 1}, additional_gids=("x",))  # type: ignore[dict-item, arg-type]
    return [pydra.PreparedDevice(request=3, pool="node", device="answer-wrong-types", edits=edits)]  # type: ignore[arg-type]


async def do_answer_unserialisable() -> Any:
    return [pydra.PreparedDevice(request="gpu", pool="node", device="answer-unserialisable", state=object())]


async def do_answer_huge() -> Any:
    state = "x" * (17 * 1024 * 1024)
    return [pydra.PreparedDevice(request="gpu", pool="node", device="answer-huge", state=state)]


async def do_allocate() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
    bytearray(1 << 33)


async def do_terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(3600)
