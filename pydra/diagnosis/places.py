"""Judges the directories and sockets of this node, and whether the container runtime reads its CDI files."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Collection, Iterator, Sequence
from glob import glob
from typing import Any

from pydra import atomic_files
from pydra.agent.driver import read_boot_id
from pydra.claims.gc import read_kubelet_claims
from pydra.diagnosis.cdi_files import SUFFIXES, check_spec_file
from pydra.diagnosis.findings import Finding, Level
from pydra.errors import PydraError
from pydra.kubelet.sockets import find_stale_sockets, is_listened_at, plan_socket_paths
from pydra.settings import Settings

_LEAST_FREE = 16 * 1024 * 1024
"""Bytes: thousands of records. Less is a disk that is about to be full."""
_CONTAINERD = ("/etc/containerd/config.toml", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml")
_CRIO = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d")
_CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""What both runtimes read unless they are told otherwise."""
_CRI = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
"""containerd's plugin with the settings of CDI: in version 2 of its file, and in version 3."""


def judge_places(settings: Settings, drivers: Collection[str]) -> Iterator[Finding]:
    """Yield how the directories are, and the sockets of these drivers. Blocks."""
    root = "run the agent as root, and give its container the host's directory writable"
    kubelet = f"does the kubelet run, and is its --root-dir {settings.kubelet_root}? Set kubeletRoot if not"
    plugins = os.path.dirname(settings.plugin_directory("-"))
    for subject, path, advice in (
        ("registry", settings.registry_directory, kubelet),
        ("plugins", plugins, kubelet),
        ("records", settings.records_dir, ""),
        ("CDI", settings.cdi_dir, ""),
    ):
        yield _judge_directory(subject, path, absent=advice, denied=root)
    yield _judge_call("boot id", settings.boot_id_file, lambda: read_boot_id(settings.boot_id_file))
    yield _judge_call("kubelet", settings.kubelet_claims, lambda: read_kubelet_claims(settings.kubelet_claims))
    yield from _judge_files(settings.cdi_dir)
    for driver in sorted(drivers):
        yield from _judge_sockets(settings, driver)


def _judge_directory(subject: str, path: str, *, absent: str, denied: str) -> Finding:
    """Judge a directory that the agent writes to; without `absent` it makes the directory itself."""
    if not os.path.isdir(path):
        if absent:
            return Finding(subject=subject, level=Level.PROBLEM, found=f"{path} is not there", advice=absent)
        return Finding(subject=subject, level=Level.OK, found=f"{path} is not there yet; the agent makes it")
    if not os.access(path, os.W_OK | os.X_OK):
        return Finding(subject=subject, level=Level.PROBLEM, found=f"{path}: this user may not write", advice=denied)
    status = os.statvfs(path)
    if status.f_flag & os.ST_RDONLY:
        found = f"{path} is on a file system that is mounted read-only"
        return Finding(subject=subject, level=Level.PROBLEM, found=found, advice=denied)
    if status.f_bavail * status.f_frsize < _LEAST_FREE or (status.f_files and not status.f_favail):
        found = f"{path}: the disk is full"
        return Finding(subject=subject, level=Level.PROBLEM, found=found, advice="free space, or inodes, on it")
    return Finding(subject=subject, level=Level.OK, found=path)


def _judge_call(subject: str, path: str, read: Callable[[], object]) -> Finding:
    try:
        read()
    except PydraError as error:
        return Finding(subject=subject, level=Level.PROBLEM, found=str(error))
    except OSError as error:
        found = atomic_files.explain(error, f"reading {path}")
        advice = "garbage collection needs it; hostRoot is where the host's / is mounted"
        return Finding(subject=subject, level=Level.PROBLEM, found=found, advice=advice)
    return Finding(subject=subject, level=Level.OK, found=path)


def _judge_files(directory: str) -> Iterator[Finding]:
    """Yield the CDI files, of any driver, that a runtime refuses; one can keep the devices of others from pods."""
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIXES))
    except OSError:
        return  # which the directory's own finding says
    found = [finding for name in names for finding in check_spec_file(f"{directory}/{name}")]
    problems = [finding for finding in found if finding.level is not Level.OK]
    if not problems:
        yield Finding(subject="CDI", level=Level.OK, found=f"files in {directory}: {len(names)}, all valid")
    for finding in problems:
        yield Finding(subject="CDI", level=Level.PROBLEM, found=f"{finding.subject}: {finding.found}")


