"""The command of a backend's process: its arguments, environment and cgroup, and so its rights."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pydra.backends.discovery import BackendSource
from pydra.backends.resource_limits import CgroupUnavailable, create_cgroup
from pydra.errors import SettingsError
from pydra.settings import ProcessRights, SeccompProfile

CHILD = "pydra.backends.child.main"
"""The module that a backend's process runs."""

_log = logging.getLogger(__name__)

_GIVE_UP_RIGHTS = Path(__file__).parent / "child" / "give_up_rights.py"
_AGENTS_OWN = ("KUBECONFIG", "PYDRA_KUBECONFIG")
_AGENTS_OWN_PREFIXES = ("KUBERNETES_SERVICE_", "KUBERNETES_PORT", "OTEL_")


def build_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a backend's process: all but those that lead to the agent's credentials.

    Left out are where the API server and a kubeconfig are, and tracing, whose headers may have a token: a backend talks
    to neither.
    """
    return {
        name: text
        for name, text in environ.items()
        if name not in _AGENTS_OWN and not name.startswith(_AGENTS_OWN_PREFIXES)
    }


class ProcessCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What starts a backend's process: program and arguments, and the cgroup that it moves to, if it has one."""

    arguments: tuple[str, ...]
    cgroup: Path | None = None


def prepare_command(source: BackendSource, fd: int, *, rights: ProcessRights, program: str) -> ProcessCommand:
    """Return what starts a process of this backend with these rights; makes its cgroup.

    `-u`: its last output is seen even if it crashes. `-P`: its module path has PYTHONPATH, but not the working
    directory. What gives up rights reads neither PYTHONPATH nor site-packages (`-I`, `-S`), whose code would run with
    the agent's rights.

    Raises:
        SettingsError: the rights are not possible here.
    """
    python = (sys.executable, "-X", "faulthandler", "-u", "-P")
    arguments = (*python, "-m", program, str(fd), str(os.getpid()), source.target)
    if rights == ProcessRights():
        return ProcessCommand(arguments=arguments)
    cgroup = _find_cgroup(source.name, rights)
    given = {
        "cgroup": None if cgroup is None else str(cgroup),
        "user": rights.run_as_user,
        "group": rights.run_as_user if rights.run_as_group is None else rights.run_as_group,
        "groups": rights.supplemental_groups,
        "filter": None if rights.seccomp_profile is None else _compile(rights.seccomp_profile),
    }
    text = msgspec.json.encode(given).decode()
    return ProcessCommand(arguments=(sys.executable, "-I", "-S", str(_GIVE_UP_RIGHTS), text, *arguments), cgroup=cgroup)


def _compile(named: SeccompProfile) -> bytes:
    from pydra.backends.seccomp import compile_profile, read_profile  # noqa: PLC0415 - ctypes takes 5 ms of a start

    return compile_profile(read_profile(named))


def _find_cgroup(backend: str, rights: ProcessRights) -> Path | None:
    """Make a cgroup for the process if it has limits; None if there is none that it needs."""
    if (rights.memory_limit, rights.cpu_limit, rights.pids_limit) == (None, None, None):
        return None
    try:
        return create_cgroup(backend, rights)
    except CgroupUnavailable as error:
        if rights.cpu_limit is not None or rights.pids_limit is not None:
            raise SettingsError([f"cpuLimit and pidsLimit need a cgroup, and none can be made: {error}"]) from error
        _log.info("backend %s: memoryLimit is checked every 2 s, not enforced by the kernel: %s", backend, error)
        return None
