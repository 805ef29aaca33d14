"""The registration service: who the plugin is, from memory, and what the kubelet made of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from grpclib import GRPCError, Status

from pydra.kubelet.events import Registered, RegistrationRefused
from pydra.kubelet.messages import one_line
from pydra.kubelet.pb.pluginregistration_v1 import (
    InfoRequest,
    PluginInfo,
    RegistrationBase,
    RegistrationStatus,
    RegistrationStatusResponse,
)

log = logging.getLogger(__name__)

MESSAGE_BYTES = 4096

NODE_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""What the kubelet calls the node service; it takes the first that it knows. Not the gRPC names, which are longer."""

HEALTH_VERSIONS = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""What the kubelet calls the health service; here its names and gRPC's are the same."""


class RegistrationService(RegistrationBase):
    """`pluginregistration.Registration`: asked anew by every kubelet that starts, and by every retry."""

    def __init__(
        self,
        driver: str,
        *,
        endpoint: str,
        versions: Sequence[str],
        report: Callable[[Registered | RegistrationRefused], None],
    ) -> None:
        self._driver = driver
        self._info = PluginInfo(type="DRAPlugin", name=driver, endpoint=endpoint, supported_versions=list(versions))
        self._report = report
        self._stopping = False

    def stop(self) -> None:
        """Register no more: a kubelet that starts now would use a service that is going away."""
        self._stopping = True

    async def get_info(self, message: InfoRequest) -> PluginInfo:
        """Who the plugin is; the kubelet waits one second for it, so nothing is awaited here."""
        if self._stopping:
            raise GRPCError(Status.UNAVAILABLE, f"driver {self._driver} is stopping")
        return self._info

    async def notify_registration_status(self, message: RegistrationStatus) -> RegistrationStatusResponse:
        """What the kubelet decided. An error here would make it deregister the plugin again."""
        if message.plugin_registered:
            log.info("the kubelet has registered driver %s", self._driver)
            self._report(Registered(driver=self._driver))
        else:
            reason = one_line(message.error, MESSAGE_BYTES) or "the kubelet gives no reason"
            log.error("the kubelet refuses driver %s: %s", self._driver, reason)
            self._report(RegistrationRefused(driver=self._driver, message=reason))
        return RegistrationStatusResponse()
