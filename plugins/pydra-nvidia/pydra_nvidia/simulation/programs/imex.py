"""nvidia-imex and nvidia-imex-ctl as programs: what a daemon of a ComputeDomain starts, signals and asks.

There is no network: the daemon writes what it is and what it looked up into `imex.json` beside its configuration, and
the control program reads that. Lies and faults are in `behaviour.json` there, read at each use:

    {"state": "READY", "delay": 2.0, "exit": 1, "hang": false, "ignore_sigterm": false, "window": 5.0,
     "versions": {"1": "575.1"}, "disconnected": [1]}

As the real one, it looks names up at its start and when it handles SIGUSR1, at most once in `window` seconds, and
forgets the other signals. It is INITIALIZING for `delay` seconds. Source: NVIDIA's IMEX guide.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

TYPE_CHECKING = False  # what only types need is not loaded
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

STATE, BEHAVIOUR = "imex.json", "behaviour.json"
STATUS = "run/nvidia-imex/status"


def read_configuration(path: Path) -> Mapping[str, str]:
    """The keys of an imexd.cfg."""
    lines = (line.strip() for line in path.read_text().splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def read_behaviour(directory: Path) -> Mapping[str, Any]:
    """The faults that are in force; empty without any."""
    try:
        found: dict[str, Any] = json.loads((directory / BEHAVIOUR).read_text())
    except FileNotFoundError:
        return {}
    return found


def look_up(nodes_file: Path, hosts_file: Path) -> Mapping[str, str]:
    """The address of each configured name that has one."""
    known = {}
    for line in hosts_file.read_text().splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        known.update(dict.fromkeys(names, address))
    return {name: known[name] for name in nodes_file.read_text().split() if name in known}


def run_daemon(configuration: Path, hosts_file: Path) -> int:
    """Run in the foreground until SIGTERM; return the exit status."""
    directory = configuration.parent
    values, behaviour = read_configuration(configuration), read_behaviour(directory)
    if code := behaviour.get("exit"):
        sys.stderr.write("Failed to allocate Imex session: NV_ERR_IN_USE\n")
        return int(code)
    state: dict[str, Any] = {
        "pid": os.getpid(),
        "since": time.time(),
        "reloads": 0,
        "ignored": 0,
        "configuration": dict(values),
    }
    stopped, last = threading.Event(), float("-inf")

    def write() -> None:
        state["peers"] = look_up(Path(values["IMEX_NODE_CONFIG_FILE"]), hosts_file)
        part = directory / f".{STATE}"
        part.write_text(json.dumps(state))
        part.replace(directory / STATE)
        sys.stderr.write(f"knows the addresses of {len(state['peers'])} nodes\n")

    def reload(*_: object) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < read_behaviour(directory).get("window", 5.0):
            state["ignored"] += 1
        else:
            last = now
            state["reloads"] += 1
        write() if last == now else None

    def stop(*_: object) -> None:
        if not read_behaviour(directory).get("ignore_sigterm"):
            stopped.set()

    signal.signal(signal.SIGUSR1, reload)
    signal.signal(signal.SIGTERM, stop)
    write()
    sys.stderr.write("IMEX version 570.158.01 is running\n")
    stopped.wait()
    (directory / STATE).unlink()
    return 0


def run_control(arguments: Sequence[str]) -> int:
    """`-c FILE -q`, or `-c FILE -N -j`; return the exit status."""
    directory = Path(arguments[arguments.index("-c") + 1]).resolve().parent
    behaviour = read_behaviour(directory)
    if behaviour.get("hang"):
        time.sleep(3600)
    try:
        state = json.loads((directory / STATE).read_text())
        os.kill(state["pid"], 0)
    except (FileNotFoundError, ProcessLookupError):
        sys.stdout.write("UNAVAILABLE\n")
        return 0
    if "-N" not in arguments:
        starts = time.time() - state["since"] < behaviour.get("delay", 0)
        sys.stdout.write(f"{'INITIALIZING' if starts else behaviour.get('state', 'READY')}\n")
        return 0
    names = Path(state["configuration"]["IMEX_NODE_CONFIG_FILE"]).read_text().split()
    versions, broken = behaviour.get("versions", {}), behaviour.get("disconnected", [])
    links = {
        str(index): {
            "host": name,
            "status": "CONNECTED" if name in state["peers"] and index not in broken else "INVALID",
        }
        for index, name in enumerate(names)
    }
    nodes = {
        str(index): {"host": name, "version": versions.get(str(index), "570.158.01"), "connections": links}
        for index, name in enumerate(names)
    }
    sys.stdout.write(json.dumps({"nodes": nodes, "status": "UP"}))
    return 0


def control(facts: Mapping[str, str]) -> int:
    """nvidia-imex-ctl: `-q -c FILE`, or `-q --u=SOCKET`; returns the program's status.

    Where the simulated nvidia-imex has a list of nodes beside FILE, that is asked. Otherwise no daemon runs: one is
    there where FILE or SOCKET is, and its state is the text in STATUS of the simulated host, READY by default.
    """
    given = sys.argv[1:]
    places = [one.removeprefix("--u=") for one in given if one.startswith("--u=")]
    places += given[given.index("-c") + 1 :][:1] if "-c" in given else []
    if "-q" not in given or not places:
        sys.stderr.write("usage: nvidia-imex-ctl -q (-c FILE | --u=SOCKET)\n")
        return 2
    place = Path(places[0]).resolve()  # of a descriptor, the file
    if not place.exists():
        sys.stderr.write(f"Failed to connect to IMEX daemon: {place}: no such file\n")
        return 1
    if "-c" in given and (place.parent / "nodes.cfg").exists():
        return run_control(given)
    status = Path(facts["tree"], STATUS)
    sys.stdout.write(status.read_text() if status.exists() else "READY\n")
    return 0


def main(_facts: Mapping[str, str], arguments: Sequence[str] | None = None) -> int:
    """nvidia-imex: `-c FILE`; returns the program's status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    return run_daemon(Path(given[given.index("-c") + 1]), Path(os.environ.get("IMEX_HOSTS_FILE", "/etc/hosts")))


if __name__ == "__main__":
    sys.exit(run_control(sys.argv[2:]) if sys.argv[1] == "ctl" else main({}, sys.argv[2:]))
