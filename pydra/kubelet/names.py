"""How a driver's sockets are called. Pure.

With a pod uid each instance has names of its own, so that during a rolling update two can serve side by side. The
registration socket takes the first of three forms that fits, as in Kubernetes 1.37's Go library, so that a Go driver's
and pydra's instances look alike in the kubelet's directories; the service socket falls back in the same manner.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256

import msgspec

from pydra.errors import SettingsError
from pydra.limits import SUBDOMAIN

MAX_SOCKET_PATH = 107
"""Bytes that Linux leaves for a Unix socket's path: `sockaddr_un.sun_path` has 108, one of them for the end."""

MAX_DRIVER_NAME = 63

_POD_UID = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?")


class SocketPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Absolute paths: `registration` for the kubelet's watcher, `service` for its calls (`PluginInfo.endpoint`)."""

    registration: str
    service: str


def plan_socket_paths(driver: str, *, registry_directory: str, plugin_directory: str, pod_uid: str = "") -> SocketPaths:
    """Where the driver's sockets are; without a pod uid, plain names that one instance at a time can have.

    Raises:
        SettingsError: no driver name, no absolute directory, or a directory so deep that no name fits below it.
    """
    directories = (registry_directory, plugin_directory)
    problems = [
        *_name_problems(driver, pod_uid),
        *(f"{path!r} is no absolute path, as the kubelet needs" for path in directories if not path.startswith("/")),
    ]
    if problems:
        raise SettingsError(problems)
    registration = _first_that_fits(registry_directory, _registration_names(driver, pod_uid))
    service = _first_that_fits(plugin_directory, _service_names(driver, pod_uid))
    for directory, path in ((registry_directory, registration), (plugin_directory, service)):
        if excess := excess_bytes(path):
            problems.append(
                f"the directory {directory} is too deep: the socket {path} has a path of {len(path.encode())} bytes, "
                f"and Linux allows {MAX_SOCKET_PATH}; choose a directory whose path is {excess} bytes shorter"
            )
    if problems:
        raise SettingsError(problems)
    return SocketPaths(registration=registration, service=service)


def excess_bytes(path: str) -> int:
    """How many bytes the path is too long for a Unix socket; 0 when it fits."""
    return max(0, len(path.encode()) - MAX_SOCKET_PATH)


def _name_problems(driver: str, pod_uid: str) -> Sequence[str]:
    problems = []
    if len(driver) > MAX_DRIVER_NAME or not SUBDOMAIN.fullmatch(driver):
        problems.append(
            f"{driver!r} is no driver name: it must be a DNS subdomain (lower-case letters, digits, '-' and '.') "
            f"of at most {MAX_DRIVER_NAME} bytes, such as gpu.example.com"
        )
    if pod_uid and not _POD_UID.fullmatch(pod_uid):
        problems.append(f"{pod_uid!r} is no pod uid: it may hold letters, digits and '-' only")
    return problems


def _registration_names(driver: str, uid: str) -> Sequence[str]:
    if not uid:
        return (f"{driver}-reg.sock",)
    both = _digest(f"{driver}\0{uid}", 16)
    return (f"{driver}-{uid}-reg.sock", f"{driver}-{_digest(uid, 8)}-reg.sock", f"dra-{both}-reg.sock")


def _service_names(driver: str, uid: str) -> Sequence[str]:
    if not uid:
        return ("dra.sock",)
    both = _digest(f"{driver}\0{uid}", 8)
    return (f"dra-{uid}.sock", f"dra-{_digest(uid, 8)}.sock", f"{both}.sock")


def _digest(text: str, size: int) -> str:
    """The first bytes of the text's SHA-256 in a form that suits a file name."""
    return urlsafe_b64encode(sha256(text.encode()).digest()[:size]).decode().rstrip("=")


def _first_that_fits(directory: str, names: Sequence[str]) -> str:
    paths = [f"{directory.rstrip('/')}/{name}" for name in names]
    return next((path for path in paths if not excess_bytes(path)), paths[-1])
