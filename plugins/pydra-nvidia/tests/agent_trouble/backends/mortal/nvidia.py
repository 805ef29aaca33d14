"""The NVIDIA backend, killed with its agent just before it does something that lasts: to the kernel, NVML, a file...

MORTAL names a directory. What is about to be done is added to its file `done`; when the text of its file `end` is in
it, both processes die, once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydra_nvidia import CONFIG_TYPES, DEVICE_CLASSES, DRIVER, SETTINGS_TYPE, STEP_TYPES, connect
from pydra_nvidia.nvml.pynvml_library import Nvml
from pydra_nvidia.sharing import apply_time_slice, mps_daemon
from pydra_nvidia.sharing.mps_directory import MpsDirectory
from pydra_nvidia.step_appliers import StepAppliers
from pydra_pci import Tree

__all__ = ["CONFIG_TYPES", "DEVICE_CLASSES", "DRIVER", "SETTINGS_TYPE", "STEP_TYPES", "connect"]

_lock = threading.Lock()
_place = Path(os.environ["MORTAL"])


def meet(what: str) -> None:
    """It is about to happen."""
    with _lock:
        with (_place / "done").open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")
        end = _place / "end"
        if end.exists() and end.read_text(encoding="utf-8") in what:
            end.unlink()
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str, tell: Callable[..., str | None]) -> None:
    """Die before calls of the function, where `tell` says what they do."""
    function = getattr(owner, name)

    def mortal(*arguments: Any, **options: Any) -> Any:
        if what := tell(*arguments):
            meet(what)
        return function(*arguments, **options)

    setattr(owner, name, mortal)


def _changes(_nvml: Nvml, name: str, *_: Any) -> str | None:
    return name if any(word in name for word in ("DeviceSet", "Create", "Destroy")) and "Event" not in name else None


before(Nvml, "call", _changes)
before(Tree, "write", lambda _tree, path, _text: f"write {os.path.basename(path)}")
before(StepAppliers, "undo", lambda _appliers, step, *_: f"undo {step}")
before(MpsDirectory, "write_record", lambda _place, _record: "record")
for room in (apply_time_slice, mps_daemon):
    before(room, "run_program", lambda command, *_: f"run {command}")
