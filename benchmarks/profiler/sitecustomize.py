"""Counts Python calls inside the agent and its backend's process, which load this file through PYTHONPATH.

SIGUSR2 starts to count and makes an empty file `$PATH_CALLS.PID`; the next one stops and writes the file: a line for
each function that was entered, with the number of calls, its file and its name. In the agent the main thread counts,
in the backend's process all threads do, since a backend may do its work in them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import CodeType, FrameType
from typing import Any

_calls: dict[CodeType, int] = {}
_is_counting = False


def _count(frame: FrameType, event: str, _: Any) -> None:
    if event == "call" and _is_counting:
        code = frame.f_code
        _calls[code] = _calls.get(code, 0) + 1


def _toggle(*_: object) -> None:
    global _is_counting  # noqa: PLW0603 - a signal handler has nowhere else to keep it
    path = f"{os.environ['PATH_CALLS']}.{os.getpid()}"
    if not _is_counting:
        _calls.clear()
        with open(path, "w", encoding="utf-8"):
            pass
        _is_counting = True
        sys.setprofile(_count)
        return
    sys.setprofile(None)
    _is_counting = False
    lines = [f"{n}\t{code.co_filename}\t{code.co_qualname}\n" for code, n in _calls.items() if code is not _TOGGLE]
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.writelines(lines)
    os.replace(f"{path}.new", path)


_TOGGLE = _toggle.__code__

if "PATH_CALLS" in os.environ:
    if "pydra.backends.child.main" in sys.orig_argv:
        threading.setprofile(_count)
    signal.signal(signal.SIGUSR2, _toggle)
