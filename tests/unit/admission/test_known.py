"""Backends whose types are read in this process, and what is said of those that cannot be."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydra.admission.known import index_drivers, read_backend, read_backends, read_types
from pydra.errors import BackendError, ContractError, SettingsError


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
    assert sorted(index_drivers(known)["gpu.nvidia.com"]) == [
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
        pytest.param(
            "1/0", BackendError, "cannot be loaded: ZeroDivisionError: division by zero", id="code that fails"
        ),
        pytest.param("raise SystemExit(3)", BackendError, "cannot be loaded: SystemExit: 3", id="code that ends"),
        pytest.param("def", BackendError, "cannot be loaded: SyntaxError", id="no python"),
        pytest.param(f"DRIVER = 5{COROUTINES}", ContractError, "DRIVER is a int", id="no driver name"),
        pytest.param(
            f"DRIVER = 'a.b'\nCONFIG_TYPES = 3{COROUTINES}", ContractError, "CONFIG_TYPES is a int", id="no types"
        ),
        pytest.param(COROUTINES, SettingsError, "backend broken names no driver", id="no driver"),
    ],
)
def test_a_backend_that_cannot_be_read_is_told_in_words(
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
