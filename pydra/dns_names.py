"""The grammar of DNS names, as Kubernetes uses it for names of nearly everything. Lengths are the callers' business.

Source: RFC 1123, section 2.1; Kubernetes, apimachinery validation. Use with `fullmatch`.
"""

from __future__ import annotations

import re

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""One label, at most 63 bytes."""

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""Labels with dots between. The API bounds the whole, not the labels in it."""
