"""Ends a command on SIGTERM before it has a handler of its own."""

from __future__ import annotations

import os
import signal


def exit_on_sigterm() -> None:
    """Exit with code 0 on SIGTERM, until the agent installs its own handler.

    In a container this is process 1, to which Linux delivers no signal without a handler: a pod that is deleted while
    it starts would run until it is killed, and leave its sockets behind. There is nothing to clean up yet, and an
    exception may be lost in an import or a callback, so the process exits at once. Backends end when their channel
    closes.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
