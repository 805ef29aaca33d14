"""Judges the directories and sockets of this node, and the files in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec.structs import replace

from pydra import atomic_files
from pydra.agent.driver import read_boot_id
from pydra.checkpoint.record_files import list_stored
from pydra.claims.gc import read_kubelet_claims
from pydra.diagnosis.cdi_validation import SUFFIXES, check_spec_file
from pydra.diagnosis.findings import Finding, Level
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
            return Finding(subject=subject, level=Level.PROBLEM, found=f"{path} is not there", advice=absent)
        return Finding(subject=subject, level=Level.NOTE, found=f"{path} is not there yet; the agent makes it")
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
        if not any(map(os.path.lexists, (paths.service, paths.registration))):
            yield _judge_unserved(settings, driver)
            return
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


def _judge_unserved(settings: Settings, driver: str) -> Finding:
    """Judge a driver that has records here, and no socket: it may have been uninstalled, too early or in order."""
    held = sum(len(list_stored(path)) for path in settings.claim_directories(driver))
    if not held:
        found = f"driver {driver} was served here before, and holds no claims"
        return Finding(subject="socket", level=Level.NOTE, found=found)
    advice = "start its agent again until the claims' pods have ended: pydra checkpoint list names them"
    found = f"driver {driver} is not served, and holds claims: {held}"
    return Finding(subject="socket", level=Level.PROBLEM, found=found, advice=advice)
