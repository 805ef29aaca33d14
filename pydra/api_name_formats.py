"""Formats of the names in the Kubernetes API.

Sources: RFC 1123, section 2.1; Kubernetes 1.36, apimachinery validation and pkg/apis/resource/validation.
"""

from __future__ import annotations

import re
from functools import lru_cache

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label, at most 63 bytes. For `fullmatch`, like all patterns here."""

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""DNS labels with dots between. The API bounds the whole, not the labels in it; the caller checks lengths."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

DRIVER_BYTES = 63
DRIVER_RULE = f"a lower-case DNS subdomain of at most {DRIVER_BYTES} bytes, such as gpu.example.com"
"""What `is_driver_name` allows, for messages."""


def is_label(name: str) -> bool:
    """Return whether it is a DNS-1123 label, as names of devices, counter sets and counters must be."""
    return LABEL.fullmatch(name) is not None


def is_driver_name(name: str) -> bool:
    """Return whether it is a lower-case DNS subdomain of at most 63 bytes, for directories, sockets and CDI vendors."""
    return len(name) <= DRIVER_BYTES and SUBDOMAIN.fullmatch(name) is not None


@lru_cache(maxsize=1024)  # a pool's devices have the same names
def is_qualified_name(name: str) -> bool:
    """Return whether it is `identifier` or `domain/identifier`, as attribute and capacity names; any case."""
    domain, slash, identifier = name.rpartition("/")
    return _IDENTIFIER.fullmatch(identifier) is not None and (not slash or is_driver_name(domain.lower()))


def is_label_key(name: str) -> bool:
    """Return whether it is a label or taint key: at most 63 bytes, optionally after a `domain/` of at most 253."""
    domain, slash, rest = name.rpartition("/")
    return _LABEL_NAME.fullmatch(rest) is not None and (
        not slash or (len(domain) <= 253 and SUBDOMAIN.fullmatch(domain) is not None)
    )


def is_label_value(value: str) -> bool:
    """Return whether it is a label or taint value; may be empty."""
    return not value or _LABEL_NAME.fullmatch(value) is not None
