"""Which version of NRI a runtime has. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

NriVersion: TypeAlias = tuple[int, ...]
"""Major, minor and patch, then 1, or 0 for what comes before that patch (`v0.12.1-rc.1`)."""

_UNKNOWN: NriVersion = (0,)

UPDATES_FIXED: NriVersion = (0, 12, 1, 1)
"""From here on, UpdateContainers cannot deadlock the runtime (containerd#13733)."""

_LIBRARIES: Mapping[str, Sequence[tuple[str, str]]] = {
    "containerd": (
        *(("1.7.0", "0.3.0"), ("1.7.14", "0.6.0"), ("1.7.16", "0.6.1"), ("1.7.26", "0.8.0"), ("2.0.0", "0.8.0")),
        *(("2.2.0", "0.10.0"), ("2.2.1", "0.11.0"), ("2.3.0", "0.12.0")),
    ),
    "cri-o": (
        *(("1.26.0", "0.2.0"), ("1.30.0", "0.6.0"), ("1.31.0", "0.6.1"), ("1.32.0", "0.9.0"), ("1.34.0", "0.10.0")),
        ("1.35.0", "0.11.0"),
    ),
}
"""The NRI version from each release of a runtime on, as its go.mod says; from 0.12 on, the runtime says it itself."""

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(-?)")


def read_nri_version(stated: str, runtime: str, release: str) -> NriVersion:
    """The version that the runtime states, or else that of its release; (0,) if neither is known."""
    if (version := _parse(stated)) > (0, 0, 0, 1):
        return version
    known = _LIBRARIES.get(runtime, ())
    return max((_parse(nri) for since, nri in known if _parse(since)[:3] <= _parse(release)[:3]), default=_UNKNOWN)


def _parse(text: str) -> NriVersion:
    match = _VERSION.match(text)
    return (*map(int, match.groups()[:3]), 0 if match[4] else 1) if match else _UNKNOWN
