"""What `pydra dev` applies: the sample for a backend, or manifests from files; and from which files a backend comes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
import msgspec
import yaml

from pydra.backends.discovery import extend_module_path, find_backend, is_target, locate_file
from pydra.errors import SettingsError, suggest
from pydra_dev.api.errors import JsonObject, StatusError
from pydra_dev.api.kinds import DEVICE_CLASSES, KINDS, Kind
from pydra_dev.apiserver.registry_strategy import find_unknown_fields
from pydra_dev.apiserver.verbs import Api

NAMESPACE, POD = "default", "sample"
"""The pod in every sample."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One object to apply; `source` says where it is from, for messages."""

    source: str
    body: JsonObject

    @property
    def name(self) -> str:
        """`Pod sample`."""
        return f"{self.body.get('kind', '')} {self.body.get('metadata', {}).get('name', '')}"

    @property
    def text(self) -> str:
        """As YAML."""
        return yaml.safe_dump(self.body, sort_keys=False)


def read_sample(backend: str, driver: str, classes: Mapping[str, JsonObject] = {}) -> tuple[Manifest, ...]:
    """The objects for a backend: its own sample, or the one that suits every driver, and its DeviceClasses.

    A class of the sample gives way to the backend's of the same name, which is what the chart installs.
    """
    folder = files("pydra_dev").joinpath("samples")
    own = folder.joinpath(f"{backend}.yaml")
    # Its own sample speaks of its own driver name; under another name only the general one is right.
    if not (own.is_file() and f": {driver}\n" in (text := own.read_text())):
        text = folder.joinpath("any.yaml").read_text().replace("DRIVER", driver)
    sample = [Manifest(source="the sample", body=body) for body in yaml.safe_load_all(text)]
    added = [Manifest(source="DEVICE_CLASSES", body=_build_class(name, spec)) for name, spec in classes.items()]
    declared = {one.name for one in added}
    return (*added, *(one for one in sample if one.name not in declared))


