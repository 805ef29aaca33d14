"""The kubelet plugin of one driver, from the wait for the kubelet's directories to the end of the last call. A shell.

The sockets are looked after by period: the kubelet's directories may come late, another process may still hold a plain
name, and a wiped kubelet root takes the sockets with it.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress

import anyio
from anyio.abc import TaskStatus

from pydra.kubelet.events import KubeletEvent, Serving, Stopped, Waiting
from pydra.kubelet.health_service import HealthSource
from pydra.kubelet.instance import Instance
from pydra.kubelet.names import plan_socket_paths
from pydra.kubelet.node_service import StartPrepare, StartUnprepare

log = logging.getLogger(__name__)

DIRECTORY_MODE = 0o750


class KubeletPlugin:
    """Serves one driver to the kubelet. Several, of several drivers, can run in one process."""

    def __init__(
        self,
        driver: str,
        *,
        prepare: StartPrepare,
        unprepare: StartUnprepare,
        registry_directory: str,
        plugin_directory: str,
        health: HealthSource | None = None,
        pod_uid: str = "",
        health_period: float = 10.0,
        drain_grace: float = 25.0,
        check_period: float = 2.0,
        report: Callable[[KubeletEvent], None] = lambda _: None,
    ) -> None:
        """Without `health` the plugin has no health service, and says so. Periods and the grace are in seconds.

        A `pod_uid` gives the instance sockets of its own, so that two can overlap in a rolling update; `paths` says
        where they are.

        Raises:
            SettingsError: no driver name, or directories whose sockets would have paths too long for Linux.
        """
        self.paths = plan_socket_paths(
            driver, registry_directory=registry_directory, plugin_directory=plugin_directory, pod_uid=pod_uid
        )
        self._driver = driver
        self._prepare = prepare
        self._unprepare = unprepare
        self._health = health
        self._registry_directory = registry_directory
        self._plugin_directory = plugin_directory
        self._health_period = health_period
        self._drain_grace = drain_grace
        self._check_period = check_period
        self._report = report
        self._said: KubeletEvent | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; then let the calls in flight end, which takes up to the grace, and remove the sockets.

        `task_status.started` is called when both sockets accept, which is late where the kubelet is.
        """
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self._run_shielded, stop, task_status)
            try:
                await anyio.sleep_forever()
            finally:
                stop.set()

    async def _run_shielded(self, stop: anyio.Event, task_status: TaskStatus[None]) -> None:
        """All of it out of the reach of cancellation, which would take the calls in flight with it."""
        with anyio.CancelScope(shield=True):
            instance = self._build_instance()
            try:
                await self._keep_serving(instance, stop, task_status)
            finally:
                cut_off = await instance.stop(self._drain_grace)
            self._report(Stopped(driver=self._driver, cut_off=cut_off))

    def _build_instance(self) -> Instance:
        return Instance(
            self._driver,
            self.paths,
            prepare=self._prepare,
            unprepare=self._unprepare,
            health=self._health,
            health_period=self._health_period,
            report=self._report,
        )

    async def _keep_serving(self, instance: Instance, stop: anyio.Event, task_status: TaskStatus[None]) -> None:
        started = False
        while not stop.is_set():
            if not instance.is_intact():
                self._say(await self._try_to_serve(instance))
            if not started and instance.is_intact():
                task_status.started()
                started = True
            with anyio.move_on_after(self._check_period):
                await stop.wait()

    async def _try_to_serve(self, instance: Instance) -> Serving | Waiting:
        try:
            self._ensure_directories()
            await instance.ensure()
        except OSError as error:
            return Waiting(driver=self._driver, problem=_describe(error))
        return Serving(driver=self._driver, endpoint=self.paths.service, registration=self.paths.registration)

    def _ensure_directories(self) -> None:
        """The registry is the kubelet's to make, and its sign of life; the plugin's own directory is made here."""
        if not os.path.isdir(self._registry_directory):
            question = "not there; is the kubelet running, and is this its plugins_registry directory?"
            raise FileNotFoundError(errno.ENOENT, question, self._registry_directory)
        for directory in (os.path.dirname(self._plugin_directory), self._plugin_directory):
            with suppress(FileExistsError):
                os.mkdir(directory, DIRECTORY_MODE)

    def _say(self, event: Serving | Waiting) -> None:
        """Once for each change, not once for each look."""
        if event == self._said:
            return
        self._said = event
        if isinstance(event, Waiting):
            log.warning("driver %s is not served yet: %s", event.driver, event.problem)
        else:
            log.info("driver %s is served at %s", event.driver, event.endpoint)
        self._report(event)


def _describe(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
