"""Log lines: readable for people, one object per line for machines, and they say whose call it was."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from pydra.observability.logging import (
    configure_logs,
    format_json,
    format_text,
    log_loop_problem,
    logging_fields,
    set_logging_fields,
)
from pydra.settings import LogFormat, LogLevel


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("pydra.claims.preparer", logging.INFO, __file__, 1, message, arguments, None)
    made.__dict__.update(extra)
    return made


SWITCHES = ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing")


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    switches = {name: getattr(logging, name) for name in SWITCHES}
    yield logger
    for handler in set(logger.handlers) - set(handlers):
        handler.close()
    logger.handlers[:] = handlers
    logger.setLevel(level)
    for name, value in switches.items():
        setattr(logging, name, value)


def test_a_line_carries_the_fields_of_its_call() -> None:
    with logging_fields(claim="team/gpu", request_id="7"):
        line = json.loads(format_json(record("prepared in %s", "3 ms")))
    assert (line["message"], line["claim"], line["request_id"]) == ("prepared in 3 ms", "team/gpu", "7")
    assert (line["level"], line["logger"]) == ("info", "pydra.claims.preparer")


def test_fields_end_with_their_block_and_inner_ones_win() -> None:
    with logging_fields(claim="a", backend="sim"):
        with logging_fields(claim="b"):
            inner = json.loads(format_json(record("hello")))
        outer = json.loads(format_json(record("hello")))
    assert (inner["claim"], inner["backend"], outer["claim"]) == ("b", "sim", "a")
    assert "claim" not in json.loads(format_json(record("hello")))


def test_text_for_a_person_is_one_line_with_the_fields_at_its_end() -> None:
    line = format_text(record("hello", fields={"device": "sim-0"})).decode()
    assert line.endswith("INFO    claims.preparer: hello  device=sim-0")


def test_an_exception_is_part_of_the_json_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        made = record("oops", exc_info=sys.exc_info())
    text = format_json(made)
    assert b"\n" not in text
    assert "ValueError: broken" in json.loads(text)["traceback"]


def test_logs_go_to_a_file_and_find_it_again_after_rotation(root: logging.Logger, tmp_path: Path) -> None:
    file = tmp_path / "agent.log"
    configure_logs(level=LogLevel.INFO, form=LogFormat.AUTO, file=str(file))
    root.info("first")
    file.rename(tmp_path / "agent.log.1")
    configure_logs(level=LogLevel.WARNING, form=LogFormat.AUTO, file=str(file))
    open_files = [os.path.realpath(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd")]
    assert f"{tmp_path}/agent.log.1" not in open_files
    root.info("not severe enough")
    root.warning("second")
    assert [json.loads(line)["message"] for line in file.read_text().splitlines()] == ["second"]


def test_a_log_file_that_cannot_be_opened_leaves_the_logs_as_they_are(root: logging.Logger) -> None:
    before = list(root.handlers)
    with pytest.raises(OSError, match="nowhere"):
        configure_logs(level=LogLevel.INFO, form=LogFormat.AUTO, file="/proc/nowhere/agent.log")
    assert root.handlers == before


def test_details_stand_below_the_line_for_people_and_in_a_field_for_machines() -> None:
    made = record("it died", fields={"backend": "sim", "details": "stack:\n  line 7\n"})
    first, *below = format_text(made).decode().split("\n")
    assert first.endswith("it died  backend=sim")
    assert below == ["  stack:", "    line 7"]
    assert json.loads(format_json(made))["details"] == "stack:\n  line 7\n"


def test_half_a_character_of_somebody_elses_text_does_not_cost_the_line() -> None:
    made = record("a claim called %s", "\ud800")
    assert json.loads(format_json(made))["message"] == "a claim called \ud800"
    assert b"a claim called \\ud800" in format_text(made)


@pytest.mark.parametrize("where", ["message", "field", "details", "traceback"])
def test_text_of_a_backend_neither_begins_a_line_nor_reaches_the_terminal(where: str) -> None:
    evil = "x\n12:00:00.000 INFO    claims: prepared\x1b[2J\r\u2028\u202e"
    error = ValueError(evil) if where == "traceback" else None
    made = record(
        evil if where == "message" else "failed",
        fields={where: evil} if where in ("field", "details") else {},
        exc_info=(ValueError, error, None) if error else None,
    )
    first, *below = format_text(made).decode().split("\n")
    assert all(line.startswith("  ") for line in below)
    assert "prepared\\x1b[2J\\r\\u2028\\u202e" in (first if where in ("message", "field") else below[-1])
    assert len(format_json(made).splitlines()) == 1


def test_a_line_of_json_has_nothing_that_a_terminal_acts_on_and_says_the_same() -> None:
    said = "\x1b[31m \x7f \x9b31m \x85 \u2028 \u202e \u2066 é"
    line = format_json(record(said))
    assert json.loads(line)["message"] == said
    assert [one for one in line.decode() if not one.isprintable()] == []


@pytest.mark.parametrize("form", [format_text, format_json])
def test_a_line_has_a_bounded_size_whatever_is_in_it(form: Callable[[logging.LogRecord], bytes]) -> None:
    long = "x" * 15_000_000
    error = ValueError(long)
    made = record(long, fields={"device": long, "details": long}, exc_info=(ValueError, error, None))
    assert len(form(made)) < 400_000


def test_a_time_just_before_the_next_second_has_three_digits_of_it() -> None:
    made = record("late")
    made.created, made.msecs = 1.9999, 999.9
    assert json.loads(format_json(made))["time"] == "1970-01-01T00:00:01.999Z"


def test_a_line_that_cannot_be_formatted_is_reported_and_stops_nobody(
    root: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "agent.log"
    configure_logs(level=LogLevel.INFO, form=LogFormat.JSON, file=str(file))
    root.info("%d devices", "many")
    root.info("next")
    assert [json.loads(line)["message"] for line in file.read_text().splitlines()] == ["next"]
    assert "--- Logging error ---" in capsys.readouterr().err


def test_a_pipe_that_nobody_reads_is_refused_as_a_log_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):
        configure_logs(level=LogLevel.INFO, form=LogFormat.AUTO, file=str(tmp_path / "pipe"))


def test_a_line_of_a_claim_costs_at_most_25_python_calls(root: logging.Logger, tmp_path: Path) -> None:
    configure_logs(level=LogLevel.INFO, form=LogFormat.JSON, file=str(tmp_path / "agent.log"))
    logger = logging.getLogger("pydra.claims.preparer")
    context = contextvars.copy_context()
    context.run(set_logging_fields, claim="team/gpu", uid="1", driver="sim.pydra.dev")
    calls: list[str] = []

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_qualname)

    def say() -> None:
        logger.info("prepared in %d ms", 3, extra={"fields": {"pods": "p", "devices": "accel-0"}})

    context.run(say)
    sys.setprofile(count)
    try:
        context.run(say)
    finally:
        sys.setprofile(None)
    assert len(calls) - 1 <= 25, calls
    assert json.loads((tmp_path / "agent.log").read_text().splitlines()[1])["devices"] == "accel-0"


@pytest.mark.parametrize(("is_closed", "is_told"), [(True, False), (False, True)])
async def test_what_was_written_to_a_closed_connection_is_no_error(
    is_closed: bool, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_loop_problem)
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "wb") as file:
        transport, _ = await loop.connect_write_pipe(asyncio.Protocol, file)
        if is_closed:
            transport.close()
        error = RuntimeError("unable to perform operation; the handler is closed")
        loop.call_exception_handler({"message": "Fatal error", "exception": error, "transport": transport})
        transport.close()
        await asyncio.sleep(0)
    assert [record.levelno for record in caplog.records if record.levelno > logging.DEBUG] == [logging.ERROR] * is_told
