"""A backend that cannot be imported: what it needs is not there."""

from __future__ import annotations

import vendor_sdk_of_nobody  # type: ignore[import-not-found]  # noqa: F401

DRIVER = "needy.example.com"
