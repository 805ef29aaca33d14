"""A backend's name leads to one installed entry point, or to words that say what to do."""

from __future__ import annotations

import pytest

from pydra.backends.discovery import BackendSource, choose_backend, list_backends
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
            "install the distribution that provides it, usually `pip install pydra-nvidai`: where pydra is, in an "
            "image of your own, or by the chart's value packages.names, [pydra-nvidai]; "
            "or name a module of your own with a colon, as in `my_backend:`",
        ),
        (
            "tpu",
            (),
            "backend tpu is not installed (none is installed); "
            "install the distribution that provides it, usually `pip install pydra-tpu`: where pydra is, in an "
            "image of your own, or by the chart's value packages.names, [pydra-tpu]; "
            "or name a module of your own with a colon, as in `my_backend:`",
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
    [("my_backend:", "my-backend"), ("package.module:Class.instance", "module")],
)
def test_a_developer_refers_to_code_directly(target: str, name: str) -> None:
    assert choose_backend(target, ()) == BackendSource(name=name, target=target)


def test_installed_backends_are_listed_without_being_imported() -> None:
    (sim,) = (one for one in list_backends() if one.name == "sim")
    assert sim.distribution == "pydra-sim"
    assert sim.version
