"""Judges by the configuration of the container runtime whether it reads the CDI files of this node."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydra.diagnosis.findings import Finding, Level
from pydra.settings import Settings

_CONTAINERD = ("/etc/containerd/config.toml", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml")
_CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""What both runtimes read by default."""
_CRI = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
"""containerd's plugin with the settings of CDI: in version 2 of its file, and in version 3."""


def judge_runtime(settings: Settings, runtime: str) -> Finding:
    """Judge whether the runtime reads the directory that the agent writes; `runtime` is as the Node has it. Blocks.

    Source: the configuration of containerd 1.7 to 2.2 and CRI-O 1.34.
    """
    name, _, version = runtime.partition("://")
    host = settings.host_root.rstrip("/")
    try:
        if name == "containerd":
            advice = "set cdi_spec_dirs and, for 1.7, enable_cdi in its file"
            enabled, directories, file = _read_containerd(host, version)
        elif name == "cri-o":
            advice = "set cdi_spec_dirs in a file of /etc/crio/crio.conf.d"
            enabled, directories, file = _read_crio(host)
        else:
            found = f"it is not known where {runtime or 'the runtime'} reads CDI files"
            return Finding(subject="runtime", level=Level.UNKNOWN, found=found)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        found = f"the configuration of {runtime} cannot be read: {error}"
        return Finding(subject="runtime", level=Level.UNKNOWN, found=found)
    if not enabled:
        found = f"{runtime} has CDI switched off ({file})"
        return Finding(subject="runtime", level=Level.PROBLEM, found=found, advice=advice)
    if _real(host, settings.cdi_dir) not in {_real(host, one) for one in directories}:
        found = (
            f"{runtime} reads CDI files in {', '.join(directories)}, and the agent writes {settings.cdi_dir} ({file})"
        )
        advice = f"set cdiDir to one of them, or {advice}"
        return Finding(subject="runtime", level=Level.PROBLEM, found=found, advice=advice)
    return Finding(subject="runtime", level=Level.OK, found=f"{runtime} reads {settings.cdi_dir} ({file})")


def _read_containerd(host: str, version: str) -> tuple[bool, Sequence[str], str]:
    """Return whether it reads CDI files, in which directories, and the file that says so."""
    places = [host + place for place in (*_find_running_config("containerd"), *_CONTAINERD)]
    file = next(filter(os.path.isfile, places), "")
    section: dict[str, Any] = {}
    document = _read_toml(file) if file else {}
    beside = os.path.dirname(file.removeprefix(host))  # of which imports may be relative
    patterns = [host + os.path.join(beside, pattern) for pattern in document.get("imports") or ()]
    imported = [part for pattern in patterns for part in sorted(glob(pattern))]
    for one in (document, *map(_read_toml, imported)):
        for name in _CRI:
            section.update((one.get("plugins") or {}).get(name) or {})
    enabled = section.get("enable_cdi", not version.startswith("1."))
    return enabled, section.get("cdi_spec_dirs") or _CDI_DIRECTORIES, file or "by default"


def _find_running_config(name: str) -> Iterator[str]:
    """Yield the value of `--config` of a running program, where its process is visible: not in most pods."""
    for process in map(Path, glob("/proc/[0-9]*")):
        with suppress(OSError, UnicodeDecodeError):
            if (process / "comm").read_text().strip() != name:
                continue
            words = (process / "cmdline").read_text().split("\0")
            values = [value for flag, value in pairwise(words) if flag in ("-c", "--config")]
            values += [word.partition("=")[2] for word in words if word.startswith(("-c=", "--config="))]
            folder = os.readlink(process / "cwd")
            yield from (os.path.normpath(os.path.join(folder, value)) for value in values)


def _read_crio(host: str) -> tuple[bool, Sequence[str], str]:
    """Return the same; every release that pydra serves reads CDI files."""
    found: tuple[Sequence[str], str] = _CDI_DIRECTORIES, "by default"
    for part in (f"{host}/etc/crio/crio.conf", *sorted(glob(f"{host}/etc/crio/crio.conf.d/*"))):
        if os.path.isfile(part):
            directories = (_read_toml(part).get("crio") or {}).get("runtime", {}).get("cdi_spec_dirs")
            found = (directories, part) if directories else found
    return True, *found


def _read_toml(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        return tomllib.load(file)


def _real(host: str, path: str) -> str:
    """Resolve the links of a path of the host, such as /var/run, as far as they are visible."""
    here = os.path.realpath(f"{host}/var/run")
    resolved = "/run" if here in (f"{host}/run", "/run") else "/var/run"
    return os.path.normpath(f"{resolved}{path.removeprefix('/var/run')}" if path.startswith("/var/run/") else path)
