"""What a backend declares, read in a process of its own: its DeviceClasses and the names of its settings."""

from __future__ import annotations

import os
import subprocess
import sys

import anyio
import msgspec

from pydra.backends.discovery import extend_module_path, find_backend, is_target, locate_file
from pydra_dev.api.errors import JsonObject

_READ_DECLARATIONS = """
import json, sys
from pydra.backends.discovery import load_object
found = load_object(sys.argv[1])
settings = getattr(getattr(found, "SETTINGS_TYPE", None), "__struct_fields__", ())
json.dump({"classes": dict(getattr(found, "DEVICE_CLASSES", {})), "settings": settings}, sys.__stdout__)
"""


class Declarations(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend's module declares: DEVICE_CLASSES, and the names of its settings."""

    classes: dict[str, JsonObject] = {}
    settings: tuple[str, ...] = ()


async def read_declarations(backend: str) -> Declarations | None:
    """The declarations of a backend, read in a process of its own; None if it cannot be loaded, as the agent says."""
    target, directory = locate_file(backend)
    environ = extend_module_path(os.environ, [directory] if is_target(target) else [])
    command = [sys.executable, "-c", _READ_DECLARATIONS, find_backend(target).target]
    done = await anyio.run_process(command, env=environ, check=False, stderr=subprocess.DEVNULL)
    try:
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Declarations) if done.returncode == 0 else None
    except (msgspec.DecodeError, IndexError):  # it printed something else
        return None
