"""Prints what Google's library says of links, throttling and cores, as one line of JSON: a process of its own."""

from __future__ import annotations

import importlib
import sys

import msgspec

METRICS = ("ici_link_health", "tpu_throttle_score", "tensorcore_util")


def main() -> None:
    """Ask, and print."""
    sdk = importlib.import_module("libtpu.sdk")  # only here: it writes files and starts threads
    found = {name: [str(text) for text in sdk.tpumonitoring.get_metric(name).data()] for name in METRICS}
    sys.stdout.write(f"{msgspec.json.encode(found).decode()}\n")


if __name__ == "__main__":
    main()
