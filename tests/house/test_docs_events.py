"""The pages know every reason that an Event can have, and the messages that they explain are in the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pydra
import pydra.errors as errors
from pydra.backends.supervisor_events import Trouble
from tests.house.pages import find_code, find_rows, read, read_words

OF_CLAIMS, _, OF_NODES = read("docs/events.md").partition("## Events on the node")


def reasons(error: type[errors.PydraError]) -> Iterator[str]:
    yield error.reason
    for narrower in error.__subclasses__():
        if narrower.__module__ == errors.__name__:  # a backend's own words are its own to explain
            yield from reasons(narrower)


def test_every_reason_of_an_event_is_explained_with_what_to_do() -> None:
    source = (Path(pydra.__file__).parent / "agent" / "metrics_and_events.py").read_text()
    said = re.findall(r'self\._record_event\(\s*self\._node, "(\w+)"(?: if .+ else "(\w+)")?', source)
    of_nodes = {reason for pair in said for reason in pair if reason} | {trouble.value for trouble in Trouble}
    assert len(of_nodes) >= 10
    assert [reason for reason in set(reasons(errors.PydraError)) if f"`{reason}`" not in OF_CLAIMS] == []
    assert [reason for reason in of_nodes if f"`{reason}`" not in OF_NODES] == []


@pytest.mark.parametrize("page", ["docs/troubleshoot.md", "docs/claims.md"])
def test_messages_in_the_pages_are_in_the_code(page: str) -> None:
    told = [message for cells in find_rows(page, "message") for message in find_code(cells[0])]
    assert len(told) >= 8
    words = read_words()
    pieces = [piece.strip(" ,;:()?") for message in told for piece in message.split("...")]
    assert [piece for piece in pieces if len(piece) > 2 and piece not in words] == []
