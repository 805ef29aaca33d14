"""What a backend raises arrives as the error of the same meaning, whatever is in it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydra
from pydra import Device
from pydra.backends.error_codec import (
    MAX_MESSAGE,
    MAX_TRACEBACK,
    Fault,
    FaultKind,
    build_fault,
    find_custom_reasons,
    parse_fault,
)
from pydra.errors import (
    BackendError,
    CdiError,
    ClaimError,
    ContractError,
    DeviceInUse,
    EditConflict,
    InvalidConfig,
    PydraError,
    TerminalError,
    UnknownDevice,
)

if TYPE_CHECKING:
    from fractions import Fraction


class ImpossibleError(ClaimError):
    retryable = False


class BusyError(ClaimError):
    pass


class GpuBusyError(ClaimError):
    reason = "GpuBusy"


class NoSuchPlaceError(UnknownDevice):
    reason = "NoSuchPlace"


class DriverAbsentError(PydraError):
    reason = "DriverAbsent"


class WordyError(ClaimError):
    reason = "the GPU is busy"


class LongwindedError(ClaimError):
    reason = "G" * 65


class ComputedError(ClaimError):
    @property
    def reason(self) -> str:  # type: ignore[override]
        raise RuntimeError("no reason at all")


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


@pytest.mark.parametrize(
    ("raised", "arrives", "reason"),
    [
        (GpuBusyError("x"), ClaimError, "GpuBusy"),
        (NoSuchPlaceError("x"), UnknownDevice, "NoSuchPlace"),
        (DriverAbsentError("x"), BackendError, "DriverAbsent"),
        (BusyError("x"), ClaimError, "ClaimFailed"),
        (ImpossibleError("x"), TerminalError, "ClaimFailedTerminally"),
        (UnknownDevice("x"), UnknownDevice, "UnknownDevice"),
        (CdiError("x"), BackendError, "BackendFailed"),
        (WordyError("x"), ClaimError, "ClaimFailed"),
        (LongwindedError("x"), ClaimError, "ClaimFailed"),
        (ComputedError("x"), ClaimError, "ClaimFailed"),
        (OSError("x"), BackendError, "BackendFailed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_a_backends_own_word_for_an_error_arrives_where_it_can_be_one(
    raised: BaseException, arrives: type[PydraError], reason: str
) -> None:
    error = cross(raised)
    assert type(error) is arrives
    assert error.reason == reason


@given(st.text(max_size=80))
def test_no_word_that_a_metric_or_an_event_could_not_take_gets_through(word: str) -> None:
    fault = Fault(kind=FaultKind.CLAIM, message="x", reason=word)
    reason = parse_fault(fault, "sim", "prepare").reason
    assert re.fullmatch("[A-Z][A-Za-z0-9]{0,63}", reason, flags=re.ASCII)
    assert reason in (word, "ClaimFailed")


def test_the_errors_with_a_word_of_their_own_are_known_by_class() -> None:
    own = find_custom_reasons()
    assert own["GpuBusyError"] == "GpuBusy"
    assert own["WordyError"] == "the GPU is busy"
    assert not {"BusyError", "ComputedError", "InvalidConfig", "CdiError"} & own.keys()


@pytest.mark.parametrize(
    ("raised", "arrives", "text"),
    [
        (ExceptionGroup("of a task group", [GpuBusyError("x")]), ClaimError, "x"),
        (ExceptionGroup("outer", [ExceptionGroup("inner", [TerminalError("x")])]), TerminalError, "x"),
        (ExceptionGroup("both", [GpuBusyError("x"), ClaimError("y")]), ClaimError, "x; y"),
        (ExceptionGroup("both", [ClaimError("x"), TerminalError("y")]), TerminalError, "x; y"),
        (
            ExceptionGroup("both", [ClaimError("x"), OSError("y")]),
            BackendError,
            "backend sim: prepare failed: ClaimError: x; OSError: y",
        ),
    ],
    ids=["one", "nested", "of one claim", "one of them terminal", "a bug among them"],
)
def test_what_a_task_group_made_a_group_of_is_what_its_tasks_raised(
    raised: BaseException, arrives: type[PydraError], text: str
) -> None:
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


class Own(msgspec.Struct, frozen=True):
    """A value of a backend, with a type that is imported for type checkers only."""

    ratio: Fraction


def call_wrongly(kind: str) -> object:
    match kind:
        case "unknown":
            return pydra.NodeAllocatable(
                per_pot=1,  # type: ignore[call-arg]
            )
        case "missing":
            return Device()  # type: ignore[call-arg]
        case "unnamed":
            return [Device("gpu-0") for _ in (1,)]  # type: ignore[call-arg]
        case "without source":
            return eval("Device()")
        case "own":
            return Own()  # type: ignore[call-arg]
        case "function":
            return pydra.ContainerEdits().with_env("A")  # type: ignore[call-arg]
        case _:
            raise TypeError("Missing required argument 'name'")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "unknown",
            "NodeAllocatable has no field 'per_pot' (did you mean \"per_pod\"?); its fields are capacity, multiplier, "
            "per_pod, per_container",
        ),
        ("missing", "Device needs a value for 'name'; its fields are name, attributes, "),
        ("unnamed", "Device takes fewer arguments without a name: write Device(name=...); its fields are name, "),
        ("without source", "TypeError: Missing required argument 'name'"),
        ("own", "Own needs a value for 'ratio'; its fields are ratio"),
        ("function", "TypeError: ContainerEdits.with_env() missing 1 required positional argument: 'value'"),
        ("somebody else's", "TypeError: Missing required argument 'name'"),
    ],
)
def test_a_wrong_call_of_a_constructor_names_the_class_and_its_fields(kind: str, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        call_wrongly(kind)
    assert build_fault(caught.value).message.startswith(message)


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


@pytest.mark.parametrize("kind", FaultKind)
def test_the_agent_limits_an_error_that_the_process_sent_without_a_limit(kind: FaultKind) -> None:
    long = "x" * 10 * MAX_TRACEBACK
    fault = Fault(kind=kind, message=long, problems=(long,) * 1000, device=long, holder=long, traceback=long)
    error = parse_fault(fault, "sim", "prepare")
    assert len(str(error)) < 110 * MAX_MESSAGE
    assert len(getattr(error, "details", "")) < 2 * MAX_TRACEBACK