def _judge_sockets(settings: Settings, driver: str) -> Iterator[Finding]:
    try:
        paths = plan_socket_paths(
            driver,
            registry_directory=settings.registry_directory,
            plugin_directory=settings.plugin_directory(driver),
            pod_uid=settings.pod_uid,
        )
        for path in (paths.service, paths.registration):
            is_served = is_listened_at(path)
            advice = "" if is_served else "no agent serves the driver, or one of another pod does (podUid): see its log"
            level = Level.OK if is_served else Level.PROBLEM
            found = path if is_served else f"nobody listens at {path}"
            yield Finding(subject="socket", level=level, found=found, advice=advice)
        for path in find_stale_sockets(driver, paths):
            found = f"{path} is left of an agent that was killed"
            yield Finding(subject="socket", level=Level.NOTE, found=found, advice="the agent removes it at its start")
    except (PydraError, OSError) as error:
        found = f"the sockets of {driver}: {error}"
        yield Finding(subject="socket", level=Level.UNKNOWN, found=found, advice="run it as root, in the agent's pod")


# The container runtime


def judge_runtime(settings: Settings, runtime: str) -> Finding:
    """Judge whether the runtime reads the directory that the agent writes; `runtime` is as the Node has it. Blocks.

    Source: the configuration of containerd 1.7 to 2.2 and CRI-O 1.34.
    """
    name, _, version = runtime.partition("://")
    host = settings.host_root.rstrip("/")
    if name == "containerd":
        read, files, advice = _read_containerd, _CONTAINERD, "set cdi_spec_dirs and, for 1.7, enable_cdi in its file"
    elif name == "cri-o":
        read, files, advice = _read_crio, _CRIO, "set cdi_spec_dirs in a file of /etc/crio/crio.conf.d"
    else:
        found = f"it is not known where {runtime or 'the runtime'} reads CDI files"
        return Finding(subject="runtime", level=Level.UNKNOWN, found=found)
    try:
        enabled, directories = read([host + file for file in files], version)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        found = f"the configuration of {runtime} cannot be read: {error}"
        return Finding(subject="runtime", level=Level.UNKNOWN, found=found)
    if not enabled:
        found = f"{runtime} has CDI switched off"
        return Finding(subject="runtime", level=Level.PROBLEM, found=found, advice=advice)
    if _real(host, settings.cdi_dir) not in {_real(host, one) for one in directories}:
        found = f"{runtime} reads CDI files in {', '.join(directories)}, and the agent writes {settings.cdi_dir}"
        return Finding(
            subject="runtime", level=Level.PROBLEM, found=found, advice=f"set cdiDir to one of them, or {advice}"
        )
    return Finding(subject="runtime", level=Level.OK, found=f"{runtime} reads {settings.cdi_dir}")


def _read_containerd(files: Sequence[str], version: str) -> tuple[bool, Sequence[str]]:
    section: dict[str, Any] = {}
    for file in filter(os.path.exists, files):
        host = file.removesuffix(next(name for name in _CONTAINERD if file.endswith(name)))
        document = _read_toml(file)
        imported = [part for pattern in document.get("imports") or () for part in sorted(glob(host + pattern))]
        for one in (document, *map(_read_toml, imported)):
            plugins = one.get("plugins") or {}
            for name in _CRI:
                section.update(plugins.get(name) or {})
        break
    enabled = section.get("enable_cdi", not version.startswith("1."))
    return enabled, section.get("cdi_spec_dirs") or _CDI_DIRECTORIES


def _read_crio(files: Sequence[str], version: str) -> tuple[bool, Sequence[str]]:
    del version  # every release that pydra serves reads CDI
    found: Sequence[str] = _CDI_DIRECTORIES
    for file in files:
        parts = [f"{file}/{name}" for name in sorted(os.listdir(file))] if os.path.isdir(file) else [file]
        for part in filter(os.path.isfile, parts):
            found = (_read_toml(part).get("crio") or {}).get("runtime", {}).get("cdi_spec_dirs") or found
    return True, found


def _read_toml(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        return tomllib.load(file)


def _real(host: str, path: str) -> str:
    """Resolve the links of a path of the host, such as /var/run, as far as they are visible."""
    here = os.path.realpath(f"{host}/var/run")
    resolved = "/run" if here in (f"{host}/run", "/run") else "/var/run"
    return os.path.normpath(f"{resolved}{path.removeprefix('/var/run')}" if path.startswith("/var/run/") else path)
