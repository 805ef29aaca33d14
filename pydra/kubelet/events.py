"""What the kubelet plugin has to tell the agent, as values; the agent makes metrics, log lines and Events of them."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """The driver cannot be served at the moment; `problem` says why. It is tried again until it can."""

    driver: str
    problem: str


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Both sockets are there and accept: `endpoint` for the kubelet's calls, `registration` for its watcher."""

    driver: str
    endpoint: str
    registration: str


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet uses the driver now."""

    driver: str


class RegistrationRefused(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet does not use the driver; `message` is the kubelet's reason. It will try again."""

    driver: str
    message: str


class HealthStreams(msgspec.Struct, frozen=True, kw_only=True):
    """How many health streams are open now."""

    driver: str
    count: int


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """The sockets are gone; `cut_off` calls had not ended within the grace."""

    driver: str
    cut_off: int


KubeletEvent: TypeAlias = Waiting | Serving | Registered | RegistrationRefused | HealthStreams | Stopped
