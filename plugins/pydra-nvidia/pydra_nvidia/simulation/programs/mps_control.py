"""nvidia-cuda-mps-control: the control daemon of MPS, and what talks to it. Standard library only, to start quickly.

    nvidia-cuda-mps-control -d                        # a daemon in the background; -f in the foreground
    echo get_default_active_thread_percentage | nvidia-cuda-mps-control

Faults of the scenario strike `nvidia_cuda_mps_control` when a daemon is started, `nvidia_cuda_mps_control_serve` in
it before it serves, and `nvidia_cuda_mps_control_<command>` when it gets a command: raise, delay, hang, exit.
It starts no servers. Source: NVIDIA's guide to MPS, "nvidia-cuda-mps-control" and "Logging"; how client and daemon
speak is our own.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, NoReturn

OP = "nvidia_cuda_mps_control"
PID_FILE = "nvidia-cuda-mps-control.pid"
_PIPE, _LOG = "/tmp/nvidia-mps", "/var/log/nvidia-mps"  # noqa: S108 - the names that MPS itself has
_END = b"\0"
_UNITS = "KMGT"


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

    def write_log(self, who: str, words: str) -> None:
        """A line in the log of the control daemon or of the servers."""
        now = datetime.datetime.now().isoformat(" ", "milliseconds")  # noqa: DTZ005 - as the real one
        with open(os.path.join(self.log, f"{who.lower()}.log"), "a", encoding="utf-8") as file:
            file.write(f"[{now} {who:>7} {os.getpid():>5}] {words}\n")


class Daemon:
    """What the control daemon knows, and how it answers."""

    def __init__(self) -> None:
        self._percentage = 100.0
        self._limits: dict[str, str] = {}
        self._commands: Mapping[str, tuple[Callable[..., str], range]] = {
            "get_default_active_thread_percentage": (self._get_percentage, range(1)),
            "set_default_active_thread_percentage": (self._set_percentage, range(1, 2)),
            "get_default_device_pinned_mem_limit": (self._get_limit, range(1, 2)),
            "set_default_device_pinned_mem_limit": (self._set_limit, range(2, 3)),
            "quit": (self._quit, range(3)),
        }

    def answer(self, line: str) -> str:
        """What it says to a command; raises Refused."""
        name, *words = line.split()
        if name not in self._commands:
            raise Refused(f"Unknown command: {name}")
        command, counts = self._commands[name]
        if len(words) not in counts:
            raise Refused(f"Invalid arguments for {name}: {' '.join(words) or 'none'}")
        return command(*words)

    def _get_percentage(self) -> str:
        return f"{self._percentage:.1f}"

    def _get_limit(self, device: str) -> str:
        return self._limits.get(device, "N/A")

    def _set_percentage(self, value: str) -> str:
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number <= 100:
            raise Refused(f"Invalid active thread percentage: {value}")
        self._percentage = number
        return f"{number:.1f}"

    def _set_limit(self, device: str, value: str) -> str:
        if not value[:-1].isdecimal() or value[-1] not in _UNITS:
            raise Refused(f"Invalid pinned memory limit: {value}")
        self._limits[device] = value
        return ""

    @staticmethod
    def _quit(*_options: str) -> str:
        return ""


def serve(place: Place, listener: socket.socket, facts: Mapping[str, Any]) -> None:
    """Answer until it gets `quit`."""
    devices = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    place.write_log("Control", f"Starting control daemon using socket {place.path('control')}")
    place.write_log(
        "Control", f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={place.pipe}"
    )
    place.write_log("Control", f"Devices: {', '.join(devices) or 'all'}")
    with contextlib.suppress(Refused):
        _strike(f"{OP}_serve", facts)
    daemon = Daemon()
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            for line in _lines(connection):
                status, words = 0, ""
                name = line.split()[0]
                place.write_log("Control", f"Accepting command: {line}")
                try:
                    _strike(f"{OP}_{name}", facts)
                    words = daemon.answer(line)
                except Refused as refused:
                    status, words = refused.status, str(refused)
                    place.write_log("Control", words)
                connection.sendall(f"{status}{words}".encode() + _END)
                if name == "quit" and status == 0:
                    place.write_log("Control", "Exit")
                    return


def start(place: Place, facts: Mapping[str, Any], *, background: bool) -> int:
    """Become a daemon; returns the status of what was started from a shell."""
    try:
        _strike(OP, facts)
        os.makedirs(place.pipe, exist_ok=True)
        os.makedirs(place.log, exist_ok=True)
        lock = os.open(place.path("control_lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        listeners = [_listen(place.path(name)) for name in ("control", "control_privileged")]
        with contextlib.suppress(FileExistsError):
            os.mkfifo(place.path("log"), 0o666)
    except BlockingIOError:
        return _say("An instance of this daemon is already running")
    except (Refused, OSError) as error:
        return _say(f"Failed to start the MPS control daemon in {place.pipe}: {error}")
    with listeners[0], listeners[1]:
        started = _detach() if background else os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        if started is not None:
            _run(place, listeners[0], facts, started)
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
        for name in (PID_FILE, "control", "control_privileged", "log", "control_lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place.path(name))


def tell(place: Place, lines: Iterator[str]) -> int:
    """Pass commands on to the daemon, and say what it answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(place.path("control"))
        except OSError:
            return _say("Cannot find MPS control daemon process")
        for line in lines:
            if not line.strip():
                continue
            try:
                connection.sendall(line.strip().encode() + b"\n")
                reply = b""
                while not reply.endswith(_END):
                    part = connection.recv(4096)
                    if not part:
                        return _say("Lost the connection to the MPS control daemon")
                    reply += part
            except OSError as error:
                return _say(f"Lost the connection to the MPS control daemon: {error.strerror}")
            words = reply[1:-1].decode()
            if words:
                print(words, flush=True)  # noqa: T201 - it is a program
            if reply[:1] != b"0":
                return 1
    return 0


def _lines(connection: socket.socket) -> Iterator[str]:
    with connection.makefile("r", encoding="utf-8") as file:
        yield from (line.strip() for line in file if line.strip())


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
    if unknown := options - {"-d", "-f", "-M", "-multiuser-server"}:
        return _say(f"nvidia-cuda-mps-control: unknown option {min(unknown)}; there are -d, -f, -multiuser-server")
    if options & {"-d", "-f"}:
        return start(place, facts, background="-d" in options)
    return tell(place, iter(sys.stdin))
