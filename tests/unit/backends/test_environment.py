"""The variables of a backend are named after it, however it was named; its module is found where its author stands."""

from __future__ import annotations

import os

import pytest

from pydra.backends.environment import extend_module_path, variable_prefix


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
