"""A backend's own settings: from variables and the file, with every fault at once, in words for an admin."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from pydra.backends.backend_settings import describe_settings, read_settings, settings_schema
from pydra.devices import Quantity
from pydra.errors import SettingsError


class Mode(Enum):
    OFF = "off"
    STRICT = "strict"


class Limits(msgspec.Struct, frozen=True):
    memory: Quantity = "1Gi"


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    max_shares: Annotated[int, Meta(ge=1)] = 4
    ratio: float = 0.5
    enabled: bool = False
    mode: Mode = Mode.OFF
    devices: tuple[str, ...] = ()
    limits: Limits = Limits()
    root: str | None = None
    levels: Mapping[str, int] = {}


def read(environ: dict[str, str], **values: Any) -> Knobs:
    settings = read_settings(Knobs, "x", "PYDRA_X_", environ, values)
    assert isinstance(settings, Knobs)
    return settings


def refused(environ: dict[str, str], **values: Any) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        read(environ, **values)
    return caught.value.problems


@pytest.mark.parametrize(
    ("variable", "field", "value"),
    [
        ("MAX_SHARES=8", "max_shares", 8),
        ("RATIO=0.25", "ratio", 0.25),
        ("RATIO=1", "ratio", 1.0),
        ("ENABLED=true", "enabled", True),
        ("ENABLED=0", "enabled", False),
        ("MODE=strict", "mode", Mode.STRICT),
        ("DEVICES=a, b", "devices", ("a", "b")),
        ('DEVICES=["a,b"]', "devices", ("a,b",)),
        ('LIMITS={"memory": "2Gi"}', "limits", Limits(memory="2Gi")),
        ("LEVELS=a=1, b=2,", "levels", {"a": 1, "b": 2}),
        ('LEVELS={"a": 1}', "levels", {"a": 1}),
        ("ROOT=/run", "root", "/run"),
        ("ROOT=", "root", None),
    ],
)
def test_a_variable_is_read_as_its_field_wants(variable: str, field: str, value: object) -> None:
    name, _, text = variable.partition("=")
    assert getattr(read({f"PYDRA_X_{name}": text}), field) == value


def test_a_variable_wins_over_the_file_and_the_file_over_the_default() -> None:
    settings = read({"PYDRA_X_MAX_SHARES": "2"}, maxShares=8, ratio=0.75)
    assert (settings.max_shares, settings.ratio, settings.enabled) == (2, 0.75, False)


def test_all_faults_come_at_once_each_with_its_place_what_was_found_and_the_default() -> None:
    environ = {"PYDRA_X_MAX_SHARES": "0", "PYDRA_X_RATOI": "1", "PYDRA_X_LIMITS": '{"memory": "lots"}'}
    environ["PYDRA_X_ROOT"] = "\udcff"  # what Python makes of a byte that is not UTF-8
    assert refused(environ, enabled="perhaps", modes="off", mode="of") == (
        'PYDRA_X_RATOI: this backend has no such setting (did you mean "PYDRA_X_RATIO"?), allowed: '
        "PYDRA_X_MAX_SHARES, PYDRA_X_RATIO, PYDRA_X_ENABLED, PYDRA_X_MODE, PYDRA_X_DEVICES, PYDRA_X_LIMITS, "
        "PYDRA_X_ROOT, PYDRA_X_LEVELS",
        'backendSettings.x.modes: no such setting (did you mean "mode"?), allowed: '
        "maxShares, ratio, enabled, mode, devices, limits, root, levels",
        "PYDRA_X_MAX_SHARES: found 0, allowed: an integer >= 1, default: 4",
        'backendSettings.x.enabled: found "perhaps", allowed: true or false, default: false',
        'backendSettings.x.mode: found "of", allowed: "off", "strict", default: "off"',
        'PYDRA_X_LIMITS.memory: found "lots", allowed: a quantity such as 2, 80Gi, 1500m or 1e3, '
        'default: {"memory":"1Gi"}',
        "PYDRA_X_ROOT has an unpaired surrogate, which is not valid Unicode",
    )


class Faulty(msgspec.Struct):
    root: str | None = None

    def __post_init__(self) -> None:
        self.root.strip()  # type: ignore[union-attr]


def test_rules_of_the_backend_that_fail_are_reported_like_those_that_refuse() -> None:
    with pytest.raises(
        SettingsError, match="backend x: they cannot be checked, the backend's own rules fail with Attr"
    ):
        read_settings(Faulty, "x", "PYDRA_X_", {}, {})


def test_variables_of_others_are_left_alone() -> None:
    environ = {"PYDRA_X_STATE": "/s", "PYDRA_X_WEB_SERVICE_HOST": "10.0.0.1", "PYDRA_X_WEB_PORT": "1", "PYDRA_Y_A": "1"}
    assert read(environ) == Knobs()


def test_variables_of_an_installed_backend_with_a_longer_name_are_its_own() -> None:
    environ = {"PYDRA_NVIDIA_COMPUTE_DOMAIN_IMEX": "hostManaged", "PYDRA_NVIDIA_COMPUTE": "1"}
    with pytest.raises(SettingsError) as caught:
        read_settings(Knobs, "nvidia", "PYDRA_NVIDIA_", environ, {})
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["PYDRA_NVIDIA_COMPUTE"]


def test_settings_are_shown_with_what_they_allow_and_where_their_value_came_from() -> None:
    environ, values = {"PYDRA_X_MAX_SHARES": "2"}, {"mode": "strict"}
    rows = describe_settings(read(environ, **values), "x", "PYDRA_X_", environ, values)
    shown = {row.name: (row.allowed, row.default, row.value, row.source) for row in rows}
    assert shown["maxShares"] == ("an integer >= 1", "4", "2", "PYDRA_X_MAX_SHARES")
    assert shown["mode"] == ('"off", "strict"', '"off"', '"strict"', "backendSettings.x.mode")
    assert shown["root"] == ("a string or null", "null", "null", "default")


def test_the_schema_has_the_files_names_and_defaults() -> None:
    schema = settings_schema(Knobs)
    assert schema["properties"]["maxShares"] == {"minimum": 1, "type": "integer", "default": 4}
    assert " ".join(schema["properties"]) == "maxShares ratio enabled mode devices limits root levels"
    assert schema["additionalProperties"] is False
    assert set(schema["$defs"]) == {"Mode", "Limits"}
