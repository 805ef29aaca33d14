"""The directories that IMEX daemons find at /imexd, one for each ComputeDomain, as this node sees them.

    <state>/domains/<UID of the ComputeDomain>/imexd.cfg.tmpl   ours; the daemon's pod fills in what only it knows
                                              /imexd.cfg        the pod's: what nvidia-imex was started with
                                              /nodes.cfg        the pod's: the other nodes
                                              /domain.json      the pod's: name and namespace of the ComputeDomain

Such a directory lives as long as the claim of the daemon. A node holds one such claim, so nobody else uses it.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, cmd/compute-domain-daemon; IMEX guide, "IMEX Service Config Options".
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection
from contextlib import suppress

from pydra import ClaimError, LeftBehind, TerminalError, UndoLater
from pydra_nvidia.atomic_files import replace_file
from pydra_nvidia.container_written_files import read_clients_file, remove_clients_directory

_log = logging.getLogger(__name__)

TEMPLATE = """\
# Go's text/template, filled in by the pod of the IMEX daemon. What is not here has the value that nvidia-imex gives it.
DAEMONIZE=0
LOG_FILE_NAME=
LOG_APPEND_TO_LOG=0
SERVER_PORT=50000
IMEX_NODE_CONFIG_FILE={{ .IMEXDaemonNodesConfigPath }}
IMEX_WAIT_FOR_QUORUM=RECOVERY
IMEX_CMD_ENABLED=1
IMEX_CMD_BIND_INTERFACE_IP={{ .IMEXCmdBindInterfaceIP }}
IMEX_CMD_PORT=50005
"""
"""An empty name of the log means stderr. Readiness is asked for at the command port of the pod."""

DOMAIN_FILE = "domain.json"
"""Name and namespace of the ComputeDomain, which the daemon of pydra knows and its claims do not say."""


_NAME_LIMIT = 4096
"""Bytes that are read of it."""


class DomainNotReady(ClaimError):
    """The IMEX daemon that a channel needs does not run yet, or has not joined the others."""

    reason = "ComputeDomainNotReady"


class OtherNamespace(TerminalError):
    """The claim names a ComputeDomain of another namespace."""

    reason = "ComputeDomainOfOtherNamespace"


class ImexDirectories:
    """Those below `state`, a path that is the same on the host."""

    def __init__(self, state: str) -> None:
        self._root = os.path.join(state, "domains")

    def path(self, domain: str) -> str:
        """Where the directory of a ComputeDomain is, or would be."""
        return os.path.join(self._root, domain)

    def make(self, domain: str) -> str:
        """The directory, with the template. Raises LeftBehind."""
        path = self.path(domain)
        template = os.path.join(path, "imexd.cfg.tmpl")
        try:
            os.makedirs(path, mode=0o755, exist_ok=True)
            replace_file(template, TEMPLATE.encode())
        except OSError as error:
            raise LeftBehind(f"the directory of the IMEX daemon, {path}, cannot be made: {error.strerror}") from error
        return path

    def adopt(self, domain: str, place: str) -> None:
        """The directory is at `place`, where NVIDIA's plugin has made it for a daemon that still runs."""
        try:
            os.makedirs(self._root, mode=0o755, exist_ok=True)
            os.symlink(place, self.path(domain))
        except FileExistsError:
            return
        except OSError as error:
            raise ClaimError(f"{self.path(domain)} cannot be made: {error.strerror}") from error

    def remove(self, domain: str) -> None:
        """It goes; nothing to remove is success. Raises UndoLater."""
        path = self.path(domain)
        try:
            with suppress(FileNotFoundError):
                remove_clients_directory(os.path.realpath(path))
            if os.path.islink(path):
                os.unlink(path)
        except OSError as error:
            raise UndoLater(f"{path} cannot be removed: {error.strerror}") from error

    def remove_all_but(self, domains: Collection[str]) -> None:
        """Those of other ComputeDomains go; what cannot be removed is logged, and stays until the next start."""
        for domain in self._list():
            if domain not in domains:
                try:
                    self.remove(domain)
                except UndoLater as error:
                    _log.warning("%s", error)

    def check_configured(self, domain: str) -> str:
        """The configuration that the daemon of a ComputeDomain was started with. Raises DomainNotReady."""
        path = os.path.join(self.path(domain), "imexd.cfg")
        if os.path.exists(path):
            return path
        others = [one for one in self._list() if one != domain]
        if os.path.exists(self.path(domain)):
            why = "its pod is starting"
        elif others:
            whose = ", ".join(map(self._describe, others))
            why = (
                f"the node is one of ComputeDomain {whose}, and can be one of only one at a time; "
                "it is free when the pods that use that domain have ended"
            )
        else:
            why = (
                "its pod comes when the node has the label "
                f"resource.nvidia.com/computeDomain={domain}, and the IMEX daemon's image is pulled"
            )
        raise DomainNotReady(f"ComputeDomain {domain} has no IMEX daemon on this node yet: {why}")

    def check_namespace(self, domain: str, namespace: str) -> None:
        """A claim of this namespace may use the ComputeDomain. Raises OtherNamespace.

        The daemon of pydra tells the domain's namespace; that of NVIDIA does not, and then nothing is known.
        """
        name, home = self._read_name(domain)
        if home and home != namespace:
            raise OtherNamespace(
                f"ComputeDomain {home}/{name} is for claims of its own namespace, and this claim is of {namespace}; "
                "create a ComputeDomain there"
            )

    def _describe(self, domain: str) -> str:
        name, home = self._read_name(domain)
        return f"{home}/{name} ({domain})" if home else domain

    def _read_name(self, domain: str) -> tuple[str, str]:
        """Name and namespace, as the daemon wrote them; empty if it has not."""
        try:
            found = json.loads(read_clients_file(os.path.join(self.path(domain), DOMAIN_FILE), _NAME_LIMIT))
            return str(found["name"]), str(found["namespace"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return "", ""

    def _list(self) -> list[str]:
        try:
            return sorted(os.listdir(self._root))
        except FileNotFoundError:
            return []
        except OSError as error:
            _log.warning("%s cannot be read: %s", self._root, error.strerror)
            return []
