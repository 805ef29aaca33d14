"""Finds installed backends through entry points, without importing them.

Also says where backends that are not installed can be found, and the prefix of each backend's environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points

import msgspec

from pydra.errors import SettingsError
from pydra.message_text import suggest

ENTRY_POINT_GROUP = "pydra.backends"
UNNAMED = "unnamed:"
"""Stands, as a module would, for the backends in the settings of a tool of the node where none is named."""


class BackendSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a backend comes from: `target` is `module:attribute` (`module:` for the module itself).

    `distribution` and `version` are empty for a target that was given directly.
    """

    name: str
    target: str
    distribution: str = ""
    version: str = ""

    @property
    def configured_name(self) -> str:
        """The name in the settings: the target if it is not installed."""
        return self.name if self.distribution else self.target

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version})" if self.distribution else self.name


def list_backends() -> tuple[BackendSource, ...]:
    """Return every installed backend, by name. A name that two distributions claim appears twice.

    Raises:
        SettingsError: the entry points of a distribution cannot be read, as while it is being installed.
    """
    try:
        return build_sources(entry_points(group=ENTRY_POINT_GROUP))
    except (OSError, ValueError, TypeError) as error:
        why = f"the entry points of the installed distributions cannot be read ({error}); install again what is damaged"
        raise SettingsError([why]) from error


def find_backend(name: str) -> BackendSource:
    """Return the backend of this name, or of `module:attribute`. Raises SettingsError."""
    return choose_backend(name, list_backends())


def refresh_source(source: BackendSource) -> BackendSource:
    """Return the backend as it is installed now; unchanged if it is not found whole, as during an upgrade."""
    if not source.distribution:
        return source
    try:
        found = find_backend(source.name)
    except SettingsError:
        return source
    return found if found.distribution else source


def build_sources(points: Iterable[EntryPoint]) -> tuple[BackendSource, ...]:
    """Convert entry points to sources, sorted; a distribution that is on the path twice counts once."""
    sources = set(map(_build_source, points))
    return tuple(sorted(sources, key=lambda one: (one.name, one.distribution, one.version, one.target)))


def _build_source(point: EntryPoint) -> BackendSource:
    distribution = version = ""
    if point.dist is not None:
        metadata = point.dist.metadata  # read from disk by each access; empty while it is being installed
        distribution, version = ((metadata.get_all(field) or [""])[0] for field in ("Name", "Version"))
    return BackendSource(name=point.name, target=point.value, distribution=distribution, version=version)


def choose_backend(name: str, installed: Iterable[BackendSource]) -> BackendSource:
    """Choose the source with this name among the installed ones. Raises SettingsError."""
    if ":" in name:
        return _direct(name)
    installed = tuple(installed)
    found = [source for source in installed if source.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        claimants = " and ".join(f"{one.distribution} {one.version} ({one.target})" for one in found)
        raise SettingsError([f"backend {name} is provided by {claimants}; uninstall all but one"])
    names = sorted({source.name for source in installed})
    listed = f"installed: {', '.join(names)}" if names else "none is installed"
    raise SettingsError(
        [
            f"backend {name} is not installed{suggest(name, names)} ({listed}); "
            "install the distribution that provides it where pydra is, in an image of your own, or by the chart's "
            "value packages.names; or name a module of your own by its file or with a colon, as in `./my_backend.py` "
            "or `my_backend:`"
        ]
    )


def _direct(target: str) -> BackendSource:
    module, _, attribute = target.partition(":")
    words = [*module.split("."), *(attribute.split(".") if attribute else ())]
    if not all(word.isidentifier() for word in words):
        raise SettingsError([f"backend {target} is neither the name of a backend nor module:attribute"])
    return BackendSource(name=module.rpartition(".")[2], target=target)


def variable_prefix(backend: str) -> str:
    """`PYDRA_SIM` for the backend `sim`, and for `pydra_sim:`, its module: the prefix of its variables."""
    module = backend.partition(":")[0].rpartition(".")[2]
    return "PYDRA_" + module.replace("-", "_").removeprefix("pydra_").upper()


def locate_file(backend: str) -> tuple[str, str]:
    """`path/to/my_fpga.py` as the target `my_fpga:` and the directory to import it from; all else unchanged, and "".

    In a package, that is the directory of the outermost package. Raises SettingsError.
    """
    if not backend.endswith(".py"):
        if os.sep in backend:
            raise SettingsError([f"--backend: {backend} is not a Python file; name one, as in ./my_backend.py"])
        return backend, ""
    path = os.path.abspath(backend)
    if not os.path.isfile(path):
        raise SettingsError([f"--backend: there is no file {backend}"])
    directory, file = os.path.split(path.removesuffix("/__init__.py").removesuffix(".py"))
    words = [file]
    while os.path.isfile(f"{directory}/__init__.py"):
        directory, package = os.path.split(directory)
        words.insert(0, package)
    if wrong := [word for word in words if not word.isidentifier()]:
        raise SettingsError([f"--backend: {backend} cannot be imported: {wrong[0]!r} is not a Python name; rename it"])
    return f"{'.'.join(words)}:", directory


def is_target(backend: str) -> bool:
    """Return whether `name` is `module:attribute` instead of the name of an installed backend."""
    return ":" in backend


def extend_module_path(environ: Mapping[str, str], places: Iterable[str]) -> dict[str, str]:
    """Return the environment with these directories appended to PYTHONPATH; '' is the working directory."""
    path = [*filter(None, environ.get("PYTHONPATH", "").split(os.pathsep)), *(place or os.getcwd() for place in places)]
    return {**environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}
