"""Starts the agent process: the log and the backends' processes come first, the slow imports after.

A backend's process needs 0.1 s or more to start, and importing aiohttp, grpclib and the rest 0.2 s. One after the
other, they would take a fifth of the time to the first slice.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
from collections.abc import Callable, Iterator, Sequence

import anyio

from pydra.backends.discovery import BackendSource, find_backend
from pydra.backends.process_command import build_environ
from pydra.backends.supervisor import BackendSupervisor
from pydra.backends.supervisor_events import BackendEvent
from pydra.backends.timeouts import CallDeadlines
from pydra.errors import SettingsError
from pydra.observability.logging import configure_logs, log_loop_problem
from pydra.settings import Settings


class SpawnedBackend:
    """A backend whose process is spawned before there are the parts of the agent that its events go to.

    What its supervisor reports until then is kept for them.
    """

    def __init__(self, source: BackendSource, settings: Settings) -> None:
        self.source = source
        self._kept: list[BackendEvent] = []
        self._report: Callable[[BackendEvent], None] = self._kept.append
        self.supervisor = BackendSupervisor(
            source,
            deadlines=CallDeadlines(connect=settings.connect_deadline, discover=settings.discover_deadline),
            environ=build_environ(os.environ),
            settings=settings.backend_settings.get(source.configured_name, {}),
            rights=settings.process_rights(source.configured_name),
            report=self._forward,
        )

    def report_to(self, report: Callable[[BackendEvent], None]) -> None:
        """Report to this function from now on; what was kept comes first."""
        self._report = report
        for event in self._kept:
            report(event)
        self._kept.clear()

    def _forward(self, event: BackendEvent) -> None:
        self._report(event)


def run(settings: Settings, *, reread: Callable[[], Settings]) -> int:
    """Run until SIGTERM or SIGINT; return the exit code. `reread` returns the current settings on SIGHUP.

    Raises:
        SettingsError: a backend is not installed, there are no API server credentials, an address is in use.
    """

    def reload() -> Settings:
        fresh = reread()
        _open_log(fresh)
        return fresh

    _open_log(settings)
    _raise_descriptor_limit()
    sources = tuple(_find_all(settings.backends))
    try:
        anyio.run(_start, settings, sources, reload, backend_options={"use_uvloop": True})
    except BaseExceptionGroup as group:
        # Not by `except*`: on Python 3.11.2 what is raised inside it leaves in a group again.
        wrong, others = group.split(SettingsError)
        if wrong is None or others is not None:
            raise
        raise SettingsError([problem for error in _leaves(wrong) for problem in error.problems]) from group
    return 0


async def _start(settings: Settings, sources: Sequence[BackendSource], reread: Callable[[], Settings]) -> None:
    asyncio.get_running_loop().set_exception_handler(log_loop_problem)
    backends = [SpawnedBackend(source, settings) for source in sources]
    async with anyio.create_task_group() as processes:
        for backend in backends:
            processes.start_soon(backend.supervisor.run, name=f"backend {backend.source.name}")
        for backend in backends:
            await backend.supervisor.wait_spawned()
        gc.disable()  # imported objects stay: looking for garbage in them takes a tenth of the import
        from pydra.agent.assembly import serve  # noqa: PLC0415 - see above

        gc.freeze()  # without it, the first collection would look at all of them
        gc.enable()
        await serve(settings, backends, reread)
        processes.cancel_scope.cancel()


def _raise_descriptor_limit() -> None:
    """Raise the soft limit of file descriptors to the hard one: 50 pods at once need several for each claim.

    The soft limit is 1024 because of programs that use select(), which the agent does not. A backend's libraries may:
    `backends.process` gives its processes the limit that the agent was started with.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _open_log(settings: Settings) -> None:
    try:
        configure_logs(level=settings.log_level, form=settings.log_format, file=settings.log_file)
    except OSError as error:
        raise SettingsError([f"logFile: {settings.log_file} cannot be opened: {error.strerror}"]) from error


def _find_all(names: Sequence[str]) -> Iterator[BackendSource]:
    problems: list[str] = []
    for name in names:
        try:
            yield find_backend(name)
        except SettingsError as error:
            problems += error.problems
    if problems:
        raise SettingsError(problems)


def _leaves(group: BaseExceptionGroup[SettingsError]) -> Iterator[SettingsError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
