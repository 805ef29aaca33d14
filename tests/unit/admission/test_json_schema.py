"""Config types: read from a backend's module, and as JSON Schema that says what the decoder accepts and refuses."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pydra.admission.config_types import KnownBackend, read_backend, read_backends, read_types
from pydra.admission.json_schema import DIALECT, build_schema
from pydra.errors import BackendError, ContractError, SettingsError
from tests.unit.admission.everything import EVERYTHING, Tree


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory where modules are found; what was imported from it is forgotten."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_types_come_with_the_drivers_name() -> None:
    known = read_backends(["sim", "nvidia"], {"sim": "accel.example.com"})
    assert [(one.name, one.driver) for one in known] == [("sim", "accel.example.com"), ("nvidia", "gpu.nvidia.com")]
    assert sorted(known[1].types) == [
        "resource.nvidia.com/v1beta1/GpuConfig",
        "resource.nvidia.com/v1beta1/MigDeviceConfig",
        "resource.nvidia.com/v1beta1/VfioDeviceConfig",
    ]


def test_a_module_of_ones_own_is_read_and_what_it_prints_is_no_output(
    modules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (modules / "my_fpga.py").write_text(f"print('hello')\nDRIVER = 'fpga.example.com'\n{COROUTINES}")
    assert read_backend("my_fpga:").driver == "fpga.example.com"
    assert capsys.readouterr() == ("", "hello\n")


COROUTINES = """
async def discover(): ...
async def prepare(claim): ...
async def unprepare(claim, prepared): ...
"""


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        pytest.param(None, BackendError, "there is no module broken on the module path", id="no module"),
        pytest.param("import nowhere_at_all", BackendError, "No module named 'nowhere_at_all'", id="no vendor library"),
        pytest.param("1/0", BackendError, "cannot be loaded: ZeroDivisionError", id="code that fails"),
        pytest.param("raise SystemExit(3)", BackendError, "cannot be loaded: SystemExit: 3", id="code that ends"),
        pytest.param("def", BackendError, "cannot be loaded: SyntaxError", id="no python"),
        pytest.param(f"DRIVER = 5{COROUTINES}", ContractError, "DRIVER is of type int", id="no driver name"),
        pytest.param(COROUTINES, SettingsError, "backend broken names no driver", id="no driver"),
    ],
)
def test_a_backend_that_cannot_be_read_is_reported_in_words(
    modules: Path, source: str | None, error: type[Exception], words: str
) -> None:
    if source is not None:
        (modules / "broken.py").write_text(source)
    with pytest.raises(error) as caught:
        read_backend("broken:")
    assert words in str(caught.value)


def test_a_name_that_no_driver_can_have_is_refused_where_it_is_given() -> None:
    with pytest.raises(SettingsError, match="""'Bad Driver"x' is not a driver name"""):
        read_backend("sim", driver='Bad Driver"x')


def test_a_schema_needs_no_drivers_name(modules: Path) -> None:
    (modules / "nameless.py").write_text(COROUTINES)
    assert read_types("nameless:").driver == ""


def test_all_that_are_not_installed_are_named_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        read_backends(["simm", "sim", "other"], {})
    assert [problem.split(" is not")[0] for problem in caught.value.problems] == ["backend simm", "backend other"]


def test_two_backends_of_one_driver_are_refused() -> None:
    with pytest.raises(SettingsError) as caught:
        read_backends(["sim", "nvidia"], {"sim": "gpu.nvidia.com"})
    assert caught.value.problems == ("backends sim and nvidia both serve the driver gpu.nvidia.com",)


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
    assert schema["description"] == "How a device is set up while a claim has it."
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
        ({}, "", "backend k has no config; its kinds: none, this backend takes no configuration"),
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
