"""One MPS control daemon: started, asked, given its limits, found again, ended. Who needs it is in `apply_mps`.

It runs apart from this process and outlives it. Three things tell that a process is ours: the record, with its id and
start time; the file that the daemon itself writes; and a mark in the environment, which its servers inherit.
Source: NVIDIA's guide to MPS, "nvidia-cuda-mps-control".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Sequence

from pydra import ClaimError, PydraError, parse_quantity
from pydra_nvidia.container_written_files import remove_clients_directory
from pydra_nvidia.host.driver_programs import Program, ProgramFailed, find_environment, find_program, run_program
from pydra_nvidia.host.driver_root import DriverRoot
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.mps_directory import MpsDirectory, MpsRecord, require_nameable
from pydra_nvidia.sharing.mps_launch_plan import (
    Launch,
    LaunchContext,
    find_context,
    find_copies,
    find_mounts,
    has_memory,
    plan_daemon,
    plan_mount,
    reach_pipe,
)
from pydra_nvidia.sharing.mps_processes import MARK, Process, end, find_marked, has_mark, identify, is_alive, wait_gone
from pydra_nvidia.steps import StartMps
from pydra_nvidia.waiting import left
from pydra_pci import Tree, find_own_namespaces, shows_all_processes

KILL_DEADLINE = 5.0
"""Seconds that killed processes are waited for."""

SHM_WITHOUT_MEMINFO = "65536k"

_CONTROL = "nvidia-cuda-mps-control"
_LEAST = 1.0
"""Seconds that a program has although the call's time is used up."""

_ASKED = 2
"""How often a daemon that was ready is asked before it is called silent."""

_POLL = 0.05
_log = logging.getLogger(__name__)


class MpsFailed(ClaimError):
    """The daemon did not start, or does not do what it was asked."""

    reason = "MpsFailed"


class MpsNotKept(ClaimError):
    """A daemon that is started here would end with the agent's container, and fail its clients."""

    reason = "MpsNotKept"


class MpsStuck(ClaimError):
    """Processes of the daemon do not end; what they use stays until they do."""

    reason = "MpsStuck"


