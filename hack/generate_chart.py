"""Writes what follows from the code in charts/pydra: what it knows of backends, settings in its schema, its table."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import yaml
from api_page import texts_below

from pydra.admission.config_types import read_backend
from pydra.admission.policy import build_policy
from pydra.admission.review import build_rules
from pydra.backends.backend_settings import settings_schema
from pydra.backends.discovery import ENTRY_POINT_GROUP, find_backend, load_object
from pydra.cli.options import HEALTH, KUBERNETES, OBSERVE, OPTIONS, TIMES, key_of
from pydra.settings import KUBELET_CALL_DEADLINE, KUBELET_HEALTH_LEASE, Settings
from pydra_nvidia.compute_domain import names as compute_domains
from pydra_nvidia.compute_domain.controller.settings import CONTROLLER as COMPUTE_DOMAIN_LEASE
from pydra_nvidia.compute_domain.custom_resource_definitions import DEFINITIONS

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "pydra"
SCHEMA = CHART / "values.schema.json"
README = CHART / "README.md"
BEGIN, END = "<!-- values: make chart -->\n", "<!-- end of values -->\n"

DRIVER = "driver.placeholder.invalid"
"""In policies, where the driver's name belongs; templates/config-policy.yaml knows it."""

DECIDED_BY_THE_CHART = {"node_name", "kubeconfig", "pod_uid", "http_address", "log_file"}
BELOW = {
    "prepareDeadline": KUBELET_CALL_DEADLINE,
    "unprepareDeadline": KUBELET_CALL_DEADLINE,
    "healthPeriod": KUBELET_HEALTH_LEASE,
}
"""Limits that are not part of the settings' types."""

NULL_IS_A_VALUE = {"backends", "rollingUpdate", "priorityClassName"}
"""Backends that the chart does not know have no values by default; OnDelete has no `rollingUpdate`."""

ROOTS = {"host_root", "sys_root", "proc_root"}
"""Settings of backends that follow from what the chart mounts."""


def files() -> dict[Path, str]:
    """The files as they should be."""
    schema = json.loads(SCHEMA.read_text())
    schema["$defs"]["agentSettings"] = agent_settings()
    schema["properties"]["backends"]["properties"] = {name: refer_settings(name) for name in backends()}
    name_allowed(schema)
    require_values(schema, yaml.safe_load((CHART / "values.yaml").read_text()))
    made = {SCHEMA: json.dumps(schema, indent=2, ensure_ascii=False) + "\n"}
    made[CHART / "files" / "webhook-rules.json"] = json.dumps(build_rules(), indent=2) + "\n"
    for name in backends():
        made[CHART / "files" / "backends" / f"{name}.json"] = describe_backend(name)
        made[CHART / "files" / "policies" / f"{name}.json"] = policy_of(name)
    made[CHART / "files" / "compute-domains.json"] = describe_compute_domains()
    before, _, rest = README.read_text().partition(BEGIN)
    made[README] = before + BEGIN + values_table(schema) + END + rest.partition(END)[2]
    return made


def backends() -> list[str]:
    """The names of the backends in this repository."""
    projects = [tomllib.loads(path.read_text()) for path in ROOT.glob("plugins/*/pyproject.toml")]
    points = [one["project"].get("entry-points", {}) for one in projects]
    return sorted(name for one in points for name in one.get(ENTRY_POINT_GROUP, ()))


def refer_settings(name: str) -> dict[str, Any]:
    """Where the settings of a backend stand: for all its nodes, and for each pool of them."""
    own = {"settings": backend_settings(name)}
    pools = {"pools": {"additionalProperties": {"properties": own}}}
    return {"properties": {**own, "nodePools": {"properties": pools}}}


def describe_backend(name: str) -> str:
    """Its driver and DeviceClasses. The extended resources that stand for them are in the values."""
    backend = load_object(find_backend(name).target)
    classes = {
        one: {key: value for key, value in spec.items() if key != "extendedResourceName"}
        for one, spec in backend.DEVICE_CLASSES.items()
    }
    return json.dumps({"driver": backend.DRIVER, "deviceClasses": classes}, indent=2) + "\n"


def policy_of(name: str) -> str:
    """The policy and the binding that judge its configs; the release puts in the driver's name."""
    found = build_policy(read_backend(name, driver=DRIVER))
    return json.dumps([found.policy, found.binding], indent=2, ensure_ascii=False) + "\n"


def describe_compute_domains() -> str:
    """What the controller of ComputeDomains and its daemons are called and listen at, and the CRDs."""
    (backend,) = [
        name for name in backends() if load_object(find_backend(name).target).DRIVER == compute_domains.DRIVER
    ]
    facts = {
        "backend": backend,
        "driver": compute_domains.DRIVER,
        "group": compute_domains.GROUP,
        "classes": [compute_domains.CHANNEL_CLASS, compute_domains.DAEMON_CLASS],
        "label": compute_domains.DOMAIN_LABEL,
        "condition": compute_domains.IMEX_CONDITION,
        "lease": COMPUTE_DOMAIN_LEASE,
        "ports": [compute_domains.PEER_PORT, compute_domains.COMMAND_PORT],
        "definitions": DEFINITIONS,
    }
    return json.dumps(facts, indent=2) + "\n"


