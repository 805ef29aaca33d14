"""Writes a new plugin, with all that it needs to become a driver; `pydra new`.

`template` is examples/minimal of the repository, as it is: names are replaced in it, and nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from pydra.backends.discovery import list_backends
from pydra.errors import SettingsError

TEMPLATE = Path(__file__).parent / "template"
_BACKEND = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")
"""The chart takes names of at most 20 bytes."""
_WORD = re.compile("my_fpga|fpga|FPGA")
_SKIPPED = ("__pycache__", ".")
"""Beginnings of what tools leave in the template's directory."""


def write_plugin(name: str, directory: str = "") -> tuple[Path, ...]:
    """Write the plugin for the backend `name` into `directory` (default: pydra-NAME); return the files, sorted.

    Raises:
        SettingsError: the name cannot be that of a backend or is taken, or the directory is not empty.
    """
    if not _BACKEND.fullmatch(name):
        rule = "must be at most 20 lower-case letters, digits and '-', beginning with a letter: as in npu, or acme-npu"
        raise SettingsError([f"{name!r} is not a name for a backend; it {rule}"])
    taken = [f"{one.distribution} provides it" for one in list_backends() if one.name == name]
    module = f"pydra_{name.replace('-', '_')}"
    if not taken and find_spec(module) is not None:
        taken = [f"the module {module} is installed"]
    if taken:
        raise SettingsError([f"the name {name} is taken: {taken[0]}; choose another"])
    target = Path(directory or f"pydra-{name}")
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise SettingsError([f"{target} is there already; name another directory, or one that is empty"])
        return tuple(_write(source, target, name, module) for source in sorted(_list_template()))
    except OSError as error:
        raise SettingsError([f"{error.filename or target} cannot be written: {error.strerror}"]) from error


def _list_template() -> Iterator[Path]:
    for folder, folders, files in os.walk(TEMPLATE):
        folders[:] = [one for one in folders if not one.startswith(_SKIPPED)]
        yield from (Path(folder, one) for one in files if not one.startswith(_SKIPPED))


def _write(source: Path, target: Path, name: str, module: str) -> Path:
    place = target / _replace(str(source.relative_to(TEMPLATE)), name, module)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(_replace(source.read_text(), name, module))
    return place


def _replace(text: str, name: str, module: str) -> str:
    """Replace the module's name, and the backend's as a variable, in an identifier of Python, or as it is."""
    identifier = name.replace("-", "_")

    def choose(found: re.Match[str]) -> str:
        before, after = text[: found.start()][-1:], text[found.end() :][:1]
        if found[0] == "my_fpga":
            return module
        if found[0] == "FPGA":
            return identifier.upper() if after == '"' else name.upper()
        return identifier if "_" in (before, after) else name

    return _WORD.sub(choose, text)
