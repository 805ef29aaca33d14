"""The objects that `pydra dev` applies: manifests from files, or the sample for a backend."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import yaml

from pydra.errors import SettingsError
from pydra.message_text import suggest
from pydra.yaml_documents import NotYaml, decode_yaml_documents
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


def choose_manifests(
    paths: Sequence[str], sample: Sequence[Manifest], kinds: Sequence[Kind] = KINDS
) -> tuple[Manifest, ...]:
    """What to apply: the manifests of the files behind the sample's DeviceClasses that they lack, or the sample.

    Raises SettingsError.
    """
    if not paths:
        return tuple(sample)
    manifests = read_manifests(paths, kinds)
    present = {one.name for one in manifests}
    added = [one for one in sample if one.body["kind"] == DEVICE_CLASSES.kind and one.name not in present]
    return (*added, *manifests)


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
        documents = decode_yaml_documents(text)
    except NotYaml as error:
        problems.append(f"{path}: is not valid YAML: {error}")
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
