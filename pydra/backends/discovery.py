"""Finds installed backends through entry points, and imports the object that one names.

Also says where backends that are not installed can be found, and the prefix of each backend's environment variables.
The contract forbids side effects at import, so a backend's types can be read without its hardware.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from pydra.backends.error_codec import INTERNAL_PATHS, Fault, FaultKind, build_fault
from pydra.errors import SettingsError
from pydra.message_text import suggest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
    from importlib.metadata import entry_points  # noqa: PLC0415 - a backend's process loads one, and lists none

    try:
        return build_sources(entry_points(group=ENTRY_POINT_GROUP))
    except (OSError, ValueError, TypeError) as error:
        why = f"the entry points of the installed distributions cannot be read ({error}); install again what is damaged"
        raise SettingsError([why]) from error


def find_backend(name: str) -> BackendSource:
    """Return the backend of this name, or of `module:attribute`. Raises SettingsError."""
    installed = list_backends()
    if not is_target(name) and name not in {one.name for one in installed}:
        _refuse_misspelt_group(name)
    return choose_backend(name, installed)


def _refuse_misspelt_group(name: str) -> None:
    """Raise SettingsError if a distribution has the entry point in a group that is nearly ours."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - as above

    for point in entry_points(name=name):
        if suggest(point.group, (ENTRY_POINT_GROUP,)):
            by = f" by {point.dist.name}" if point.dist is not None else ""
            raise SettingsError(
                [f"backend {name} is installed{by} in the group {point.group}; the group must be {ENTRY_POINT_GROUP}"]
            )


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


_NAMES_IT = "what names it, such as the entry point in the group pydra.backends"


class LoadError(Exception):
    """There is no such module, or its own code fails; `fault` says which, with a traceback if there is one."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__("; ".join(fault.problems))


def load_backend(name: str, source: BackendSource) -> Any:
    """Return the backend, `module:attribute` also from where the caller stands. Raises LoadError."""
    if is_target(name) and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return load_object(source.target)


def load_object(target: str) -> Any:
    """Return the object that `module:attribute` names; the module itself for `module:`. Raises LoadError."""
    module, _, attribute = target.partition(":")
    try:
        loaded: Any = importlib.import_module(module)
        for name in filter(None, attribute.split(".")):
            if not hasattr(loaded, name):
                raise LoadError(_build_absence(target, module, name, dir(loaded)))
            loaded = getattr(loaded, name)
    except LoadError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):  # another one, that it needs
            raise _failed(target, error) from error
        raise LoadError(_build_absence_of_module(error.name)) from error
    except BaseException as error:  # the call boundary, for the module's own code
        raise _failed(target, error) from error
    return loaded


def _build_absence_of_module(name: str) -> Fault:
    meant = "" if "." in name else suggest(name, {one.name for one in pkgutil.iter_modules()} - sys.stdlib_module_names)
    what = f"; correct {_NAMES_IT}" if meant else "; is it installed, or in PYTHONPATH?"
    problem = f"there is no module {name} on the module path{meant}{what}"
    return Fault(kind=FaultKind.CONTRACT, problems=(problem,))


def _build_absence(target: str, module: str, name: str, known: Iterable[str]) -> Fault:
    problem = f"{target} cannot be loaded: {module} has no {name}{suggest(name, known)}; correct {_NAMES_IT}"
    return Fault(kind=FaultKind.CONTRACT, problems=(problem,))


def _failed(target: str, error: BaseException) -> LoadError:
    fault = build_fault(error)
    place = _place(error)
    problem = f"{target.removesuffix(':')} cannot be loaded: {fault.message}" + (f" ({place})" if place else "")
    if isinstance(error, ModuleNotFoundError) and error.name:
        problem += f"; it needs the module {error.name}: install what provides it beside the backend"
    return LoadError(Fault(kind=FaultKind.CONTRACT, problems=(problem,), traceback=fault.traceback))


def _place(error: BaseException) -> str:
    """Return the file and line, in the backend or its imports, where the import failed; empty for a syntax error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not one.filename.startswith(INTERNAL_PATHS)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""
