"""The guide for admins knows every reason that an Event can have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pydra.errors as errors

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "operating.md").read_text()


def reasons(error: type[errors.PydraError]) -> Iterator[str]:
    yield error.reason
    for narrower in error.__subclasses__():
        if narrower.__module__ == errors.__name__:  # a backend's are explained in its own pages
            yield from reasons(narrower)


def test_every_reason_of_an_event_is_explained_with_what_to_do() -> None:
    of_claims, of_nodes = GUIDE.split("On the **Node**")
    said = re.findall(r'self\._tell\(self\._node, "(\w+)"', (ROOT / "pydra" / "node" / "reports.py").read_text())
    assert len(set(said)) >= 10
    assert [reason for reason in set(reasons(errors.PydraError)) if f"`{reason}`" not in of_claims] == []
    assert [reason for reason in set(said) if f"`{reason}`" not in of_nodes] == []