def _build_class(name: str, spec: JsonObject) -> JsonObject:
    return {
        "apiVersion": DEVICE_CLASSES.api_version,
        "kind": DEVICE_CLASSES.kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def choose_manifests(paths: Sequence[str], sample: Sequence[Manifest]) -> tuple[Manifest, ...]:
    """What to apply: the manifests of the files behind the sample's DeviceClasses that they lack, or the sample.

    Raises SettingsError.
    """
    if not paths:
        return tuple(sample)
    manifests = read_manifests(paths)
    present = {one.name for one in manifests}
    added = [one for one in sample if one.body["kind"] == DEVICE_CLASSES.kind and one.name not in present]
    return (*added, *manifests)


_READ_DECLARATIONS = """
import json, sys
from pydra.backends.child.loading import load_object
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


def read_manifests(paths: Sequence[str], kinds: Sequence[Kind] = KINDS) -> tuple[Manifest, ...]:
    """The objects in YAML or JSON files, and in those of directories. Raises SettingsError with all problems."""
    problems: list[str] = []
    found: list[Manifest] = []
    for path in paths:
        try:
            for file in _list_files(path):
                found += _parse(Path(file).read_bytes(), file, problems, kinds)
        except OSError as error:
            problems.append(f"{error.filename}: cannot be read: {error.strerror}")
    if not (found or problems):
        problems.append(f"{', '.join(paths)}: no manifest is there")
    if problems:
        raise SettingsError(problems)
    return tuple(found)


def _list_files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    names = sorted(os.listdir(path))
    return [f"{path}/{name}" for name in names if name.endswith((".yaml", ".yml", ".json"))]


def parse_manifests(text: str, source: str) -> tuple[Manifest, ...]:
    """The objects in YAML or JSON from `source`. Raises SettingsError with all problems."""
    problems: list[str] = []
    found = tuple(_parse(text.encode(), source, problems))
    if not (found or problems):
        problems.append(f"{source}: no manifest is there")
    if problems:
        raise SettingsError(problems)
    return found


def _parse(text: bytes, path: str, problems: list[str], kinds: Sequence[Kind] = KINDS) -> Iterator[Manifest]:
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError) as error:
        problems.append(f"{path}: is not valid YAML: {' '.join(str(error).split())}")
        return
    for number, body in enumerate(documents, start=1):
        if body is None:
            continue
        place = f"{path}, document {number}" if len(documents) > 1 else path
        is_list = isinstance(body, dict) and body.get("kind") == "List"
        for position, one in enumerate((body.get("items") or []) if is_list else [body], start=1):
            source = f"{place}, item {position}" if is_list else place
            if problem := _find_problem(one, kinds):
                problems.append(f"{source}: {problem}")
            else:
                yield Manifest(source=source, body=one)


def _find_problem(body: Any, kinds: Sequence[Kind]) -> str:
    if not isinstance(body, dict):
        return "is not an object with apiVersion, kind and metadata"
    if missing := [name for name in ("apiVersion", "kind", "metadata") if not body.get(name)]:
        return f"{', '.join(missing)} must be set"
    if find_kind(body, kinds) is None:
        served = sorted({kind.kind for kind in kinds})
        kind, version = str(body["kind"]), body["apiVersion"]
        versions = sorted({one.api_version for one in kinds if one.kind == kind})
        if versions:
            return f"there is no {kind} in version {version}; it is served in {', '.join(versions)}"
        return f"kind {kind} is not served{suggest(kind, served)}, there is {', '.join(served)}"
    if not isinstance(body["metadata"], dict) or not isinstance(body["metadata"].get("name", ""), str):
        return "metadata must be an object with a name"
    return ""


def find_kind(body: JsonObject, kinds: Sequence[Kind] = KINDS) -> Kind | None:
    """The served kind of an object."""
    identity = body.get("apiVersion"), body.get("kind")
    return next((kind for kind in kinds if (kind.api_version, kind.kind) == identity), None)


def create_object(api: Api, manifest: Manifest, kinds: Sequence[Kind] = KINDS) -> JsonObject:
    """Create the object as `kubectl apply` would. Raises SettingsError with what the API server has against it."""
    kind = find_kind(manifest.body, kinds)
    assert kind is not None  # as it was read
    metadata = manifest.body["metadata"]
    if unknown := find_unknown_fields(kind, manifest.body):
        raise SettingsError([f"{manifest.source}: {manifest.name}: unknown field {', '.join(unknown)}"])
    namespace = metadata.get("namespace", NAMESPACE) if kind.namespaced else ""
    try:
        return api.create(kind, manifest.body, namespace=namespace)
    except StatusError as error:
        raise SettingsError([f"{manifest.source}: {error.message}"]) from error


def find_sources(backend: str) -> tuple[str, ...]:
    """The file or the directory that a backend is loaded from, without importing it; empty if that is not known."""
    target, directory = locate_file(backend)
    places = [directory or os.getcwd()] if is_target(target) else []
    top = find_backend(target).target.partition(":")[0].partition(".")[0]
    before = list(sys.path)
    sys.path[:0] = places
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    finally:
        sys.path[:] = before
    if spec is None:
        return ()
    return tuple(spec.submodule_search_locations or ()) or ((spec.origin,) if spec.origin else ())


WATCHED = (".py", ".yaml", ".yml", ".json", ".so")
POLL_INTERVAL = 0.2
"""Seconds between two looks at the files."""


async def wait_for_change(places: Sequence[str]) -> str:
    """The first file in these places that is new, changed or gone."""
    before = _read_versions(places)
    while True:
        await anyio.sleep(POLL_INTERVAL)
        now = _read_versions(places)
        for path in sorted(before.keys() | now.keys()):
            if before.get(path) != now.get(path):
                return path


def _read_versions(places: Sequence[str]) -> dict[str, tuple[int, int]]:
    paths = [path for place in places for path in _walk(place)]
    found = {}
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        found[path] = status.st_mtime_ns, status.st_size
    return found


def _walk(place: str) -> Iterator[str]:
    if not os.path.isdir(place):
        yield place
        return
    for directory, _, names in os.walk(place):
        yield from (f"{directory}/{name}" for name in names if name.endswith(WATCHED))
