"""The AMD backend, killed at a moment in which it changes something that lasts.

MORTAL names a directory. Its file `end` has the moment and who dies there, once: `agent before CPX` is the agent with
its backend, `backend within SPX` the backend alone. `seconds` has how long the call had when the driver was loaded.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from pydra import time_left
from pydra_amd import CONFIG_TYPES, DEVICE_CLASSES, DRIVER, SETTINGS_TYPE, STEP_TYPES, connect
from pydra_amd.backend import AmdBackend
from pydra_amd.simulation import amdgpu_driver
from pydra_pci import Tree

__all__ = ["CONFIG_TYPES", "DEVICE_CLASSES", "DRIVER", "SETTINGS_TYPE", "STEP_TYPES", "connect"]

_lock = threading.Lock()
_end = Path(os.environ["MORTAL"], "end")


def meet(moment: str) -> None:
    """It has come."""
    with _lock:
        dies, _, when = (_end.read_text() if _end.exists() else "").partition(" ")
        if when == moment:
            _end.unlink()
            if dies == "agent":
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


_write, _write_topology, _undo = Tree.write, amdgpu_driver.write_topology, AmdBackend.undo
_unload, _load = amdgpu_driver.SimulatedModule.unload, amdgpu_driver.SimulatedModule.load


def write(tree: Tree, path: str, text: str) -> None:
    meet(f"before {text}")
    _write(tree, path, text)
    meet(f"after {text}")


def write_topology(root: str, kind: Any, modes: Any) -> None:
    """The file has the new mode, KFD has the old partitions."""
    changed = set(modes) - set(amdgpu_driver.read_modes(root)) or {"spx"}
    meet(f"within {changed.pop().upper()}")
    _write_topology(root, kind, modes)


async def undo(backend: AmdBackend, step: Any, result: Any, claim: Any) -> None:
    """The hardware is as before, and the agent does not know it yet."""
    await _undo(backend, step, result, claim)
    meet(f"undone {step}")


async def unload(module: amdgpu_driver.SimulatedModule) -> None:
    await _unload(module)
    meet("unloaded")


async def load(module: amdgpu_driver.SimulatedModule) -> None:
    _end.with_name("seconds").write_text(str(time_left()))
    await _load(module)
    meet("loaded")


amdgpu_driver.SimulatedModule.unload = unload  # type: ignore[method-assign]
amdgpu_driver.SimulatedModule.load = load  # type: ignore[method-assign]
Tree.write = write  # type: ignore[method-assign]
amdgpu_driver.write_topology = write_topology
AmdBackend.undo = undo  # type: ignore[method-assign]
