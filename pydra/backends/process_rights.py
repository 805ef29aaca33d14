"""Determines which of the agent's rights a backend's process gets."""

from __future__ import annotations

import sys
from collections.abc import Mapping

CHILD = "pydra.backends.child.main"
"""The module that a backend's process runs."""

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


def build_command(target: str, fd: int, *, parent: int, program: str = CHILD) -> list[str]:
    """Return the command line of a backend's process.

    `-u`: its last output is seen even if it crashes. `-P`: its module path has PYTHONPATH, but not the working
    directory.
    """
    return [
        *(sys.executable, "-X", "faulthandler", "-u", "-P"),
        *("-m", program, str(fd), str(parent), target),
    ]
