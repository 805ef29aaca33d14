"""What the admin can decide about the webhook. Pure; the texts for `--help` are in `pydra.cli.webhook`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pydra.errors import SettingsError
from pydra.settings import (
    AbsolutePath,
    LogFormat,
    LogLevel,
    Seconds,
    SecondsOrNone,
    find_backend_problems,
    find_value_problems,
    is_address,
    split_address,
)


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Everything the admin can decide. Without a certificate it speaks plain HTTP, for a proxy in front of it."""

    backends: tuple[str, ...]
    drivers: Mapping[str, str] = {}

    address: str = "0.0.0.0:8443"
    http_address: str = ""
    tls_cert: AbsolutePath | None = None
    tls_key: AbsolutePath | None = None
    tls_period: Seconds = 10.0

    read_deadline: Seconds = 10.0
    drain_grace: SecondsOrNone = 5.0

    log_format: LogFormat = LogFormat.AUTO
    log_level: LogLevel = LogLevel.INFO

    def __post_init__(self) -> None:
        if problems := tuple(_problems(self)):
            raise SettingsError(problems)

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port for the API server."""
        return split_address(self.address)

    @property
    def http_endpoint(self) -> tuple[str, int] | None:
        """Host and port of the plain endpoint for metrics and probes, or None where there is none."""
        return split_address(self.http_address) if self.http_address else None


def parse_webhook_settings(values: Mapping[str, Any]) -> WebhookSettings:
    """Settings from camelCase keys. Raises SettingsError with all that can be told at once."""
    if problems := tuple(find_value_problems(values, WebhookSettings, program="pydra webhook")):
        raise SettingsError(problems)
    return msgspec.convert(values, WebhookSettings, strict=False)


def _problems(settings: WebhookSettings) -> Iterator[str]:
    yield from find_backend_problems(settings.backends, settings.drivers)
    if not is_address(settings.address):
        yield f"address: {settings.address!r} is not HOST:PORT"
    if settings.http_address and not is_address(settings.http_address):
        yield f"httpAddress: {settings.http_address!r} is not HOST:PORT; leave it empty for none"
    if bool(settings.tls_cert) != bool(settings.tls_key):
        given, lacks = ("tlsCert", "tlsKey") if settings.tls_cert else ("tlsKey", "tlsCert")
        yield f"{lacks}: missing, {given} is given; both are needed, or neither to speak plain HTTP"
