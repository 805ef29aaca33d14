"""Registering one plugin: ask who it is, decide, take it in, tell it. Retried until it works."""

from __future__ import annotations

import logging
from typing import Protocol
from urllib.parse import quote

import anyio
from grpclib.exceptions import GRPCError, StreamTerminatedError

from pydra.kubelet.pb.pluginregistration_v1 import InfoRequest, RegistrationStatus, RegistrationStub
from pydra_dev.kubelet.channel import WatchedChannel, settle_cancellation
from pydra_dev.kubelet.registration import Plugin, RegistrationError, accept_plugin
from pydra_dev.kubelet.settings import KubeletSettings
from pydra_dev.kubelet.steps import RegistrationFailed, Report

log = logging.getLogger(__name__)

CONNECTION_ERRORS = (GRPCError, StreamTerminatedError, OSError)
"""What a call can raise; TimeoutError is an OSError."""


class Plugins(Protocol):
    """Where registered plugins live."""

    def register(self, plugin: Plugin) -> None:
        """Raises RegistrationError."""

    def deregister(self, socket: str) -> None:
        """Nothing, when none registered there."""


class Registrar:
    """Registers the plugin behind a socket. A new connection for each attempt, closed afterwards."""

    def __init__(self, settings: KubeletSettings, plugins: Plugins, report: Report) -> None:
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
            with anyio.fail_after(self._settings.periods.dial):
                await channel.connect()
            await self._register_over(channel, socket)
        finally:
            channel.close()

    async def _register_over(self, channel: WatchedChannel, socket: str) -> None:
        stub = RegistrationStub(channel)
        with settle_cancellation():
            info = await stub.get_info(InfoRequest(), timeout=self._settings.periods.get_info)
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
            await self._notify(stub, str(error))
            raise
        try:
            await self._notify(stub)
        except CONNECTION_ERRORS:
            self._plugins.deregister(socket)
            raise

    async def _notify(self, stub: RegistrationStub, error: str = "") -> None:
        status = RegistrationStatus(plugin_registered=not error, error=error)
        with settle_cancellation():
            await stub.notify_registration_status(status, timeout=self._settings.periods.notify)


def _text(error: Exception) -> str:
    if isinstance(error, GRPCError):
        return f"rpc error: code = {error.status.name} desc = {error.message or ''}"
    return str(error) or ("deadline exceeded" if isinstance(error, TimeoutError) else type(error).__name__)
