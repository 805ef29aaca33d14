"""The registration of plugins: the sockets in the registry directory, and the calls over them.

The directory is scanned; a socket that is created again at the same path is another one, and the old plugin is
deregistered first. Registration is retried until it succeeds.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeAlias
from urllib.parse import quote

import anyio
from grpclib.client import UnaryUnaryMethod
from grpclib.exceptions import GRPCError, StreamTerminatedError

from pydra.kubelet.pb import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from pydra_dev.kubelet.grpc_channel import WatchedChannel, settle_cancellation
from pydra_dev.kubelet.observations import RegistrationFailed, Report
from pydra_dev.kubelet.plugin_acceptance import RegistrationError, accept_plugin
from pydra_dev.kubelet.plugins import PluginRegistry, start_task
from pydra_dev.kubelet.settings import KubeletSettings

log = logging.getLogger(__name__)

_REGISTRATION = "/pluginregistration.Registration"

_DIAL_SECONDS = 10.0
_GET_INFO_SECONDS = 1.0
_NOTIFY_SECONDS = 5.0

Identity: TypeAlias = tuple[int, int]
"""Inode and time of creation: what differs between two sockets at one path."""


def _scan(directory: str) -> Iterator[tuple[str, Identity]]:
    """All sockets below the directory whose names do not begin with a dot."""
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # gone since the listing
            continue
        if stat.S_ISSOCK(found.st_mode):
            yield entry.path, (found.st_ino, found.st_mtime_ns)
        elif stat.S_ISDIR(found.st_mode):
            yield from _scan(entry.path)


async def watch_registry(
    settings: KubeletSettings,
    *,
    register: Callable[[str], Awaitable[None]],
    deregister: Callable[[str], None],
) -> None:
    """Look for changes until cancelled; `register` may take its time and is cancelled when its socket goes."""
    known: dict[str, Identity] = {}
    attempts: dict[str, anyio.CancelScope] = {}
    async with anyio.create_task_group() as tasks:
        while True:
            found = dict(_scan(settings.registry))
            # A socket that was replaced is gone and new.
            for path in sorted(dict(known.items() - found.items())):
                attempts.pop(path).cancel()
                deregister(path)
            for path in sorted(dict(found.items() - known.items())):
                attempts[path] = start_task(tasks, register, path, name=f"register {os.path.basename(path)}")
            known = found
            await anyio.sleep(settings.periods.registry_scan)


CONNECTION_ERRORS = (GRPCError, StreamTerminatedError, OSError)
"""What a call can raise; TimeoutError is an OSError."""


class Registrar:
    """Registers the plugin behind a socket. A new connection for each attempt, closed afterwards."""

    def __init__(self, settings: KubeletSettings, plugins: PluginRegistry, report: Report) -> None:
        self._settings = settings
        self._plugins = plugins
        self._report = report

    async def register(self, socket: str) -> None:
        """Return once the plugin is registered; until then, try again with growing pauses."""
        failures = 0
        while True:
            try:
                await self._attempt(socket)
            except (RegistrationError, *CONNECTION_ERRORS) as error:
                failures += 1
                message = _text(error)
                log.info("cannot register the plugin at %s: %s", socket, message)
                self._report(RegistrationFailed(socket=socket, message=message))
            else:
                return
            await anyio.sleep(self._settings.periods.registration_retry.pause(failures))

    async def _attempt(self, socket: str) -> None:
        # The kubelet dials the registration socket by its bare path, which grpc-go makes the authority.
        channel = WatchedChannel(socket, authority=quote(socket, safe=""))
        try:
            with anyio.fail_after(_DIAL_SECONDS):
                await channel.connect()
            await self._register_over(channel, socket)
        finally:
            channel.close()

    async def _register_over(self, channel: WatchedChannel, socket: str) -> None:
        get_info = UnaryUnaryMethod(channel, f"{_REGISTRATION}/GetInfo", InfoRequest, PluginInfo)
        with settle_cancellation():
            info = await get_info(InfoRequest(), timeout=_GET_INFO_SECONDS)
        try:
            plugin = accept_plugin(
                socket=socket,
                type_=info.type,
                name=info.name,
                endpoint=info.endpoint,
                versions=info.supported_versions,
                minor=self._settings.minor,
            )
            self._plugins.register(plugin)
        except RegistrationError as error:
            await self._notify(channel, str(error))
            raise
        try:
            await self._notify(channel)
        except CONNECTION_ERRORS:
            self._plugins.deregister(socket)
            raise

    async def _notify(self, channel: WatchedChannel, error: str = "") -> None:
        status = RegistrationStatus(plugin_registered=not error, error=error)
        path = f"{_REGISTRATION}/NotifyRegistrationStatus"
        notify = UnaryUnaryMethod(channel, path, RegistrationStatus, RegistrationStatusResponse)
        with settle_cancellation():
            await notify(status, timeout=_NOTIFY_SECONDS)


def _text(error: Exception) -> str:
    if isinstance(error, GRPCError):
        return f"rpc error: code = {error.status.name} desc = {error.message or ''}"
    return str(error) or ("deadline exceeded" if isinstance(error, TimeoutError) else type(error).__name__)
