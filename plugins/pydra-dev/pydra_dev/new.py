"""Writes a new plugin, with all that it needs to become a driver; `pydra new`.

`template` is examples/minimal of the repository, as it is: names are replaced in it, and nothing else. With features,
files of examples/features take the places of those of the same name. In them, lines between `# with: FEATURE` and
`# without: FEATURE` or `# end`, and lines that end so, are kept if the feature is chosen.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path

from pydra.backends.discovery import list_backends
from pydra.errors import SettingsError
from pydra.message_text import suggest

TEMPLATE = Path(__file__).parent / "template"
WITH_FEATURES = Path(__file__).parent / "features"
FEATURES = ("partitions", "config", "health")
OWN = ("amd", "cpu", "dev", "net", "nri", "nvidia", "nvidia-compute-domain", "pci", "sim", "tpu")
"""Names of pydra's own distributions and backends, installed or not."""
_BACKEND = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")
"""The chart takes names of at most 20 bytes."""
_WORD = re.compile("my_fpga|fpga|FPGA")
_MARK = re.compile(r" *# (?:(?P<without>with(?:out)?): (?P<feature>\w+)|end)")
_SKIPPED = ("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache")
"""What tools leave in the template's directory."""


def write_plugin(name: str, directory: str = "", features: Collection[str] = ()) -> tuple[Path, tuple[Path, ...]]:
    """Write the plugin for the backend `name` into `directory` (default: pydra-NAME); return it and its files, sorted.

    Raises:
        SettingsError: the name cannot be that of a backend or is taken, a feature is unknown, or the directory is not
            empty.
    """
    if not _BACKEND.fullmatch(name):
        rule = "must be at most 20 lower-case letters, digits and '-', beginning with a letter: as in npu, or acme-npu"
        raise SettingsError([f"{name!r} is not a name for a backend; it {rule}"])
    if unknown := [one for one in features if one not in FEATURES]:
        hint = suggest(unknown[0], FEATURES)
        raise SettingsError([f"--with: {unknown[0]!r} must be one of {', '.join(FEATURES)}{hint}"])
    taken = [f"{one.distribution} provides it" for one in list_backends() if one.name == name]
    if name in OWN and not taken:
        taken = ["pydra itself has a package of this name"]
    module = f"pydra_{name.replace('-', '_')}"
    if not taken and find_spec(module) is not None:
        taken = [f"the module {module} is installed"]
    if taken:
        raise SettingsError([f"the name {name} is taken: {taken[0]}; choose another"])
    target = Path(directory or f"pydra-{name}")
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise SettingsError([f"{target} is there already; name another directory, or one that is empty"])
        texts = {_replace(place, name, module): text for place, text in _read_template(features).items()}
        return target, tuple(_write(target / place, _replace(texts[place], name, module)) for place in sorted(texts))
    except OSError as error:
        raise SettingsError([f"{error.filename or target} cannot be written: {error.strerror}"]) from error


def _read_template(features: Collection[str]) -> dict[str, str]:
    """Return the template's texts by their places."""
    texts = dict(_read_files(TEMPLATE))
    if features:
        texts |= {place: choose_lines(text, features) for place, text in _read_files(WITH_FEATURES)}
    return texts


def _read_files(root: Path) -> Iterator[tuple[str, str]]:
    for folder, folders, files in os.walk(root):
        folders[:] = [one for one in folders if one not in _SKIPPED]
        yield from ((str(Path(folder, one).relative_to(root)), Path(folder, one).read_text()) for one in files)


def choose_lines(text: str, features: Collection[str]) -> str:
    """Return the text with the lines of these features, and without the marks."""
    lines = []
    kept = True
    for line in text.splitlines(keepends=True):
        mark = _MARK.search(line.rstrip("\n"))
        chosen = mark is None or mark["feature"] is None or (mark["feature"] in features) == (mark["without"] == "with")
        if mark is None or mark.end() < len(line.rstrip("\n")):
            lines.append(line if kept else "")
        elif line[: mark.start()].strip():  # the line alone
            lines.append(line[: mark.start()] + "\n" if kept and chosen else "")
        else:
            kept = chosen
    return "".join(lines)


def _write(place: Path, text: str) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


def _replace(text: str, name: str, module: str) -> str:
    """Replace the module's name, and the backend's as a variable, in an identifier of Python, or as it is."""
    identifier = name.replace("-", "_")

    def choose(found: re.Match[str]) -> str:
        before, after = text[: found.start()][-1:], text[found.end() :][:1]
        if found[0] == "my_fpga":
            return module
        if found[0] == "FPGA":
            return identifier.upper() if after in ('"', "_") else name.upper()
        return identifier if "_" in (before, after) else name

    return _WORD.sub(choose, text)
