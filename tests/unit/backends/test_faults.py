"""What a backend raises arrives as the error of the same meaning, whatever is in it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from pydra.backends.faults import MAX_MESSAGE, MAX_TRACEBACK, build_fault, parse_fault
from pydra.errors import (
    BackendError,
    ClaimError,
    ContractError,
    DeviceInUse,
    EditConflict,
    InvalidConfig,
    PydraError,
    TerminalError,
    UnknownDevice,
)


class ImpossibleError(ClaimError):
    retryable = False


class BusyError(ClaimError):
    pass


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def cross(error: BaseException) -> PydraError:
    return parse_fault(build_fault(error), "sim", "prepare")


@pytest.mark.parametrize(
    ("raised", "arrives", "text"),
    [
        (ClaimError("x"), ClaimError, "x"),
        (TerminalError("x"), TerminalError, "x"),
        (UnknownDevice("x"), UnknownDevice, "x"),
        (EditConflict("x"), EditConflict, "x"),
        (BusyError("x"), ClaimError, "x"),
        (ImpossibleError("x"), TerminalError, "x"),
        (InvalidConfig(["a", "b"]), InvalidConfig, "a; b"),
        (ContractError("sim", ["a", "b"]), ContractError, "backend sim: breaks the contract: a; b"),
        (PydraError("x"), BackendError, "backend sim: prepare failed: x"),
        (RuntimeError("x"), BackendError, "backend sim: prepare failed: RuntimeError: x"),
        (SystemExit(3), BackendError, "backend sim: prepare failed: SystemExit: 3"),
        (KeyError(), BackendError, "backend sim: prepare failed: KeyError"),
        (MuteError(), BackendError, "backend sim: prepare failed: MuteError: (its message cannot be read: ValueError)"),
        (ClaimError("\udcff"), ClaimError, "\\udcff"),
    ],
    ids=lambda value: repr(value) if isinstance(value, BaseException) and not isinstance(value, MuteError) else "",
)
def test_an_error_keeps_its_meaning(raised: BaseException, arrives: type[PydraError], text: str) -> None:
    error = cross(raised)
    assert type(error) is arrives
    assert str(error) == text


def test_a_device_in_use_keeps_device_and_holder() -> None:
    error = cross(DeviceInUse("gpu-0", "ns/other"))
    assert isinstance(error, DeviceInUse)
    assert (error.device, error.holder) == ("gpu-0", "ns/other")


def test_the_traceback_of_an_unexpected_error_reaches_the_log() -> None:
    try:
        raise RuntimeError("register")
    except RuntimeError as raised:
        error = cross(raised)
    assert isinstance(error, BackendError)
    assert "test_the_traceback_of_an_unexpected_error_reaches_the_log" in error.details


def test_an_error_that_a_backend_expected_has_no_traceback() -> None:
    class DriverMissing(PydraError):
        pass

    assert getattr(cross(DriverMissing("not loaded yet")), "details", None) == ""


def test_no_error_is_larger_than_its_bounds() -> None:
    fault = build_fault(RuntimeError("x" * 10_000_000))
    assert len(fault.message) <= MAX_MESSAGE + 3
    assert len(fault.traceback) <= MAX_TRACEBACK + 3


def test_a_traceback_begins_with_the_backend_s_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_written.py").write_text("def load():\n    return 1 / 0\n\n\nload()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError) as caught:
        importlib.import_module("half_written")
    this_test = caught.tb
    trace = build_fault(caught.value.with_traceback(this_test.tb_next)).traceback
    assert "importlib" not in trace
    assert trace.index("half_written.py") < trace.index("in load") < trace.index("ZeroDivisionError")


def test_a_syntax_error_needs_no_frames_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unclosed.py").write_text("x = (\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SyntaxError) as caught:
        importlib.import_module("unclosed")
    this_test = caught.tb
    trace = build_fault(caught.value.with_traceback(this_test.tb_next)).traceback
    assert trace.lstrip().startswith("File")
    assert "unclosed.py" in trace
