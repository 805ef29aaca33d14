"""nvidia-cuda-mps-control: the control daemon of MPS, and what talks to it. Standard library only, to start quickly.

    nvidia-cuda-mps-control -d                        # a daemon in the background
    echo get_default_active_thread_percentage | nvidia-cuda-mps-control

Faults of the scenario strike `nvidia_cuda_mps_control` when a daemon is started, `nvidia_cuda_mps_control_serve` in
it before it serves, and `nvidia_cuda_mps_control_<command>` when it gets a command: raise, delay, hang, exit.
It starts no servers. Source: NVIDIA's guide to MPS, "nvidia-cuda-mps-control" and "Logging"; how client and daemon
speak is our own: a connection for each command, whose answer begins with the client's status.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any, NoReturn

OP = "nvidia_cuda_mps_control"
PID_FILE = "nvidia-cuda-mps-control.pid"
_PIPE, _LOG = "/tmp/nvidia-mps", "/var/log/nvidia-mps"  # noqa: S108 - the names that MPS itself has


class Refused(Exception):
    """The daemon refuses. `status` is the client's: a command that makes no sense is only reported."""

    def __init__(self, words: str, status: int = 0) -> None:
        self.status = status
        super().__init__(words)


class Place:
    """The directories of one daemon."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.pipe = environment.get("CUDA_MPS_PIPE_DIRECTORY") or _PIPE
        self.log = environment.get("CUDA_MPS_LOG_DIRECTORY") or _LOG

    def path(self, name: str) -> str:
        """Of a file among the pipes."""
        return os.path.join(self.pipe, name)

    def write_log(self, words: str) -> None:
        """A line in the daemon's log."""
        with open(os.path.join(self.log, "control.log"), "a", encoding="utf-8") as file:
            file.write(f"[{time.strftime('%F %T')} Control {os.getpid():>5}] {words}\n")


def answer(line: str, limits: dict[str, str]) -> str:
    """What the daemon says to a command; `limits` are those of devices, and the percentage. Raises Refused."""
    match line.split():
        case ["get_default_active_thread_percentage"]:
            return limits["percentage"]
        case ["set_default_active_thread_percentage", value]:
            if not value.isdecimal() or not 0 < int(value) <= 100:
                raise Refused(f"Invalid active thread percentage: {value}")
            limits["percentage"] = f"{int(value):.1f}"
            return limits["percentage"]
        case ["get_default_device_pinned_mem_limit", device]:
            return limits.get(device, "N/A")
        case ["set_default_device_pinned_mem_limit", device, value]:
            if not value[:-1].isdecimal() or value[-1] not in "KMGT":
                raise Refused(f"Invalid pinned memory limit: {value}")
            limits[device] = value
            return ""
        case ["quit"]:
            return ""
    raise Refused(f"Unknown command, or invalid arguments: {line}")


def serve(place: Place, listener: socket.socket, facts: Mapping[str, Any]) -> None:
    """Answer until it gets `quit`."""
    place.write_log(f"Starting control daemon for {os.environ.get('CUDA_VISIBLE_DEVICES') or 'all devices'}")
    with contextlib.suppress(Refused):
        _strike(f"{OP}_serve", facts)
    limits = {"percentage": "100.0"}
    line = ""
    while line != "quit":
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            line = _receive(connection)
            place.write_log(f"Accepting command: {line}")
            status = 0
            try:
                _strike(f"{OP}_{line.partition(' ')[0]}", facts)
                words = answer(line, limits)
            except Refused as refused:
                status, words, line = refused.status, str(refused), ""
                place.write_log(words)
            connection.sendall(f"{status}{words}".encode())
    place.write_log("Exit")


def start(place: Place, facts: Mapping[str, Any]) -> int:
    """Become a daemon; returns the status of what was started from a shell."""
    try:
        _strike(OP, facts)
        os.makedirs(place.pipe, exist_ok=True)
        os.makedirs(place.log, exist_ok=True)
        lock = os.open(place.path("control_lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        listener = _listen(place.path("control"))
    except BlockingIOError:
        return _say("An instance of this daemon is already running")
    except (Refused, OSError) as error:
        return _say(f"Failed to start the MPS control daemon in {place.pipe}: {error}")
    with listener:
        started = _detach()
        if started is not None:
            _run(place, listener, facts, started)
    return 0


def _run(place: Place, listener: socket.socket, facts: Mapping[str, Any], started: int) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write("nvidia-cuda-mps")
    try:
        signal.signal(signal.SIGTERM, _stop)
        with open(place.path(PID_FILE), "w", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
        os.close(started)  # last: the program that waits for it may end the daemon at once
        serve(place, listener, facts)
    finally:
        for name in (PID_FILE, "control", "control_lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place.path(name))


def tell(place: Place, lines: Iterable[str]) -> int:
    """Pass commands on to the daemon, and say what it answers."""
    for line in filter(None, map(str.strip, lines)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.connect(place.path("control"))
            except OSError:
                return _say("Cannot find MPS control daemon process")
            reply = ""
            with contextlib.suppress(OSError):
                connection.sendall(line.encode())
                connection.shutdown(socket.SHUT_WR)
                reply = _receive(connection)
        if not reply:
            return _say("Lost the connection to the MPS control daemon")
        if reply[1:]:
            print(reply[1:], flush=True)  # noqa: T201 - it is a program
        if reply[0] != "0":
            return 1
    return 0


def _receive(connection: socket.socket) -> str:
    return b"".join(iter(lambda: connection.recv(4096), b"")).decode()


def _listen(path: str) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    os.chmod(path, 0o666)  # noqa: S103 - clients are of any user
    listener.listen(64)
    return listener


def _detach() -> int | None:
    """In the daemon, in the background: what it closes when it has started. In the process before, None, after that."""
    waits, started = os.pipe()
    if os.fork():
        os.close(started)
        os.read(waits, 1)
        return None
    os.close(waits)
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    os.chdir("/")
    return started


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _strike(op: str, facts: Mapping[str, Any]) -> None:
    """Let the faults of the scenario happen; raises Refused."""
    if not facts["faults"]:
        return
    from pydra_nvidia.simulation.call_faults import act  # noqa: PLC0415 - only a machine with faults pays for it
    from pydra_nvidia.simulation.machine_store import Machine  # noqa: PLC0415
    from pydra_nvidia.simulation.scenario_file import ScenarioFile  # noqa: PLC0415

    for fault in Machine(ScenarioFile(facts["scenario"]), facts["state"]).read().faults.draw(op, None):
        if fault.do == "raise":
            raise Refused(f"refused: {fault.code}", 1)
        act(fault)


def _say(words: str) -> int:
    print(words)  # noqa: T201 - it is a program
    return 1


def main(facts: Mapping[str, Any]) -> int:
    """Run it with this process's arguments, environment and standard input; its status."""
    place = Place(os.environ)
    options = set(sys.argv[1:])
    if unknown := options - {"-d", "-M"}:
        return _say(f"nvidia-cuda-mps-control: unknown option {min(unknown)}; there are -d, -M")
    return start(place, facts) if "-d" in options else tell(place, sys.stdin)
