"""Plugin registration gRPC service.

Tells the kubelet what the plugin is, and receives its decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from grpclib import GRPCError, Status

from pydra.kubelet.grpc_server import Method
from pydra.kubelet.message_conversion import build_plugin_info, one_line, parse_registration_status

log = logging.getLogger(__name__)

MESSAGE_BYTES = 4096

NODE_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""The kubelet's names of the node service, which differ from gRPC's; it uses the first one that it knows."""

HEALTH_VERSIONS = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The kubelet's names of the health service, which are also gRPC's."""


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet uses the driver now."""

    driver: str


class RegistrationRefused(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet does not use the driver; `message` is its reason. It will try again."""

    driver: str
    message: str


class RegistrationService:
    """`pluginregistration.Registration`: called again by every kubelet that starts, and by every retry.

    `registered` is what the kubelet decided last.
    """

    def __init__(
        self, driver: str, *, endpoint: str, report: Callable[[Registered | RegistrationRefused], None]
    ) -> None:
        self._driver = driver
        versions = (*NODE_VERSIONS, *HEALTH_VERSIONS)
        self._info = build_plugin_info(driver=driver, endpoint=endpoint, versions=versions)
        self._report = report
        self._stopping = False
        self.registered = False

    def methods(self) -> dict[str, Method]:
        """Return the methods by path."""
        return {
            "/pluginregistration.Registration/GetInfo": Method(unary=self._get_info),
            "/pluginregistration.Registration/NotifyRegistrationStatus": Method(unary=self._notify_status),
        }

    def stop(self) -> None:
        """Refuse registration: a kubelet that starts now would use a service that is stopping."""
        self._stopping = True

    async def _get_info(self, _: bytes) -> bytes:
        """Return the plugin's info. The kubelet waits one second for it, so nothing is awaited here."""
        if self._stopping:
            raise GRPCError(Status.UNAVAILABLE, f"driver {self._driver} is stopping")
        return self._info

    async def _notify_status(self, request: bytes) -> bytes:
        """Handle the kubelet's decision. An error here would make it deregister the plugin again."""
        self.registered, error = parse_registration_status(request)
        if self.registered:
            log.info("the kubelet has registered driver %s", self._driver)
            self._report(Registered(driver=self._driver))
        else:
            reason = one_line(error, MESSAGE_BYTES) or "the kubelet gives no reason"
            log.error("the kubelet refuses driver %s: %s", self._driver, reason)
            self._report(RegistrationRefused(driver=self._driver, message=reason))
        return b""
