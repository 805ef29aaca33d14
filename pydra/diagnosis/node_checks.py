"""Judges this node: its directories, sockets and CDI files, and whether the container runtime reads these files."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pydra import atomic_files
from pydra.agent.driver import read_boot_id
from pydra.checkpoint.record_files import list_stored
from pydra.claims.gc import read_kubelet_claims
from pydra.diagnosis import Finding, Level
from pydra.diagnosis.cdi_validation import SUFFIXES, check_spec_file
from pydra.errors import PydraError
from pydra.kubelet.sockets import find_stale_sockets, is_listened_at, plan_socket_paths
from pydra.settings import Settings

_LEAST_FREE = 16 * 1024 * 1024
"""Bytes: thousands of records. Less is a disk that is about to be full."""


def judge_directories_and_sockets(settings: Settings, drivers: Collection[str]) -> Iterator[Finding]:
    """Yield how the directories are, and the sockets of these drivers. Blocks."""
    root = "run the agent as root, and give its container the host's directory writable"
    kubelet = f"does the kubelet run, and is its --root-dir {settings.kubelet_root}? Set kubeletRoot if not"
    for subject, path, advice in (
        ("registry", settings.registry_directory, kubelet),
        *(("plugins", path, kubelet) for path in _find_writable(settings.plugin_directory, drivers)),
        *(("records", path, "") for path in _find_writable(settings.records_directory, drivers)),
        ("CDI", settings.cdi_dir, ""),
    ):
        yield _judge_directory(subject, path, absent=advice, denied=root)
    yield _judge_call("boot id", settings.boot_id_file, lambda: read_boot_id(settings.boot_id_file))
    yield _judge_kubelet(settings.kubelet_claims)
    yield from _judge_files(settings.cdi_dir)
    for driver in sorted(drivers):
        yield from _judge_sockets(settings, driver)


def _find_writable(directory_of: Callable[[str], str], drivers: Collection[str]) -> Sequence[str]:
    """Return the drivers' directories, all that the agent's pod can write to; the one above where there are none."""
    own = [path for path in map(directory_of, sorted(drivers)) if os.path.isdir(path)]
    return own or [os.path.dirname(directory_of("-"))]


def _judge_directory(subject: str, path: str, *, absent: str, denied: str) -> Finding:
    """Judge a directory that the agent writes to; without `absent` it makes the directory itself."""
    if not os.path.isdir(path):
        if absent:
            return Finding(subject, Level.PROBLEM, f"{path} is not there", absent)
        return Finding(subject, Level.NOTE, f"{path} is not there yet; the agent makes it")
    if not os.access(path, os.W_OK | os.X_OK):
        return Finding(subject, Level.PROBLEM, f"{path}: this user may not write", denied)
    status = os.statvfs(path)
    if status.f_flag & os.ST_RDONLY:
        return Finding(subject, Level.PROBLEM, f"{path} is on a file system that is mounted read-only", denied)
    if status.f_bavail * status.f_frsize < _LEAST_FREE or (status.f_files and not status.f_favail):
        return Finding(subject, Level.PROBLEM, f"{path}: the disk is full", "free space, or inodes, on it")
    return Finding(subject, Level.OK, path)


def _judge_call(subject: str, path: str, read: Callable[[], object]) -> Finding:
    try:
        read()
    except PydraError as error:
        return Finding(subject, Level.PROBLEM, str(error))
    except OSError as error:
        found = atomic_files.explain(error, f"reading {path}")
        advice = "garbage collection needs it; hostRoot is where the host's / is mounted"
        return Finding(subject, Level.PROBLEM, found, advice)
    return Finding(subject, Level.OK, path)


def _judge_kubelet(path: str) -> Finding:
    finding = _judge_call("kubelet", path, lambda: read_kubelet_claims(path))
    if finding.level is Level.OK and not os.path.exists(path):
        return replace(
            finding, level=Level.NOTE, found=f"{path} is not there: the kubelet has not prepared any claim yet"
        )
    return finding


def _judge_files(directory: str) -> Iterator[Finding]:
    """Yield the CDI files, of any driver, that a runtime refuses; one can keep the devices of others from pods."""
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIXES))
    except OSError:
        return  # which the directory's own finding says
    found = [finding for name in names for finding in check_spec_file(f"{directory}/{name}")]
    problems = [finding for finding in found if finding.level is not Level.OK]
    if not problems:
        yield Finding("CDI", Level.OK, f"files in {directory}: {len(names)}, all valid")
    for finding in problems:
        yield Finding("CDI", Level.PROBLEM, f"{finding.subject}: {finding.found}")


def _judge_sockets(settings: Settings, driver: str) -> Iterator[Finding]:
    try:
        paths = plan_socket_paths(
            driver,
            registry_directory=settings.registry_directory,
            plugin_directory=settings.plugin_directory(driver),
            pod_uid=settings.pod_uid,
        )
        if not any(map(os.path.lexists, (paths.service, paths.registration))):
            yield _judge_unserved(settings, driver)
            return
        for path in (paths.service, paths.registration):
            is_served = is_listened_at(path)
            advice = "" if is_served else "no agent serves the driver, or one of another pod does (podUid): see its log"
            level = Level.OK if is_served else Level.PROBLEM
            yield Finding("socket", level, path if is_served else f"nobody listens at {path}", advice)
        for path in find_stale_sockets(driver, paths):
            found = f"{path} is left of an agent that was killed"
            yield Finding("socket", Level.NOTE, found, "the agent removes it at its start")
    except (PydraError, OSError) as error:
        found = f"the sockets of {driver}: {error}"
        yield Finding("socket", Level.UNKNOWN, found, "run it as root, in the agent's pod")


def _judge_unserved(settings: Settings, driver: str) -> Finding:
    """Judge a driver that has records here, and no socket: it may have been uninstalled, too early or in order."""
    held = sum(len(list_stored(path)) for path in settings.claim_directories(driver))
    if not held:
        return Finding("socket", Level.NOTE, f"driver {driver} was served here before, and holds no claims")
    advice = "start its agent again until the claims' pods have ended: pydra checkpoint list names them"
    return Finding("socket", Level.PROBLEM, f"driver {driver} is not served, and holds claims: {held}", advice)


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
            return Finding("runtime", Level.UNKNOWN, found)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return Finding("runtime", Level.UNKNOWN, f"the configuration of {runtime} cannot be read: {error}")
    if not enabled:
        return Finding("runtime", Level.PROBLEM, f"{runtime} has CDI switched off ({file})", advice)
    if _real(host, settings.cdi_dir) not in {_real(host, one) for one in directories}:
        found = (
            f"{runtime} reads CDI files in {', '.join(directories)}, and the agent writes {settings.cdi_dir} ({file})"
        )
        return Finding("runtime", Level.PROBLEM, found, f"set cdiDir to one of them, or {advice}")
    return Finding("runtime", Level.OK, f"{runtime} reads {settings.cdi_dir} ({file})")


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