class MpsDaemons:
    """`find_root` finds the driver's installation again, since drivers are replaced; it may raise PydraError.

    `where` is by default what the setting `mps_launcher` says. In seconds: a command has `command_deadline`; after
    `quit` a daemon has `quit_deadline` to end, and after SIGTERM `grace`.
    """

    def __init__(
        self,
        settings: Settings,
        tree: Tree,
        find_root: Callable[[], DriverRoot],
        *,
        where: LaunchContext | None = None,
        command_deadline: float = 5.0,
        quit_deadline: float = 5.0,
        grace: float = 2.0,
    ) -> None:
        self._settings = settings
        self._tree = tree
        self._find_root = find_root
        self._where = where or find_context(settings.mps_launcher)
        self._command_deadline = command_deadline
        self._quit_deadline = quit_deadline
        self._grace = grace

    async def ensure(self, place: MpsDirectory, step: StartMps, devices: Sequence[str], uid: str) -> None:
        """Have it running, with its limits, for these devices.

        Raises MpsFailed, MpsNotKept, ProgramFailed, ProgramMissing, MpsStuck; what was begun may be left then.
        """
        if await self.is_ready(place):
            return
        self.refuse_container()
        process = await asyncio.to_thread(self.find, place)
        try:
            if process is None or not await self._answers(place):  # else who started it died before it had its limits
                await self._end(place)
                process = await self._start(place, step, devices)
            await self._configure(place, step, devices)
        except ProgramFailed as error:
            if error.ended:
                raise
            raise MpsFailed(f"{error}{await asyncio.to_thread(_said, place)}") from error
        record = MpsRecord(uid=uid, devices=tuple(devices), pid=process.pid, started=process.started)
        await asyncio.to_thread(place.write_record, record)

    async def is_ready(self, place: MpsDirectory) -> bool:
        """Whether it lives and had all its limits once.

        It is then left alone, also when it is silent: ending it would end what its clients compute.
        """
        if await asyncio.to_thread(find_recorded, place) is None:
            return False
        for _ in range(_ASKED):
            if await self._answers(place):
                return True
        _log.warning("MPS daemon %s lives and does not answer; it is left to the claim's pods", place.id)
        return True

    def find(self, place: MpsDirectory) -> Process | None:
        """The control daemon that runs for the place, as the record or its own file says. May block."""
        if (process := find_recorded(place)) is not None:
            return process
        pid = place.read_pid(reach_pipe(place, self._where))
        if pid is not None and has_mark(pid, _mark(place)):
            return identify(pid)
        return None

    async def remove(self, place: MpsDirectory) -> None:
        """End it and take away its directories; nothing there is fine. Raises MpsStuck, ClaimError."""
        await self._end(place)
        if mounted := await asyncio.to_thread(find_mounts, place, self._where):
            await self._launch("unmount the memory of MPS", Launch(namespaces=self._where.namespaces, unmount=mounted))
        if copies := await asyncio.to_thread(find_copies, place):
            await self._launch("unmount the agent's view of it", Launch(unmount=copies))
        try:
            await asyncio.to_thread(remove_clients_directory, place.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ClaimError(f"the directories of the MPS daemon cannot be removed: {error}") from error

    async def _start(self, place: MpsDirectory, step: StartMps, devices: Sequence[str]) -> Process:
        """Start it and wait until it answers."""
        began = time.monotonic()
        root, control = await asyncio.to_thread(self._find_control)
        await asyncio.to_thread(place.make)
        await self._mount(place)
        await asyncio.to_thread(self._empty, place)
        plan = plan_daemon(place, control, root, self._where, devices=tuple(devices), multi_user=step.multi_user)
        until = began + left(self._settings.mps_ready_deadline)
        said = await self._launch(f"{_CONTROL} -d", plan)
        if said:
            _log.warning("MPS daemon %s: %s", place.id, said)
        while time.monotonic() < until:
            process = await asyncio.to_thread(self.find, place)
            if process is not None and await self._answers(place) and is_alive(process):
                return process
            await asyncio.sleep(_POLL)
        state = "runs, but does not answer" if await asyncio.to_thread(self.find, place) else "does not run"
        raise MpsFailed(
            f"the MPS control daemon for {', '.join(devices)} {state} after"
            f" {time.monotonic() - began:.0f} s{await asyncio.to_thread(_said, place)}"
        )

    def refuse_container(self) -> None:
        """Raises MpsNotKept where a daemon would not outlive the agent."""
        if self._where.is_host:
            kinds: tuple[str, ...] = () if shows_all_processes(self._tree) else ("pid",)
        else:
            kinds = find_own_namespaces(self._tree)
        if kinds:
            raise MpsNotKept(
                f"MPS daemons would end with the agent's container, which has a {' and a '.join(kinds)} namespace of"
                " its own, and what pods compute with them; the admin sets PYDRA_NVIDIA_MPS_LAUNCHER=host and lets the"
                " agent's pod have hostPID and be privileged"
            )

    def _find_control(self) -> tuple[DriverRoot, Program]:
        root = self._find_root()
        return root, find_program(root, _CONTROL)

    def _find_client(self, place: MpsDirectory) -> tuple[str, dict[str, str]]:
        """The program that talks to the daemon, and its environment."""
        root, control = self._find_control()
        return control.here, {
            **find_environment(root, control, root.path_here),
            "CUDA_MPS_PIPE_DIRECTORY": reach_pipe(place, self._where),
            "CUDA_MPS_LOG_DIRECTORY": place.log,
        }

    async def _configure(self, place: MpsDirectory, step: StartMps, devices: Sequence[str]) -> None:
        """Its limits, for all servers that it will start."""
        if step.thread_percentage is not None:
            wanted = step.thread_percentage
            await self._command(place, f"set_default_active_thread_percentage {wanted}")
            answer = await self._command(place, "get_default_active_thread_percentage")
            if _number(answer) != wanted:
                raise MpsFailed(
                    f"the MPS control daemon did not take defaultActiveThreadPercentage {wanted}, it has {answer!r};"
                    " allowed is what nvidia-cuda-mps-control of the installed driver takes"
                )
        for device in devices:
            limit = step.pinned_mib.get(device, step.default_pinned_mib)
            if limit is not None:
                await self._command(place, f"set_default_device_pinned_mem_limit {device} {limit}M")

    async def _answers(self, place: MpsDirectory) -> bool:
        try:
            return await self._command(place, "get_default_active_thread_percentage") != ""
        except ProgramFailed:
            return False

    async def _command(self, place: MpsDirectory, text: str) -> str:
        program, environment = await asyncio.to_thread(self._find_client, place)
        return await run_program(
            f"{_CONTROL} ({text})",
            (program,),
            environment=environment,
            deadline=max(_LEAST, left(self._command_deadline)),
            text=f"{text}\n",
        )

    async def _end(self, place: MpsDirectory) -> None:
        """Ask it to quit, then end whatever is left of it. Servers end too: none can serve without its daemon."""
        process = await asyncio.to_thread(self.find, place)
        if process is not None:
            with contextlib.suppress(PydraError):  # a driver that is gone, or a daemon that hangs, cannot be asked
                await self._command(place, "quit")
                await wait_gone(process, left(self._quit_deadline))

        def find_living() -> set[Process]:
            recorded = {process} if process is not None and is_alive(process) else set()
            return {*find_marked(_mark(place)), *recorded}

        if living := await end(find_living, grace=self._grace, deadline=KILL_DEADLINE):
            pids = ", ".join(str(one.pid) for one in living)
            raise MpsStuck(
                f"processes of MPS daemon {place.id} do not end, although they were killed: {pids};"
                " they may wait for the GPU, which then needs a reset"
            )

    async def _mount(self, place: MpsDirectory) -> None:
        """Memory for what clients and servers exchange; plain directories where mounting is not permitted.

        What is mounted stays while the place does, for containers have it.
        """
        if await asyncio.to_thread(has_memory, place, self._where):
            return
        size = await asyncio.to_thread(self._size)
        try:
            await self._launch("mount memory for MPS", plan_mount(place, size, self._where))
        except ProgramFailed as error:
            if self._where.is_host:
                raise
            _log.warning("MPS daemon %s: %s and its pipes are plain directories: %s", place.id, place.shm, error)

    def _empty(self, place: MpsDirectory) -> None:
        """Without sockets and locks of a daemon that was killed; clients have the directory itself."""
        pipe = reach_pipe(place, self._where)
        require_nameable(pipe)
        for entry in os.scandir(pipe):
            with contextlib.suppress(OSError):
                os.unlink(entry.path)

    def _size(self) -> str:
        """What the admin says, or half of the node's memory, as the vendor has it."""
        if self._settings.mps_shared_memory:
            return f"{int(parse_quantity(self._settings.mps_shared_memory)) // 1024}k"
        memory = _read_memory(self._tree)
        return SHM_WITHOUT_MEMINFO if memory is None else f"{memory // 2}k"

    async def _launch(self, command: str, plan: Launch) -> str:
        deadline = max(_LEAST, left(self._settings.mps_ready_deadline))
        return await run_program(command, plan.command(), environment={}, deadline=deadline, outlives=True)


def find_recorded(place: MpsDirectory) -> Process | None:
    """The control daemon that was written down once it had its limits, if it lives. Blocks."""
    record = place.read_record()
    if record is None or not is_alive(process := Process(record.started, record.pid)):
        return None
    return process


def _read_memory(tree: Tree) -> int | None:
    """The node's memory in KiB; None where it is not known."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", tree.read(tree.proc("meminfo")), re.MULTILINE)
    return int(found[1]) if found else None


def _mark(place: MpsDirectory) -> str:
    return f"{MARK}={place.path}"


def _said(place: MpsDirectory) -> str:
    text = place.read_log()
    return f'; its log ends with "{text}"' if text else f"; it wrote no log in {place.log}"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
