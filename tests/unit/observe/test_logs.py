"""Log lines: readable for people, one object per line for machines, and they say whose call it was."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydra.observability.context import log_fields, logging_fields
from pydra.observability.logging import JsonFormatter, TextFormatter, configure_logs
from pydra.settings import LogFormat, LogLevel


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("pydra.claims.preparer", logging.INFO, __file__, 1, message, arguments, None)
    made.__dict__.update(extra)
    return made


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    for handler in set(logger.handlers) - set(handlers):
        handler.close()
    logger.handlers[:] = handlers
    logger.setLevel(level)


def test_a_line_carries_the_fields_of_its_call() -> None:
    with logging_fields(claim="team/gpu", request_id="7"):
        line = json.loads(JsonFormatter().format(record("prepared in %s", "3 ms")))
    assert (line["message"], line["claim"], line["request_id"]) == ("prepared in 3 ms", "team/gpu", "7")
    assert (line["level"], line["logger"]) == ("info", "pydra.claims.preparer")


def test_fields_end_with_their_block_and_inner_ones_win() -> None:
    with logging_fields(claim="a", backend="sim"):
        with logging_fields(claim="b"):
            assert log_fields() == {"claim": "b", "backend": "sim"}
        assert log_fields()["claim"] == "a"
    assert log_fields() == {}


def test_text_for_a_person_is_one_line_with_the_fields_at_its_end() -> None:
    line = TextFormatter(colours=False).format(record("hello", fields={"device": "sim-0"}))
    assert line.endswith("INFO    claims.preparer: hello  device=sim-0")


def test_an_exception_is_part_of_the_json_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        made = record("oops", exc_info=sys.exc_info())
    text = JsonFormatter().format(made)
    assert "\n" not in text
    assert "ValueError: broken" in json.loads(text)["traceback"]


def test_logs_go_to_a_file_and_find_it_again_after_rotation(root: logging.Logger, tmp_path: Path) -> None:
    file = tmp_path / "agent.log"
    configure_logs(level=LogLevel.INFO, form=LogFormat.AUTO, file=str(file))
    root.info("first")
    file.rename(tmp_path / "agent.log.1")
    configure_logs(level=LogLevel.WARNING, form=LogFormat.AUTO, file=str(file))
    root.info("not severe enough")
    root.warning("second")
    assert [json.loads(line)["message"] for line in file.read_text().splitlines()] == ["second"]


def test_a_log_file_that_cannot_be_opened_leaves_the_logs_as_they_are(root: logging.Logger) -> None:
    before = list(root.handlers)
    with pytest.raises(OSError, match="nowhere"):
        configure_logs(level=LogLevel.INFO, form=LogFormat.AUTO, file="/nowhere/agent.log")
    assert root.handlers == before


def test_details_stand_below_the_line_for_people_and_in_a_field_for_machines() -> None:
    made = record("it died", fields={"backend": "sim", "details": "stack:\n  line 7\n"})
    first, *below = TextFormatter(colours=False).format(made).split("\n")
    assert first.endswith("it died  backend=sim")
    assert below == ["stack:", "  line 7"]
    assert json.loads(JsonFormatter().format(made))["details"] == "stack:\n  line 7\n"
