"""Renders the chart with real Helm, without a cluster, and finds things in what comes out."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml
from jsonschema import Draft202012Validator

CHART = Path(__file__).resolve().parents[2] / "charts" / "pydra"
NAMESPACE = "pydra-system"
SIM: Mapping[str, Any] = {"backends": {"sim": {"enabled": True}}}
AMD: Mapping[str, Any] = {"backends": {"amd": {"enabled": True}}}
CPU: Mapping[str, Any] = {"backends": {"cpu": {"enabled": True}}}
NET: Mapping[str, Any] = {"backends": {"net": {"enabled": True}}}
NVIDIA: Mapping[str, Any] = {"backends": {"nvidia": {"enabled": True}}}
COMPUTE_DOMAIN: Mapping[str, Any] = {"backends": {"nvidia-compute-domain": {"enabled": True}}}
TPU: Mapping[str, Any] = {"backends": {"tpu": {"enabled": True}}}
BOTH: Mapping[str, Any] = {"backends": {"nvidia": {"enabled": True}, "sim": {"enabled": True}}}

KNOWN = ", ".join(sorted(path.stem for path in (CHART / "files" / "backends").glob("*.json")))
"""The backends that the chart knows, as its messages list them."""

Object = dict[str, Any]


class Objects(list[Object]):
    """What a release consists of, hooks included."""

    def one(self, kind: str, name: str = "") -> Object:
        """The only one of a kind, or of a kind and name."""
        found = self.all(kind, name)
        if len(found) != 1:
            raise LookupError(f"{len(found)} of kind {kind} {name}: {sorted(self.names())}")
        return found[0]

    def all(self, kind: str, name: str = "") -> Objects:
        """Those of a kind, or of a kind and name."""
        return Objects(one for one in self if one["kind"] == kind and name in ("", one["metadata"]["name"]))

    def names(self) -> set[str]:
        """Kind and name of each."""
        return {f"{one['kind']}/{one['metadata']['name']}" for one in self}

    def pod(self, name: str = "") -> Object:
        """The pod of the only DaemonSet, or of the one of a name."""
        spec: Object = self.one("DaemonSet", name)["spec"]["template"]["spec"]
        return spec

    def agent(self, name: str = "") -> Object:
        """Its container."""
        (container,) = self.pod(name)["containers"]
        found: Object = container
        return found


class UniqueKeys(yaml.CSafeLoader):
    """Refuses a mapping with a key twice, always a mistake of a template; 1e3 is a number, as for Kubernetes."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"twice in one mapping: {sorted(k for k in keys if keys.count(k) > 1)}"
        return super().construct_mapping(node, deep)


UniqueKeys.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def render_files(*values: Mapping[str, Any], name: str = "pydra", namespace: str = NAMESPACE) -> dict[str, str]:
    """The text of each template by its path in the chart, for these values, later ones over earlier."""
    merged = overlay(*values)
    files = load_chart(merged).render(merged, name=name, namespace=namespace)
    return {path.removeprefix("pydra/templates/"): text for path, text in files.items()}


def load_chart(values: Mapping[str, Any]) -> helm_python.Chart:
    """The chart for these values, without its schema if they satisfy that.

    Helm compiles the schema in each rendering, which takes longer than all else. It says what is wrong with values, and
    decides about null, which removes a default.
    """
    defaults, schema, without = _load_without_schema()
    is_valid = "null" not in json.dumps(values) and schema.is_valid(overlay(defaults, values))
    return without if is_valid else _load()


@cache
def _load() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


@cache
def _load_without_schema() -> tuple[Object, Draft202012Validator, helm_python.Chart]:
    with tempfile.TemporaryDirectory() as place:
        copy = shutil.copytree(CHART, f"{place}/pydra", ignore=shutil.ignore_patterns("values.schema.json"))
        defaults = yaml.safe_load((CHART / "values.yaml").read_text())
        schema = Draft202012Validator(json.loads((CHART / "values.schema.json").read_text()))
        return defaults, schema, helm_python.Chart.load(copy)


def render(*values: Mapping[str, Any], name: str = "pydra", namespace: str = NAMESPACE) -> Objects:
    """The objects."""
    rendered = _render(json.dumps(overlay(*values), sort_keys=True), name, namespace)
    return Objects(one for text in rendered for one in pickle.loads(_parse(text)))


@cache
def _render(values: str, name: str, namespace: str) -> tuple[str, ...]:
    files = render_files(json.loads(values), name=name, namespace=namespace)
    return tuple(text for path, text in files.items() if path.endswith(".yaml"))


@cache
def _parse(text: str) -> bytes:
    # Most values change few of the files. A test may change the objects, and copies of bytes cost least.
    return pickle.dumps(list(parse(text)))


def parse(text: str) -> Iterator[Object]:
    """The objects in a text."""
    yield from (one for one in yaml.load_all(text, UniqueKeys) if one)


def overlay(*values: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings over mappings, as Helm merges files of values."""
    merged: dict[str, Any] = {}
    for one in values:
        for key, value in one.items():
            below = merged.get(key)
            merged[key] = overlay(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return merged


def at(path: str, value: Any) -> dict[str, Any]:
    """The values that `--set path=value` would make."""
    for name in reversed(path.split(".")):
        value = {name: value}
    made: dict[str, Any] = value
    return made


def variables(container: Object) -> dict[str, str]:
    """The environment of a container, without what comes from the pod."""
    return {one["name"]: one["value"] for one in container.get("env", ()) if "value" in one}


def settings_file(objects: Objects, daemon_set: str = "") -> str:
    """What the kubelet shows in the pod as the file that PYDRA_CONFIG names."""
    template = objects.one("DaemonSet", daemon_set)["spec"]["template"]
    (container,) = template["spec"]["containers"]
    volumes = by_name(template["spec"]["volumes"])
    for mount in container["volumeMounts"]:
        for item in volumes[mount["name"]].get("downwardAPI", {}).get("items", ()):
            if f"{mount['mountPath']}/{item['path']}" == variables(container)["PYDRA_CONFIG"]:
                _, key, _ = item["fieldRef"]["fieldPath"].split("'")
                text: str = template["metadata"]["annotations"][key]
                return text
    raise LookupError("no volume has the file")


def by_name(entries: Sequence[Object]) -> dict[str, Object]:
    """A list of Kubernetes by the entries' names."""
    named = {one["name"]: one for one in entries}
    assert len(named) == len(entries), "a name is there twice"
    return named
