"""Options: one table for flags, variables and the file; the strongest source wins."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pydra.cli.options import OPTIONS, add_options, flag_of, key_of, read_values, variable_of
from pydra.errors import SettingsError
from pydra.settings import Settings, parse_settings


def read(*flags: str, **environ: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="pydra-agent")
    add_options(parser)
    return read_values(parser.parse_args(flags), environ)


def test_every_setting_has_an_option_and_every_option_a_setting() -> None:
    fields = {field.name for field in msgspec.structs.fields(Settings)}
    only_in_the_file = {"backend_settings", "backend_processes", "backend_overheads"}
    assert {option.field for option in OPTIONS} == fields - only_in_the_file


def test_every_option_says_what_it_does_in_the_help() -> None:
    parser = argparse.ArgumentParser(prog="pydra-agent")
    add_options(parser)
    text = " ".join(parser.format_help().split())
    for option in OPTIONS:
        assert flag_of(option) in text
        assert option.help in text


def test_a_flag_beats_a_variable_and_a_variable_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("nodeName: from-file\nlogLevel: error\npodUid: u\n")
    values = read(
        "--config", str(file), "--node-name", "from-flag", PYDRA_NODE_NAME="from-env", PYDRA_LOG_LEVEL="debug"
    )
    assert values == {"nodeName": "from-flag", "logLevel": "debug", "podUid": "u"}


def test_backends_and_drivers_may_be_given_several_times() -> None:
    values = read("--backend", "a", "--backend", "b", "--driver", "a=x.y")
    assert values == {"backends": ["a", "b"], "drivers": {"a": "x.y"}}


def test_a_variable_holds_several_backends_with_commas() -> None:
    assert read(PYDRA_BACKEND="a,b", PYDRA_DRIVER="a=x,b=y") == {
        "backends": ["a", "b"],
        "drivers": {"a": "x", "b": "y"},
    }


def test_variables_of_a_backend_are_left_to_it() -> None:
    assert read("--backend", "sim", PYDRA_SIM_SCENARIO="/x") == {"backends": ["sim"]}


@pytest.mark.parametrize(
    ("flags", "environ", "problem"),
    [
        pytest.param(
            (),
            {"PYDRA_LOGLEVEL": "debug"},
            'PYDRA_LOGLEVEL: no such variable (did you mean "PYDRA_LOG_LEVEL"?)',
            id="misspelt variable",
        ),
        pytest.param(("--driver", "a"), {}, "--driver: 'a' is not NAME=DRIVER", id="driver without name"),
        pytest.param(("--config", "/proc/nowhere"), {}, "/proc/nowhere: cannot be read: No such file", id="no file"),
    ],
)
def test_what_cannot_be_read_is_named(flags: tuple[str, ...], environ: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(*flags, **environ)
    assert caught.value.problems[0].startswith(problem)


@pytest.mark.parametrize(
    "text",
    [
        *("[1, 2]", "a: [", "1: 2", "just words", "a: \0", "a: 2026-13-45", "a: 0b_", "a: !!bool x"),
        *("a: !!timestamp x", "a: " + "[" * 1000),
    ],
    ids=lambda text: text[:20],
)
def test_a_file_that_is_not_a_mapping_is_refused_without_a_traceback(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read("--config", str(file))
    assert caught.value.problems[0].startswith(str(file))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), below, max_size=3),
)


@pytest.mark.fuzz
@given(st.dictionaries(st.sampled_from([key_of(option) for option in OPTIONS]), VALUES, max_size=4))
def test_a_file_with_any_values_makes_settings_or_a_settings_error(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    file = tmp_path_factory.mktemp("values") / "config.yaml"
    file.write_text(yaml.safe_dump(values))
    with contextlib.suppress(SettingsError):
        parse_settings(read("--config", str(file)))


def test_names_follow_one_rule() -> None:
    by_field = {option.field: option for option in OPTIONS}
    assert (flag_of(by_field["backends"]), variable_of(by_field["backends"]), key_of(by_field["backends"])) == (
        "--backend",
        "PYDRA_BACKEND",
        "backends",
    )
    assert (flag_of(by_field["cdi_dir"]), variable_of(by_field["cdi_dir"]), key_of(by_field["cdi_dir"])) == (
        "--cdi-dir",
        "PYDRA_CDI_DIR",
        "cdiDir",
    )
