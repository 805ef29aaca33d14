"""The simulated machine's memory: a file, so that a process that is killed leaves what real hardware would.

machine.json       `machine_state.State`, replaced as a whole under a lock
scenario           the path of the scenario, for who knows this directory only
clients/<pid>-<n>  a process that has NVML open; it counts while that process lives
faults/<key>       how many calls a fault has seen
run/               what the backend keeps where a reboot empties it
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import msgspec

from pydra_nvidia.atomic_files import replace_file
from pydra_nvidia.simulation.call_faults import FaultPlan
from pydra_nvidia.simulation.machine_state import Event, State, View
from pydra_nvidia.simulation.machine_transitions import new_gpu
from pydra_nvidia.simulation.scenario import Scenario
from pydra_nvidia.simulation.scenario_file import ScenarioFile
from pydra_nvidia.simulation.scenario_gpus import find_boards

EVENTS_KEPT = 1024
_NOTE = "scenario"


class Machine:
    """The machine of a scenario, with its memory in the directory `state`, which is made when first needed.

    `followers` are called with each change after it is written, before anybody else can change anything.
    """

    def __init__(self, scenario: ScenarioFile, state: str) -> None:
        self.scenario = scenario
        self.path = state
        self.followers: list[Callable[[View], None]] = []
        self._file = os.path.join(state, "machine.json")
        self._mutex = threading.RLock()
        self._known: tuple[int, View] | None = None
        os.makedirs(state, mode=0o700, exist_ok=True)

    def read(self) -> View:
        """The machine as it is now; nothing of it may be changed. Raises ScenarioError."""
        scenario = self.scenario.read()
        known = self._known  # both at once: another thread may be about to replace them
        try:
            stamp = os.stat(self._file).st_mtime_ns
        except FileNotFoundError:
            stamp = 0
        if known is not None and known[0] == stamp and known[1].scenario is scenario:
            return known[1]
        with self._mutex:
            self._known = self._load(scenario, known[1] if known else None)
            return self._known[1]

    @contextmanager
    def change(self) -> Iterator[View]:
        """The machine, for this caller alone among all processes: its `state` may be changed, and is then written.

        Nothing is written when the block raises. Not to be nested.
        """
        with self._locked():
            # Not what readers have: that must not change under them.
            stamp, view = self._load(self.scenario.read(), self._known[1] if self._known else None)
            yield view
            self._known = replace_stamped(self._file, msgspec.json.encode(view.state), stamp), view
            for follower in self.followers:
                follower(view)

    def new_number(self, state: State) -> int:
        """One that nothing else made has."""
        state.made += 1
        return state.made

    def record(
        self, state: State, uuid: str, kind: int, data: int = 0, *, gi: int | None = None, ci: int | None = None
    ) -> None:
        """Let an event happen; who waits for it learns of it when the change is written."""
        state.happened += 1
        state.events.append(Event(number=state.happened, uuid=uuid, type=kind, data=data, gi=gi, ci=ci))
        del state.events[:-EVENTS_KEPT]

    def join(self) -> str:
        """This process has NVML open from now on; returns what `leave` needs."""
        folder = os.path.join(self.path, "clients")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{os.getpid()}-{time.monotonic_ns()}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(_started(os.getpid()))
        return path

    def leave(self, client: str) -> None:
        """NVML was shut down."""
        with suppress(FileNotFoundError):
            os.unlink(client)

    def clients(self) -> Mapping[int, int]:
        """The live processes that have NVML open, and how many times each; what the dead left is removed."""
        folder = os.path.join(self.path, "clients")
        found: dict[int, int] = {}
        with suppress(FileNotFoundError):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                pid = int(name.partition("-")[0])
                with suppress(FileNotFoundError):
                    with open(path, encoding="utf-8") as file:
                        started = file.read()
                    if started and started == _started(pid):
                        found[pid] = found.get(pid, 0) + 1
                    elif started:
                        os.unlink(path)
        return found

    def note_scenario(self) -> None:
        """So that `noted_scenario` finds it."""
        path = os.path.abspath(self.scenario.path)
        if noted_scenario(self.path) != path:
            replace_file(f"{self.path}/{_NOTE}", path.encode())

    def empty_run(self) -> None:
        """As a reboot does with /run."""
        shutil.rmtree(os.path.join(self.path, "run"), ignore_errors=True)

    def forget_clients(self) -> None:
        """The driver went away under them: they have to open NVML again."""
        folder = os.path.join(self.path, "clients")
        with suppress(FileNotFoundError):
            for name in os.listdir(folder):
                self.leave(os.path.join(folder, name))

    def _load(self, scenario: Scenario, known: View | None) -> tuple[int, View]:
        stamp = 0
        try:
            with open(self._file, "rb") as file:
                stamp = os.fstat(file.fileno()).st_mtime_ns
                state = msgspec.json.decode(file.read(), type=State)
        except FileNotFoundError:
            state = State(driver=scenario.driver.state)
        if known is not None and known.scenario is scenario:
            boards, faults = known.boards, known.faults
        else:
            boards = {board.uuid: board for board in find_boards(scenario)}
            faults = FaultPlan(scenario.faults, os.path.join(self.path, "faults"))
        for uuid, board in boards.items():
            if uuid not in state.gpus:
                state.gpus[uuid] = new_gpu(board)
        return stamp, View(scenario=scenario, boards=boards, faults=faults, state=state)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._mutex:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)


def replace_stamped(path: str, content: bytes, before: int) -> int:
    """Replace a file; its time, which is later than `before`, in ns.

    Readers tell changes apart by the time alone, and the clock of files is coarse.
    """
    draft, stamp = f"{path}.draft", max(time.time_ns(), before + 1)
    with open(draft, "wb") as file:
        file.write(content)
    os.utime(draft, ns=(stamp, stamp))
    os.replace(draft, path)
    return stamp


def noted_scenario(state: str) -> str:
    """The path of the scenario whose machine has its memory in this directory; empty when none has."""
    try:
        with open(os.path.join(state, _NOTE), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When the process started, in clock ticks; a pid alone may be another's by now.

    Empty when there is none, or one that has ended and that nobody has waited for: it has nothing open any more.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