def agent_settings() -> dict[str, Any]:
    """The schema of what an admin decides about agents, but for what follows from other values."""
    fields = {field.name: field for field in msgspec.structs.fields(Settings)}
    shown = [one for one in OPTIONS if one.group in (KUBERNETES, TIMES, HEALTH, OBSERVE)]
    settings = {
        key_of(one): schema_of(fields[one.field].type) | {"description": one.help}
        for one in shown
        if one.field not in DECIDED_BY_THE_CHART
    }
    for key, limit in BELOW.items():
        settings[key].pop("maximum")
        settings[key]["exclusiveMaximum"] = int(limit)
    return closed(settings)


def backend_settings(name: str) -> dict[str, Any]:
    """The schema of a backend's own settings, each with the text that stands below its field, if one does."""
    own = load_object(find_backend(name).target).SETTINGS_TYPE
    schema = settings_schema(own)
    told: dict[str, str] = {}
    with suppress(ValueError):  # its types carry the texts
        told = texts_below(own)
    properties = {}
    for field, (key, one) in zip(msgspec.structs.fields(own), schema["properties"].items(), strict=True):
        if field.name in ROOTS:
            continue
        part = inline(one, schema.get("$defs", {}))
        part.pop("default", None)
        if field.name in told:
            part["description"] = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", told[field.name])
        match msgspec.inspect.type_info(field.type):
            case msgspec.inspect.DictType(key_type=msgspec.inspect.EnumType(cls=keys)):
                part |= closed({str(name.value): part["additionalProperties"] for name in keys})
        properties[key] = part
    return closed(properties)


def closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object with these properties and no others."""
    return {"type": "object", "additionalProperties": False, "properties": dict(properties)}


def name_allowed(part: Any) -> None:
    """Have Helm list the names that are allowed where one is not: for additionalProperties alone it says where only."""
    match part:
        case {"properties": dict(properties), "additionalProperties": False} if "patternProperties" not in part:
            part["propertyNames"] = {"enum": list(properties)}
    for below in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        name_allowed(below)


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a setting's type, all in one place."""
    (schema,), components = msgspec.json.schema_components([kind], ref_template="{name}")
    made: dict[str, Any] = inline(schema, components)
    return made


def inline(part: Any, components: Mapping[str, Any]) -> Any:
    """The schema with the components in the places that refer to them, without their titles and texts."""
    match part:
        case {"$ref": str(reference), **rest}:
            found = components[reference.rpartition("/")[2]]
            kept = {key: value for key, value in found.items() if key not in ("title", "description")}
            return inline(kept | rest, components)
        case dict():
            return {key: inline(value, components) for key, value in part.items() if key != "title"}
        case list():
            return [inline(one, components) for one in part]
    return part


def require_values(part: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Require what has a value by default, but for what can be empty: texts, lists, and mappings that users fill.

    Helm takes null as a wish for no value at all, and a template that needs one would end with Go's own words.
    """
    fixed = {
        name: one for name, one in values.items() if isinstance(one, dict) and "properties" in part["properties"][name]
    }
    needed = {name for name, one in values.items() if (one and isinstance(one, str)) or isinstance(one, bool | int)}
    part["required"] = sorted({*fixed, *needed} - NULL_IS_A_VALUE)
    for name, one in fixed.items():
        if name not in NULL_IS_A_VALUE:
            require_values(part["properties"][name], one)


def values_table(schema: Mapping[str, Any]) -> str:
    """A row for each value that the schema describes, in its order."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    lines = ["| value | default | |", "|---|---|---|"]
    for path, text in rows(schema, schema, ()):
        lines.append(f"| `{'.'.join(path)}` | {default_of(values, path)} | {text.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def rows(part: Mapping[str, Any], schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[Any, str]]:
    """Path and text of everything below this part that has a text; a map of the same things is called NAME."""
    for name, below in part.get("properties", {}).items():
        if path == ("backends",):
            continue
        if text := below.get("description"):
            yield (*path, name), text
        if "$ref" not in below:
            yield from rows(below, schema, (*path, name))
    if path == ("backends",):
        yield from rows(schema["$defs"]["backend"], schema, (*path, "NAME"))


def default_of(values: Any, path: tuple[str, ...]) -> str:
    """As an admin would write it; a dash for nothing."""
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    if values in (None, "", [], {}) or (path == ("backends",)):
        return "–"
    return f"`{json.dumps(values) if not isinstance(values, str) else values}`"


if __name__ == "__main__":
    for changed, content in files().items():
        changed.write_text(content)
