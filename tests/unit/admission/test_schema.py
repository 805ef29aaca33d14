"""JSON Schema of configs: what it says must be what the decoder takes and refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from pydra.admission.known import KnownBackend, read_backend
from pydra.admission.schema import DIALECT, build_schema
from pydra.errors import SettingsError
from tests.unit.admission.everything import EVERYTHING, Tree

NVIDIA = "resource.nvidia.com/v1beta1"


def objects(schema: Any) -> list[Mapping[str, Any]]:
    """Every schema of an object within a schema."""
    if isinstance(schema, list):
        return [one for item in schema for one in objects(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if schema.get("type") == "object" else []
    return own + [one for item in schema.values() for one in objects(item)]


def references(schema: Any) -> set[str]:
    """Every `$ref` within a schema."""
    if isinstance(schema, list):
        return {one for item in schema for one in references(item)}
    if not isinstance(schema, dict):
        return set()
    own = {schema["$ref"]} if isinstance(schema.get("$ref"), str) else set()
    return own | {one for item in schema.values() for one in references(item)}


def test_a_kind_has_its_header_its_fields_and_what_they_allow() -> None:
    schema = build_schema(read_backend("sim"), kind="SimConfig")
    assert schema["$schema"] == DIALECT
    assert schema["description"] == "The settings of an accelerator while a claim has it."
    assert schema["required"] == ["apiVersion", "kind"]
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == ["apiVersion", "kind", "sharing", "clockMHz", "env"]
    assert schema["properties"]["apiVersion"] == {"const": "sim.pydra.dev/v1alpha1"}
    assert schema["properties"]["kind"] == {"const": "SimConfig"}
    assert schema["properties"]["clockMHz"]["anyOf"][0] == {"type": "integer", "minimum": 200, "maximum": 2000}
    assert schema["properties"]["env"]["propertyNames"] == {"maxLength": 256, "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}
    assert schema["$defs"]["Sharing"]["properties"]["strategy"]["enum"] == ["Exclusive", "TimeSliced"]


def test_all_kinds_together_are_one_of_them() -> None:
    schema = build_schema(read_backend("nvidia"))
    assert [one["properties"]["kind"]["const"] for one in schema["oneOf"]] == [
        "GpuConfig",
        "MigDeviceConfig",
        "VfioDeviceConfig",
    ]
    assert build_schema(read_backend("nvidia"), kind=f"{NVIDIA}/GpuConfig")["title"] == "GpuConfig"


@pytest.mark.parametrize("known", [read_backend("sim"), read_backend("nvidia"), EVERYTHING], ids=lambda one: one.name)
def test_unknown_fields_are_refused_everywhere_and_every_reference_leads_somewhere(known: KnownBackend) -> None:
    schema = build_schema(known)
    assert all("additionalProperties" in one for one in objects(schema))
    assert references(schema) == {f"#/$defs/{name}" for name in schema["$defs"]}
    assert msgspec.json.decode(msgspec.json.encode(schema)) == schema


def test_quantities_say_so() -> None:
    amounts = build_schema(EVERYTHING)["properties"]["amounts"]["additionalProperties"]
    assert amounts["format"] == "quantity"
    assert amounts["pattern"].startswith("^[+-]?")


def test_a_kind_within_itself_is_a_definition() -> None:
    known = KnownBackend(name="t", driver="t.example.com", types={"t.example.com/v1/Tree": Tree})
    schema = build_schema(known)
    assert schema["properties"]["below"]["anyOf"][0] == {"$ref": "#/$defs/Tree"}
    assert list(schema["$defs"]["Tree"]["properties"]) == ["below"]


class Keyword(msgspec.Struct):
    default: Tree | None = None
    description: str = "x"


def test_fields_that_are_called_as_words_of_json_schema_are_fields() -> None:
    known = KnownBackend(name="k", driver="k.example.com", types={"k.example.com/v1/Keyword": Keyword})
    properties = build_schema(known)["properties"]
    assert properties["default"]["anyOf"][0] == {"$ref": "#/$defs/Tree"}
    assert properties["description"] == {"type": "string", "default": "x"}


TWO = {"k.example.com/v1/Keyword": Keyword, "k.example.com/v2/Keyword": Keyword}


@pytest.mark.parametrize(
    ("types", "kind", "problem"),
    [
        ({}, "", "backend k has no config; its kinds: none, it takes no configuration"),
        (TWO, "Key", f"backend k has no config of kind Key; its kinds: {', '.join(TWO)}"),
        (TWO, "Keyword", f"backend k has Keyword in several versions, name one: {', '.join(TWO)}"),
    ],
)
def test_a_kind_that_is_none_or_several_is_refused_with_those_that_are(
    types: dict[str, type], kind: str, problem: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        build_schema(KnownBackend(name="k", driver="k.example.com", types=types), kind=kind)
    assert caught.value.problems == (problem,)
