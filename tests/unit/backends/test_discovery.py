"""A backend's name leads to one installed entry point, or to words that say what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from pydra.backends.discovery import (
    BackendSource,
    choose_backend,
    extend_module_path,
    find_backend,
    list_backends,
    locate_file,
    refresh_source,
    variable_prefix,
)
from pydra.errors import SettingsError


def source(name: str, distribution: str = "", version: str = "1.0") -> BackendSource:
    distribution = distribution or f"pydra-{name}"
    return BackendSource(name=name, target=f"x_{name}:backend", distribution=distribution, version=version)


INSTALLED = (source("nvidia"), source("sim"))


def test_a_name_means_its_entry_point() -> None:
    assert choose_backend("sim", INSTALLED) == INSTALLED[1]


@pytest.mark.parametrize(
    ("name", "installed", "problem"),
    [
        (
            "nvidai",
            INSTALLED,
            'backend nvidai is not installed (did you mean "nvidia"?) (installed: nvidia, sim); '
            "install the distribution that provides it where pydra is, in an image of your own, or by the chart's "
            "value packages.names; or name a module of your own by its file or with a colon, as in `./my_backend.py` "
            "or `my_backend:`",
        ),
        (
            "tpu",
            (),
            "backend tpu is not installed (none is installed); "
            "install the distribution that provides it where pydra is, in an image of your own, or by the chart's "
            "value packages.names; or name a module of your own by its file or with a colon, as in `./my_backend.py` "
            "or `my_backend:`",
        ),
        (
            "sim",
            (source("sim", "a"), source("sim", "b", "2.0")),
            "backend sim is provided by a 1.0 (x_sim:backend) and b 2.0 (x_sim:backend); uninstall all but one",
        ),
        ("bad name:x", (), "backend bad name:x is neither the name of a backend nor module:attribute"),
    ],
    ids=["unknown", "none", "twice", "malformed"],
)
def test_what_cannot_be_found_is_explained(name: str, installed: tuple[BackendSource, ...], problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        choose_backend(name, installed)
    assert caught.value.problems == (problem,)


@pytest.mark.parametrize(
    ("target", "name"),
    [("my_backend:", "my_backend"), ("package.module:Class.instance", "module")],
)
def test_a_developer_refers_to_code_directly(target: str, name: str) -> None:
    assert choose_backend(target, ()) == BackendSource(name=name, target=target)


def test_a_file_is_the_module_that_python_would_import_for_it(tmp_path: Path) -> None:
    package = tmp_path / "acme" / "boards"
    package.mkdir(parents=True)
    for file in (tmp_path / "my_fpga.py", package / "fpga.py", package / "__init__.py", package.parent / "__init__.py"):
        file.touch()
    assert locate_file(f"{tmp_path}/my_fpga.py") == ("my_fpga:", str(tmp_path))
    assert locate_file(f"{package}/fpga.py") == ("acme.boards.fpga:", str(tmp_path))
    assert locate_file(f"{package}/__init__.py") == ("acme.boards:", str(tmp_path))
    assert locate_file("sim") == ("sim", "")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nosuch.py", "there is no file "),
        ("my-fpga.py", "'my-fpga' is not a Python name; rename it"),
    ],
)
def test_a_file_that_is_no_module_is_refused(name: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "my-fpga.py").touch()
    with pytest.raises(SettingsError, match=problem):
        locate_file(f"{tmp_path}/{name}")


def test_installed_backends_are_listed_without_being_imported() -> None:
    (sim,) = (one for one in list_backends() if one.name == "sim")
    assert sim.distribution == "pydra-sim"
    assert sim.version


@pytest.mark.parametrize("written", ["[pydra.backends]\nsi", "[pydra.backends]\nsim = x_sim:\n"])
def test_a_distribution_that_is_being_installed_changes_no_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    before = replace(source("sim"), target="pydra_sim:")
    directory = tmp_path / "pydra_sim-2.0.dist-info"  # which has no METADATA yet
    directory.mkdir()
    (directory / "entry_points.txt").write_text(written)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert refresh_source(before) == before


@pytest.mark.parametrize(
    ("backend", "prefix"),
    [
        pytest.param("sim", "PYDRA_SIM", id="a name"),
        pytest.param("my-fpga", "PYDRA_MY_FPGA", id="a name with a hyphen"),
        pytest.param("my_fpga:", "PYDRA_MY_FPGA", id="a module"),
        pytest.param("acme.boards.fpga:backend", "PYDRA_FPGA", id="an attribute of a module in a package"),
        pytest.param("pydra_sim:", "PYDRA_SIM", id="a module named as pydra's own plugins are"),
    ],
)
def test_variables_are_named_after_the_backend(backend: str, prefix: str) -> None:
    assert variable_prefix(backend) == prefix


@pytest.mark.parametrize(
    ("before", "places", "after"),
    [
        pytest.param("", ["/a"], "/a", id="nothing before"),
        pytest.param("/x:/y", ["/a", "/x"], "/x:/y:/a", id="behind what is there, once"),
        pytest.param("", [""], os.getcwd(), id="an empty entry is the working directory"),
    ],
)
def test_directories_come_behind_those_of_the_path(before: str, places: list[str], after: str) -> None:
    assert extend_module_path({"PYTHONPATH": before, "HOME": "/h"}, places) == {"PYTHONPATH": after, "HOME": "/h"}


def test_a_misspelt_group_of_an_entry_point_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "acme_fpga-2.0.dist-info"
    directory.mkdir()
    (directory / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-fpga\nVersion: 2.0\n")
    (directory / "entry_points.txt").write_text("[pydra.backend]\nfpga = acme_fpga:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match=r"by acme-fpga in the group pydra\.backend; the group must"):
        find_backend("fpga")
